"""The numbers of an observation: names, bounds and meanings, in the order of the array."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Field:
    """One number of an observation: dimensionless, from low to high.

    doc: its meaning, with the unit that it is divided by, or the function that maps it into its bounds.
    """

    name: str
    low: float
    high: float
    doc: str


@dataclass(frozen=True)
class Layout:
    """float32[size]: the numbers of the whole, then those of each slot, slot by slot.

    whole: name of the first part ("engine", "request"). slot: name of what a slot holds ("request", "engine").
    The first number of a slot is 1 if it is filled; the numbers of an empty slot are all 0.
    """

    whole: str
    whole_fields: tuple[Field, ...]
    slot: str = ""
    slot_fields: tuple[Field, ...] = ()
    slots: int = 0

    @property
    def size(self) -> int:
        return len(self.whole_fields) + self.slots * len(self.slot_fields)

    def __iter__(self) -> Iterator[tuple[str, Field]]:
        """Iterate over (full name, field) of every number; names: engine.queued, request[3].slack."""
        for field in self.whole_fields:
            yield f"{self.whole}.{field.name}", field
        for k in range(self.slots):
            for field in self.slot_fields:
                yield f"{self.slot}[{k}].{field.name}", field

    @property
    def low(self) -> np.ndarray:
        return np.array([field.low for _, field in self], "f4")

    @property
    def high(self) -> np.ndarray:
        return np.array([field.high for _, field in self], "f4")

    def parts(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        """Views of the last axis: {whole: float32[..., fields], slot: float32[..., slots, fields]}."""
        cut = len(self.whole_fields)
        parts = {self.whole: observation[..., :cut]}
        if self.slots:
            shape = (*observation.shape[:-1], self.slots, len(self.slot_fields))
            parts[self.slot] = observation[..., cut : self.size].reshape(shape)
        return parts
