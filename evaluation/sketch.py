"""Quantiles of a stream of numbers: a histogram with bins whose width is about proportional to their numbers."""

from __future__ import annotations

import numpy as np

from servegym.simulator.runs.figures import QUANTILES

BINS_PER_OCTAVE = 256
LOWEST, OCTAVES = -20, 60  # from 2^-20: a microsecond; what is outside counts as the first or the last
ERROR = 0.5 / BINS_PER_OCTAVE  # most that a quantile is off, of the number that has its rank


class Sketch:
    """Finite numbers of 0 or more, counted."""

    def __init__(self) -> None:
        self.counts = np.zeros(OCTAVES * BINS_PER_OCTAVE, "i8")

    def add(self, values: np.ndarray) -> None:
        fraction, exponent = np.frexp(values[np.isfinite(values)])  # fraction from 0.5 on, 2^exponent times it
        bins = (exponent - 1 - LOWEST) * BINS_PER_OCTAVE + ((2 * fraction - 1) * BINS_PER_OCTAVE).astype("i8")
        self.counts += np.bincount(np.clip(bins, 0, len(self.counts) - 1), minlength=len(self.counts))

    def quantiles(self) -> dict[str, float | None]:
        """p50, p90, p99, within `ERROR` of the number of that rank; None where there are no numbers."""
        total = int(self.counts.sum())
        if not total:
            return dict.fromkeys(QUANTILES)
        reached = np.cumsum(self.counts)
        return {name: middle(int(np.searchsorted(reached, q * total))) for name, q in QUANTILES.items()}


def middle(index: int) -> float:
    """The middle of a bin."""
    octave, part = divmod(index, BINS_PER_OCTAVE)
    return float(2.0 ** (octave + LOWEST) * (1 + (part + 0.5) / BINS_PER_OCTAVE))
