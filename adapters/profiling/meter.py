"""The interface of meters: an engine in this process, one behind an endpoint, or the operators of a model."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np

from servegym.adapters.profiling.design import Batch, Space


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The measurement of a batch.

    batch: BATCH array[1] of what ran, the mean over repeats. seconds: float64[repeats]. parts: further columns.
    """

    batch: np.ndarray
    seconds: np.ndarray
    parts: dict[str, float] = dataclasses.field(default_factory=dict)


class Meter(Protocol):
    """Measures batches of a space."""

    space: Space

    def facts(self) -> dict[str, Any]:
        """Versions, device, dtype, clock and memory, for the record beside the table."""

    def warm_up(self) -> None:
        """Do whatever would slow the first measurement, such as allocating memory."""

    def measure(self, batch: Batch, repeats: int) -> Measurement | None:
        """Run the batch `repeats` times and measure it; None: the engine could not be made to form it."""

    def close(self) -> None:
        """Release its resources."""
