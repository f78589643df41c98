"""Confidence intervals of a mean over few independent runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = 0.95
BETTER, SAME, WORSE, UNKNOWN = "better", "not distinguishable", "worse", "one run"
NO_WIDTH = 1e-12  # relative to the mean: rounding differences between equal runs


class Interval(NamedTuple):
    """A mean and the bounds of its confidence interval; the bounds are NaN when one value is all there is."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @classmethod
    def of(cls, row: pd.Series | Mapping[str, Any], name: str, scale: float = 1.0) -> Interval:
        """The columns name, name_ci_low and name_ci_high of a table's row; NaN for those that it has not."""
        found = (row.get(f"{name}{part}") for part in ("", "_ci_low", "_ci_high"))
        return cls(*(math.nan if value is None else scale * value for value in found))

    @classmethod
    def about(cls, mean: float, half_width: float) -> Interval:
        return cls(mean, mean - half_width, mean + half_width)

    def columns(self, name: str) -> dict[str, float]:
        return {name: self.mean, f"{name}_ci_low": self.low, f"{name}_ci_high": self.high}

    @property
    def has_width(self) -> bool:
        """Whether there is an interval: there is none for a single run, nor for runs that are all the same."""
        return self.high - self.low > NO_WIDTH * max(1.0, abs(self.mean))

    def text(self, style: str = ".4f", half_style: str | None = None) -> str:
        """mean ± half the width, as all tables and reports have it.

        A dash for a mean that is not known, the mean alone where there is no interval (`has_width`).
        """
        if math.isnan(self.mean):
            return "-"
        half = f" ± {self.half_width:{half_style or style.lstrip('+')}}" if self.has_width else ""
        return f"{self.mean:{no_minus_zero(style)}}{half}"

    def bounds(self, style: str = ".4f") -> str:
        """low to high; a dash where there is no interval."""
        style = no_minus_zero(style)
        return f"{self.low:{style}} to {self.high:{style}}" if self.has_width else "-"

    def in_words(self, style: str = "+.4f") -> str:
        """mean (low to high), where `text` has ±."""
        if math.isnan(self.mean):
            return "-"
        return f"{self.mean:{no_minus_zero(style)}}" + (f" ({self.bounds(style)})" if self.has_width else "")


def verdict(difference: Interval, higher: bool = True) -> str:
    """Return what the interval of a difference says: BETTER, SAME, WORSE or UNKNOWN. higher: whether more is better."""
    if math.isnan(difference.low):
        return UNKNOWN
    above, below = (BETTER, WORSE) if higher else (WORSE, BETTER)
    return above if difference.low > 0 else below if difference.high < 0 else SAME


def no_minus_zero(style: str) -> str:
    """The format of a number with decimals, but so that what rounds to 0 has no minus before it."""
    return style.replace(".", "z.", 1)


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
