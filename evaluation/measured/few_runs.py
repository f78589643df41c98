"""Finds how many measured runs a calibration needs: fits a few of them, and measures errors on the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from servegym.evaluation.measured.figures import METRICS, means_of
from servegym.evaluation.measured.fitting import Fitted, Setting, fit

DRAWS = 6  # most choices of runs for each number


def means_error(setting: Setting, fitted: Fitted) -> dict[str, float]:
    """Return the signed error of each metric's mean over the whole run, percent."""
    run, profile, terms = setting
    measured, found = means_of(run.requests, run), means_of(fitted.served(run, profile, terms), run)
    return {metric: 100 * (found[metric] / measured[metric] - 1) for metric in METRICS}


def errors_left(
    settings: Sequence[Setting], progress: Callable[[int, int], None] = lambda done, in_all: None
) -> pd.DataFrame:
    """Fit some runs and judge the others: a row a draw and judged run: fitted (number of runs), run, `means_error`.

    Of the runs that clients did not give up on, none to all but one are fitted. progress: called with (draws done, all
    draws).
    """
    rows, chosen = [], list(draws(settings))
    for done, drawn in enumerate(chosen):
        progress(done, len(chosen))
        terms = fit(drawn) if drawn else Fitted()
        for setting in settings:
            if setting not in drawn:
                rows.append({"fitted": len(drawn), "run": setting[0].name} | means_error(setting, terms))
    progress(len(chosen), len(chosen))
    return pd.DataFrame(rows)


def draws(settings: Sequence[Setting]) -> Iterator[tuple[Setting, ...]]:
    """Yield the runs to fit: for each number of runs all choices, or DRAWS of them, the same each time."""
    may = [setting for setting in settings if not setting[0].overloaded]
    for count in range(min(len(may), len(settings) - 1) + 1):
        choices = list(itertools.combinations(may, count))
        chosen = np.random.default_rng(0).permutation(len(choices))[:DRAWS]
        yield from (choices[place] for place in sorted(chosen))


def curve(errors: pd.DataFrame) -> pd.DataFrame:
    """Return the median absolute error of each metric over draws and judged runs, percent; index: fitted."""
    return errors.groupby("fitted")[list(METRICS)].agg(lambda column: column.abs().median())


def needed(found: pd.DataFrame, percent: float) -> dict[str, int | None]:
    """Return for each metric the number of runs from which on the curve stays within `percent`; None: it never does."""
    fewest: dict[str, int | None] = {}
    for metric in METRICS:
        beyond = found.index[found[metric] > percent]
        first = 0 if not len(beyond) else int(beyond.max()) + 1
        fewest[metric] = first if first in found.index else None
    return fewest
