"""Statistics over many runs: means, interquartile means, probability of improvement, performance profiles.

Scores are float64[cells, seeds]: a cell is a trace, device and load, and has seeds of its own, so that runs of
different cells are independent. The policies of a cell and seed served the same requests, so whatever compares
two policies is paired: one resample takes the same runs of both.

Intervals are percentiles of a stratified bootstrap: seeds are drawn anew within each cell. Of n seeds n - 1 are drawn
(Rao and Wu, JASA 1988): the spread of n drawn of n is that of the runs times (n - 1) / n, an interval 11 % too
narrow at n = 5. The statistics are those of Agarwal et al., NeurIPS 2021, but for the pairing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from servegym.errors import ExperimentError
from servegym.evaluation.intervals import CONFIDENCE, Interval

RESAMPLES = 2000
RESAMPLING_SEED = 0  # the same resamples each time: the same runs have the same intervals

# Of one or several scores[..., cells, seeds]: a number for each of the first axes.
Statistic = Callable[..., np.ndarray]


def mean(scores: np.ndarray) -> np.ndarray:
    return scores.mean(axis=(-2, -1))


def iqm(scores: np.ndarray) -> np.ndarray:
    """Interquartile mean: the mean of what is left of all runs without the lowest and the highest quarter.

    Of N runs floor(N / 4) are left out at each end. It is less moved by a few cells than the mean is.
    """
    runs = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = runs.shape[-1] // 4
    return runs[..., cut : runs.shape[-1] - cut].mean(axis=-1)


def difference(scores: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """Mean over all runs of what a policy scored more than the baseline on the same requests."""
    return mean(scores - baseline)


def improvement(scores: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """Probability that a policy scores more than the baseline on the same requests; a tie counts one half."""
    return mean((scores > baseline) + 0.5 * (scores == baseline))


def bootstrap(
    statistic: Statistic,
    *scores: np.ndarray,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = RESAMPLING_SEED,
) -> Interval:
    """The statistic of scores, each float64[cells, seeds], and the bounds of its interval (NaN with one seed).

    Raises ExperimentError for scores of different shapes, or that hold NaN.
    """
    estimate = float(statistic(*_checked(*scores)))
    drawn = _drawn(scores[0].shape, resamples, seed)
    if drawn is None:
        return Interval(estimate, math.nan, math.nan)
    low, high = np.quantile(statistic(*(_taken(one, drawn) for one in scores)), _bounds(confidence))
    return Interval(estimate, float(low), float(high))


class Profile(NamedTuple):
    """Share of the runs with a score above each threshold, and the bounds of its interval at that threshold."""

    thresholds: np.ndarray
    share: np.ndarray
    low: np.ndarray
    high: np.ndarray


def profile(scores: np.ndarray, thresholds: np.ndarray) -> Profile:
    """The performance profile of scores[cells, seeds]. The interval holds at each threshold, not for the whole curve.

    Raises as `bootstrap` does.
    """
    _checked(scores)
    share = np.array([(scores > threshold).mean() for threshold in thresholds])
    drawn = _drawn(scores.shape, RESAMPLES, RESAMPLING_SEED)
    if drawn is None:
        unknown = np.full(len(thresholds), np.nan)
        return Profile(thresholds, share, unknown, unknown)
    again = _taken(scores, drawn)
    bounds = [np.quantile(mean(again > threshold), _bounds(CONFIDENCE)) for threshold in thresholds]
    low, high = np.array(bounds).T
    return Profile(thresholds, share, low, high)


def _bounds(confidence: float) -> tuple[float, float]:
    return (1 - confidence) / 2, (1 + confidence) / 2


def _checked(*scores: np.ndarray) -> tuple[np.ndarray, ...]:
    shapes = [one.shape for one in scores]
    if len(set(shapes)) > 1 or len(shapes[0]) != 2 or 0 in shapes[0]:
        raise ExperimentError(f"scores of shapes {shapes}: they should be [cells, seeds], at least 1 x 1 and all alike")
    if any(np.isnan(one).any() for one in scores):
        raise ExperimentError("scores hold NaN: there is a run without this score")
    return scores


def _drawn(shape: tuple[int, ...], resamples: int, seed: int) -> np.ndarray | None:
    """int64[resamples, cells, seeds - 1]: which runs of each cell a resample has; None where one seed is all."""
    cells, seeds = shape
    if seeds < 2:
        return None
    return np.random.default_rng(seed).integers(seeds, size=(resamples, cells, seeds - 1))


def _taken(scores: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """float64[resamples, cells, seeds - 1]"""
    return scores[np.arange(scores.shape[0])[:, None], drawn]
