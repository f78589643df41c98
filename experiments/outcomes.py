"""What studies measure of several arms (policies, settings) on the same draws, so that differences are paired."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from servegym.evaluation.intervals import student_interval
from servegym.evaluation.running import ThreadRunner, results_of


def outcomes_of(
    measured: Callable[..., Sequence[float]], arms: Sequence[tuple[Any, ...]], draws: Sequence[Any]
) -> np.ndarray:
    """float64[arms, draws, figures]: `measured(*arm, draw)`, run side by side. draws: seeds, or scenarios."""
    runs = [(*arm, draw) for arm in arms for draw in draws]
    found = results_of(ThreadRunner(), lambda index: measured(*runs[index]), range(len(runs)))
    return np.array(found, "f8").reshape(len(arms), len(draws), -1)


def cells_of(found: np.ndarray, styles: Iterable[str]) -> list[str]:
    """Of each figure the mean with its interval over draws. found: float64[draws, figures]."""
    return [student_interval(column).text(style) for column, style in zip(found.T, styles, strict=True)]


def runs_of(measured: Callable[..., Mapping[str, Any]], **axes: Iterable[Any]) -> pd.DataFrame:
    """A row for each combination of the axes' values: these, and what is measured there. With a bar."""
    cells = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return pd.DataFrame([{**cell, **measured(**cell)} for cell in track(cells, "runs", console=Console(stderr=True))])
