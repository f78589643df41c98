"""Numbers that are drawn anew for each episode."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from servegym.envs.errors import EnvError

Item = TypeVar("Item")


class ScenarioError(EnvError):
    """A source of scenarios that cannot be."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from low to high, drawn log-uniformly: as many between 0.5 and 1 as between 1 and 2."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise ScenarioError(f"a range from {self.low} to {self.high}; it should be above 0, finite and ascending")

    def draw(self, rng: np.random.Generator) -> float:
        number = self.low * (self.high / self.low) ** rng.random()
        return min(max(number, self.low), self.high)


Numbers = float | tuple[float, ...] | Range  # one number, one of several, or one of a range


def draw(rng: np.random.Generator, numbers: Numbers) -> float:
    """One of the numbers."""
    if isinstance(numbers, Range):
        return numbers.draw(rng)
    return float(choose(rng, numbers)) if isinstance(numbers, tuple) else float(numbers)


def choose(rng: np.random.Generator, items: tuple[Item, ...]) -> Item:
    """One of the items, each as likely. Of one item, that: nothing is drawn."""
    return items[0] if len(items) == 1 else items[int(rng.integers(len(items)))]


def check_numbers(name: str, numbers: Any) -> None:
    """Raise ScenarioError unless these are `Numbers` above 0."""
    if isinstance(numbers, Range):
        return
    listed = numbers if isinstance(numbers, tuple) else (numbers,)
    if not listed or not all(_is_number(number) and 0 < number < math.inf for number in listed):
        raise ScenarioError(f"{name} is {numbers!r}; it should be a number above 0, a tuple of such, or a Range")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def numbers_from_json(name: str, value: Any) -> Any:
    """`Numbers` from JSON: a number, a list of them, or {"low": ..., "high": ...}. Raises ScenarioError."""
    if isinstance(value, Mapping):
        if set(value) != {"low", "high"}:
            raise ScenarioError(f"{name} has {', '.join(map(str, value)) or 'nothing'}; a range has low and high")
        check_numbers(name, (value["low"], value["high"]))
        return Range(value["low"], value["high"])
    return tuple(value) if isinstance(value, list) else value
