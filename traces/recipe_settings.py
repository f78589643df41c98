"""Reading the settings of recipes, such as "70-15-15", and drawing classes by shares."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from servegym.errors import WorkloadError
from servegym.traces.arrivals import checked_positive


def drawn(level: np.ndarray, shares: np.ndarray, met: np.ndarray) -> np.ndarray:
    """Draw an index for each request by `shares` among the choices that are `met`; the last index if none is.

    level: uniform numbers (requests,). met: bool (choices,) or (requests, choices).
    """
    weights = np.where(met, shares, 0.0)
    weights = np.where(weights.any(axis=-1, keepdims=True), weights, np.arange(len(shares)) == len(shares) - 1)
    ends = np.cumsum(weights, axis=-1)
    return (level[:, None] * ends[..., -1:] >= ends[..., :-1]).sum(axis=-1)


def _numbers(text: str, what: str) -> list[float]:
    """Return the numbers of "70-15-15"."""
    try:
        return [float(number) for number in text.split("-")]
    except ValueError:
        raise WorkloadError(f"{what} is {text!r}; it should be numbers with - between them, such as 70-15-15") from None


def of_classes(text: str, what: str, classes: Sequence[str]) -> dict[str, float]:
    """Return the number above 0 of each class."""
    numbers = _numbers(text, what)
    if len(numbers) != len(classes):
        raise WorkloadError(f"{what} is {text!r}; it should be {len(classes)} numbers, of {', '.join(classes)}")
    return {name: checked_positive(number, what) for name, number in zip(classes, numbers, strict=True)}


def ascending(text: str, what: str) -> list[float]:
    numbers = [checked_positive(number, what) for number in _numbers(text, what)]
    if any(later <= number for number, later in itertools.pairwise(numbers)):
        raise WorkloadError(f"{what} is {text!r}; it should ascend")
    return numbers


def shares_of(text: str, what: str, classes: Sequence[str]) -> np.ndarray:
    """float64[classes]: the numbers of `text`, one for each class, divided by their sum."""
    numbers = np.array(_numbers(text, what))
    right = f"it should be {len(classes)} numbers of 0 or more, not all 0: parts for {', '.join(classes)}"
    if len(numbers) != len(classes) or not ((numbers >= 0) & (numbers < np.inf)).all() or not numbers.any():
        raise WorkloadError(f"{what} is {text!r}; {right}")
    return numbers


def checked_share(value: float, what: str) -> float:
    if not 0 <= value <= 1:
        raise WorkloadError(f"{what} is {value}; it should be 0 to 1")
    return value
