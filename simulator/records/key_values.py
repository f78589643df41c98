"""Settings written as "key=value,key=value" or as a mapping: how they are declared, read and checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.records.types import LATEST_S

YES_OR_NO = {"yes": True, "no": False}
NONE = "none"  # the text for a setting that is switched off


def described(default: Any, help: str, unit: str = "") -> Any:
    """Return a dataclass field with a help text and a unit, for --help and the pages."""
    return dataclasses.field(default=default, metadata={"help": help, "unit": unit})


def key_values(
    pairs: Iterable[str], named: str, keys: Iterable[str], error: type[Exception], remark: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield key and value of each "key=value". named: what they belong to; remark: the end of an error."""
    keys = tuple(keys)
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or key not in keys:
            raise error(f"{named}: {pair!r} should be key=value, the key one of {', '.join(keys)}{remark}")
        yield key, value


def check_keys(given: Mapping[str, Any], named: str, keys: Iterable[str]) -> None:
    """Raise DeploymentError for a key that is not in `keys`."""
    keys = tuple(keys)
    if unknown := [key for key in given if key not in keys]:
        raise DeploymentError(f"{named}: unknown {unknown[0]!r}; it has {', '.join(keys)}")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def check_time(named: str, name: str, value: Any) -> None:
    """Raise DeploymentError for a value that is not a time from 0 to LATEST_S."""
    if not is_number(value) or not 0 <= value <= LATEST_S:
        raise DeploymentError(f"{named}: {name} is {value!r}; it should be a time from 0 to {LATEST_S:g} s")


def check_flag(named: str, name: str, value: Any) -> None:
    """Raise DeploymentError for a value that is neither true nor false."""
    if not isinstance(value, bool | np.bool_):
        raise DeploymentError(f"{named}: {name} is {value!r}; it should be true or false")
