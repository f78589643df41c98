"""A check: a number measured over seeds, the range a hypothesis expects it in, and what the two say of each other."""

import dataclasses
import functools
import math

import numpy as np

from servegym.evaluation.intervals import Interval, student_interval

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
IN_PART = "in part"

Verdict = bool | str  # True, False or IN_PART


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers above low and below high."""

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"< {self.high:g}"
        if math.isinf(self.high):
            return f"> {self.low:g}"
        return f"{self.low:g} to {self.high:g}"

    def verdict(self, interval: Interval) -> str:
        """HOLDS when the whole interval is inside, FAILS when it is wholly outside, else UNDECIDED."""
        if math.isnan(interval.low):
            return UNDECIDED
        if self.low < interval.low and interval.high < self.high:
            return HOLDS
        return FAILS if interval.high <= self.low or interval.low >= self.high else UNDECIDED


ABOVE_0, BELOW_0 = Range(low=0), Range(high=0)


@dataclasses.dataclass(frozen=True)
class Check:
    """One measurable part of a hypothesis in one setting.

    name: what is measured, in words. values: one a seed; NaN where a run does not have it. expected: where the
    hypothesis wants it. examines: empty for a part of the claim; else the other way of looking at it that this check
    tries, to explain a claim that fails. Such a check has no say in the verdict.
    """

    name: str
    values: np.ndarray
    expected: Range
    examines: str = ""

    @functools.cached_property
    def interval(self) -> Interval:
        """Mean and 95 % interval of the seeds that have a value."""
        known = self.values[np.isfinite(self.values)]
        return student_interval(known) if len(known) else Interval(math.nan, math.nan, math.nan)

    @property
    def missing(self) -> int:
        """Seeds without a value."""
        return int((~np.isfinite(self.values)).sum())

    @property
    def distance(self) -> float:
        """How many halves of the interval the mean is inside the nearest limit of the range; below 0: outside.

        NaN where there is no interval.
        """
        if self.missing or not self.interval.has_width:
            return math.nan
        mean, expected = self.interval.mean, self.expected
        return min(mean - expected.low, expected.high - mean) / self.interval.half_width

    @property
    def verdict(self) -> str:
        """That of the expected range (`Range.verdict`); FAILS when a seed has no value."""
        return FAILS if self.missing else self.expected.verdict(self.interval)


def verdict_of(checks: list[Check]) -> Verdict:
    """True when every part of the claim holds, False when none does, else IN_PART. Undecided is not held."""
    return joined([check.verdict == HOLDS for check in checks if not check.examines])


def joined(verdicts: list[Verdict] | list[bool]) -> Verdict:
    """The verdict of several: True or False when they all are, else IN_PART."""
    if all(verdict is True for verdict in verdicts):
        return True
    if all(verdict is False for verdict in verdicts):
        return False
    return IN_PART
