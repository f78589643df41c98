"""Numbers told as "key=value,key=value" or as a mapping: how their fields are declared and checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.records.types import LATEST_S

YES_OR_NO = {"yes": True, "no": False}
NONE = "none"  # where a text says that there is nothing of the kind


def described(default: Any, help: str, unit: str = "") -> Any:
    """A field of a dataclass with what it is, for help and documents."""
    return dataclasses.field(default=default, metadata={"help": help, "unit": unit})


def key_values(
    pairs: Iterable[str], named: str, keys: Iterable[str], error: type[Exception], remark: str = ""
) -> Iterator[tuple[str, str]]:
    """Key and value of each pair. named: what they are of, for the error, which ends with the remark."""
    keys = tuple(keys)
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or key not in keys:
            raise error(f"{named}: {pair!r} should be key=value, the key one of {', '.join(keys)}{remark}")
        yield key, value


def check_keys(given: Mapping[str, Any], named: str, keys: Iterable[str]) -> None:
    """Raises DeploymentError for a key that is none of these."""
    keys = tuple(keys)
    if strange := [key for key in given if key not in keys]:
        raise DeploymentError(f"{named}: unknown {strange[0]!r}; it has {', '.join(keys)}")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def check_time(named: str, name: str, value: Any) -> None:
    """Raises DeploymentError for what is no time, or too long."""
    if not is_number(value) or not 0 <= value <= LATEST_S:
        raise DeploymentError(f"{named}: {name} is {value!r}; it should be a time from 0 to {LATEST_S:g} s")


def check_flag(named: str, name: str, value: Any) -> None:
    """Raises DeploymentError for what is not true or false."""
    if not isinstance(value, bool | np.bool_):
        raise DeploymentError(f"{named}: {name} is {value!r}; it should be true or false")
