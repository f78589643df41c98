"""Numbers that are drawn for each scenario: one of several, or one of a range."""

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
    """Numbers from low to high, drawn log-uniformly: 0.5 to 1 is as likely as 1 to 2."""

    low: float
    high: float

    def __post_init__(self) -> None:
        numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (self.low, self.high))
        if not numbers or not 0 < self.low <= self.high < math.inf:
            raise SpecError(f"a range from {self.low!r} to {self.high!r}; it should be above 0, finite and ascending")

    def draw(self, rng: np.random.Generator) -> float:
        number = self.low * (self.high / self.low) ** rng.random()
        return min(max(number, self.low), self.high)


Names = str | tuple[str, ...]
Numbers = float | tuple[float, ...] | Range  # one number, one of several, or one of a range


def draw(rng: np.random.Generator, numbers: Numbers) -> float:
    if isinstance(numbers, Range):
        return numbers.draw(rng)
    return float(choose(rng, numbers)) if isinstance(numbers, tuple) else float(numbers)


def choose(rng: np.random.Generator, items: tuple[Item, ...]) -> Item:
    """Draw one of the items, all equally likely. A single item is returned without a draw."""
    return items[0] if len(items) == 1 else items[int(rng.integers(len(items)))]


def listed(value: Any, name: str = "a value") -> tuple[Any, ...]:
    """Convert the value of field `name`, or several, to a tuple. Raises SpecError for a range, which has no list."""
    if isinstance(value, Range):
        low, high = f"{value.low:g}", f"{value.high:g}"
        option = f"--{name.removesuffix('_per_s').replace('_', '-')}"
        raise SpecError(
            f"{name} is a range from {low} to {high}; here it should be values, such as {low}, {high} ({option} {low} "
            f"{option} {high})"
        )
    return value if isinstance(value, tuple) else () if value is None else (value,)
