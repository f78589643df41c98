"""Reading rows of one setting: the values of seeds, in one order, so that differences are paired."""

from typing import Any

import numpy as np
import pandas as pd


def values(rows: pd.DataFrame, column: str, **where: Any) -> np.ndarray:
    """float64[seeds]: a column of the rows for which every field of `where` has its value, in order of seeds."""
    found = select(rows, **where)
    if found["seed"].duplicated().any():
        raise ValueError(f"{where} does not name one cell a seed")
    return found[column].to_numpy("f8")


def series(rows: pd.DataFrame, column: str, **where: Any) -> list[np.ndarray]:
    """For each seed, in order, the samples that a row keeps of a series."""
    return [np.asarray(sampled, "f8") for sampled in select(rows, **where)[column]]


def select(rows: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """The rows for which every field of `where` has its value, by seed."""
    for field, value in where.items():
        rows = rows[rows[field] == value]
    return rows.sort_values("seed", kind="stable")


def mean_where(differences: np.ndarray, where: np.ndarray) -> np.ndarray:
    """float64[seeds]: mean over the loads that are marked; NaN where none is. differences: float64[loads, seeds]."""
    return differences[where].mean(axis=0) if where.any() else np.full(differences.shape[1], np.nan)


def over_loads(rows: pd.DataFrame, column: str, loads: tuple[float, ...], **where: Any) -> np.ndarray:
    """float64[loads, seeds]: `values` at each load."""
    return np.array([values(rows, column, load=load, **where) for load in loads])
