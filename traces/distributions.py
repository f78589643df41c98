"""Lengths as functions of uniform numbers, for distributions that a paper describes by a few figures.

Each returns a function from numbers in [0, 1) to token counts of 1 or more, int32 of the same shape. An unbounded
distribution is cut at its 99.9 % point, as the papers' figures do not describe its tail.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from servegym.errors import WorkloadError


class Stream(enum.IntEnum):
    """Streams of random numbers. Results for a seed depend on these values: never renumber them."""

    LENGTHS = 0
    ARRIVALS = 1
    RECIPE = 2
    BLOCKS = 3
    ADAPTERS = 4


def generator(seed: int, stream: Stream) -> np.random.Generator:
    """Make the random generator of one stream of `seed`, a whole number of 0 or more. Raises WorkloadError."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise WorkloadError(f"a seed of {seed!r}: a seed is a whole number of 0 or more")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=(int(stream),))))


InverseCdf = Callable[[np.ndarray], np.ndarray]
LAST_LEVEL = 0.999
NORMAL_P90 = 1.2815515655446008  # the 90 % quantile of the standard normal distribution


def uniform(least: int, most: int) -> InverseCdf:
    """Draw whole numbers from `least` to `most`, equally likely."""
    return lambda level: (least + np.floor(level * (most - least + 1))).astype("i4")


def by_quantiles(levels: Sequence[float], lengths: Sequence[float]) -> InverseCdf:
    """Make the distribution with these quantiles: log-uniform between two of them, from 1 up to the last quantile."""
    return functools.partial(_by_quantiles, np.array([0.0, *levels]), np.log([1.0, *lengths]))


def lognormal_by_quantiles(p50: float, p90: float) -> InverseCdf:
    """Make the lognormal distribution with this median and 90 % quantile."""
    return functools.partial(_lognormal, p50, math.log(p90 / p50) / NORMAL_P90)


def lognormal_by_moments(mean: float, std: float) -> InverseCdf:
    """Make the lognormal distribution with this mean and standard deviation."""
    variance = math.log1p((std / mean) ** 2)
    return functools.partial(_lognormal, mean * math.exp(-variance / 2), math.sqrt(variance))


def gamma_by_moments(mean: float, std: float) -> InverseCdf:
    """Make the Gamma distribution with this mean and standard deviation."""
    shape = (mean / std) ** 2
    return functools.partial(_gamma, shape, mean / shape)


def _by_quantiles(levels: np.ndarray, logarithms: np.ndarray, level: np.ndarray) -> np.ndarray:
    return _tokens(np.exp(np.interp(level, levels, logarithms)))


def _lognormal(median: float, sigma: float, level: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri

    return _tokens(median * np.exp(sigma * ndtri(np.minimum(level, LAST_LEVEL))))


def _gamma(shape: float, scale: float, level: np.ndarray) -> np.ndarray:
    from scipy.special import gammaincinv

    return _tokens(scale * gammaincinv(shape, np.minimum(level, LAST_LEVEL)))


def _tokens(lengths: np.ndarray) -> np.ndarray:
    return np.maximum(np.rint(lengths), 1).astype("i4")
