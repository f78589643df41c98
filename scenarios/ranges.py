"""Numbers that are not fixed: one of several, or one of a range, drawn anew for each scenario."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, TypeVar

from servegym.errors import SpecError

if TYPE_CHECKING:
    import numpy as np

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from low to high, drawn log-uniformly: as many between 0.5 and 1 as between 1 and 2."""

    low: float
    high: float

    def __post_init__(self) -> None:
        numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (self.low, self.high))
        if not numbers or not 0 < self.low <= self.high < math.inf:
            raise SpecError(f"a range from {self.low} to {self.high}; it should be above 0, finite and ascending")

    def draw(self, rng: np.random.Generator) -> float:
        number = self.low * (self.high / self.low) ** rng.random()
        return min(max(number, self.low), self.high)


Names = str | tuple[str, ...]
Numbers = float | tuple[float, ...] | Range  # one number, one of several, or one of a range


def draw(rng: np.random.Generator, numbers: Numbers) -> float:
    """One of the numbers."""
    if isinstance(numbers, Range):
        return numbers.draw(rng)
    return float(choose(rng, numbers)) if isinstance(numbers, tuple) else float(numbers)


def choose(rng: np.random.Generator, items: tuple[Item, ...]) -> Item:
    """One of the items, equally likely. A single item is returned without a draw."""
    return items[0] if len(items) == 1 else items[int(rng.integers(len(items)))]


def listed(value: Any) -> tuple[Any, ...]:
    """A value, or several, as a tuple. Raises SpecError for a range, which cannot be enumerated."""
    if isinstance(value, Range):
        raise SpecError(f"a range from {value.low:g} to {value.high:g} where values are gone through; list them")
    return value if isinstance(value, tuple) else () if value is None else (value,)
