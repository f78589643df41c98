"""What measures batches: an engine in this process, one behind an endpoint, or the operators of a model."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np

from servegym.adapters.profiling.design import Batch, Space


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A batch as it was run, and how long each repeat took.

    batch: BATCH array[1], of what really ran (the mean over repeats). seconds: float64[repeats]. parts: further
    columns.
    """

    batch: np.ndarray
    seconds: np.ndarray
    parts: dict[str, float] = dataclasses.field(default_factory=dict)


class Meter(Protocol):
    """Measures batches of a space."""

    space: Space

    def facts(self) -> dict[str, Any]:
        """What it measures: versions, device, dtype, clock, memory. For the record beside the table."""

    def warm_up(self) -> None:
        """Run once what would otherwise slow the first measurement."""

    def measure(self, batch: Batch, repeats: int) -> Measurement | None:
        """Run the batch `repeats` times. None: it could not be formed as designed."""

    def close(self) -> None:
        """Release its resources."""
