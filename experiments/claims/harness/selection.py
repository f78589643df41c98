"""One policy against the best of several: which one that is, is chosen on other seeds than those that judge it.

Choosing the best of many by the runs it is then judged by chooses its luck too. So a claim of this kind runs as many
seeds again, `SHIFT` above its own, that say which policy, and which load, it is.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from experiments.claims.harness.rows import values
from experiments.claims.harness.settings import SHIFT, Size


def with_selection(size: Size) -> list[int]:
    """The seeds that judge, then those that choose."""
    return [*size.seeds, *(seed + SHIFT for seed in size.seeds)]


def split(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows that judge, and rows that choose."""
    judging = rows["seed"] < rows["seed"].min() + SHIFT
    return rows[judging], rows[~judging]


def best(choosing: pd.DataFrame, column: str, load: float, schedulers: Iterable[str]) -> str:
    """The scheduler with the highest mean of a column at a load; the first of equals."""
    at_load = choosing[choosing["load"] == load]
    means = at_load.groupby("scheduler")[column].mean()
    return max(schedulers, key=lambda scheduler: means[scheduler])


def lead(rows: pd.DataFrame, column: str, load: float, one: str, other: str) -> np.ndarray:
    """float64[seeds]: one less the other."""
    return values(rows, column, load=load, scheduler=one) - values(rows, column, load=load, scheduler=other)


def relative_lead(rows: pd.DataFrame, column: str, load: float, one: str, other: str) -> np.ndarray:
    """float64[seeds]: one less the other, in percent of the other's mean over seeds (NaN where that is 0)."""
    mean = values(rows, column, load=load, scheduler=other).mean()
    difference = lead(rows, column, load, one, other)
    return 100 * difference / mean if mean > 0 else np.full(len(difference), np.nan)
