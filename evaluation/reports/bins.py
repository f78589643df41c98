"""Time cut into equal bins, and what happened in each: a run has far more events than a picture has columns."""

from __future__ import annotations

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Bins:
    """`count` bins of `width_s` seconds from time 0, the last of which is cut off at the run's end, `span_s`."""

    width_s: float
    count: int
    span_s: float

    @classmethod
    def over(cls, span_s: float, most: int) -> Bins:
        """At most `most` bins over a run; their width is 1, 2 or 5 times a power of ten seconds."""
        least_s = span_s / most if span_s > 0 else 1.0
        power = 10.0 ** math.floor(math.log10(least_s))
        width_s = next(step * power for step in (1, 2, 5, 10) if step * power >= least_s)
        count = max(1, math.ceil(span_s / width_s - 1e-9))  # no extra bin for a rounding error
        return cls(width_s, count, span_s if span_s > 0 else width_s)

    @property
    def edges_s(self) -> np.ndarray:
        """float64[count + 1]"""
        return np.r_[self.width_s * np.arange(self.count), self.span_s]

    def rates(self, time_s: np.ndarray, value: np.ndarray) -> np.ndarray:
        """float64[count]: the sum of what happened at instants, per second.

        An instant on an edge belongs to the later bin, the end of the run to the last. The last bin counts as whole:
        a sliver at the end of a run would otherwise show a spike instead of a rate.
        """
        place = np.minimum((time_s / self.width_s).astype("i8"), self.count - 1)
        return np.bincount(place, value, self.count) / self.width_s

    def seconds(self, start_s: np.ndarray, end_s: np.ndarray, value: np.ndarray | float = 1.0) -> np.ndarray:
        """float64[count]: the integral over each bin of spans, each with a value from its start to its end.

        Spans may overlap: their values add up.
        """
        value = np.broadcast_to(value, start_s.shape)
        return np.diff(_integral(start_s, value, self.edges_s) - _integral(end_s, value, self.edges_s))

    def means(self, start_s: np.ndarray, end_s: np.ndarray, value: np.ndarray | float = 1.0) -> np.ndarray:
        """float64[count]: the mean over the time of a bin of the sum of all spans."""
        return self.seconds(start_s, end_s, value) / np.diff(self.edges_s)


def _integral(since_s: np.ndarray, value: np.ndarray, until_s: np.ndarray) -> np.ndarray:
    """For each time of `until_s`, the integral up to it of steps of `value` that begin at `since_s` and never end."""
    order = np.argsort(since_s)
    begun = np.searchsorted(since_s[order], until_s, "right")
    height = np.r_[0.0, np.cumsum(value[order])][begun]
    moment = np.r_[0.0, np.cumsum((value * since_s)[order])][begun]
    return height * until_s - moment
