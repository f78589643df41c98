"""Confidence intervals of a mean over few independent runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean and the bounds of its confidence interval; the bounds are NaN when one value is all there is."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def in_words(self, style: str = "+.4f") -> str:
        """A difference and its bounds."""
        return f"{self.mean:{style}} ({self.low:{style}} to {self.high:{style}})"


def student_interval(values: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """Student's t interval of the mean: mean +- t(n - 1) * s / sqrt(n), of n values with standard deviation s.

    It takes the values for independent and about normal. NaN values give a mean and bounds of NaN.
    """
    from scipy.special import stdtrit  # the quantile of t; scipy.stats takes half a second to load

    array = np.asarray(values, "f8")
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean, math.nan, math.nan)
    quantile = stdtrit(len(array) - 1, (1 + confidence) / 2)
    half = float(quantile * array.std(ddof=1) / math.sqrt(len(array)))
    return Interval(mean, mean - half, mean + half)
