"""Flags and request fields of xLLM's versions, as recorded from its source in flags.json."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
import math
from collections.abc import Mapping
from typing import Any

from servegym.errors import XllmError

FILE = "flags.json"
INT32 = 2**31 - 1
Value = bool | int | float | str


@dataclasses.dataclass(frozen=True)
class Entry:
    """A flag, or a field of a request. type: bool, int32, double or string. default: None if none is recorded."""

    name: str
    type: str
    default: Value | None = None

    def check(self, value: Any, where: str) -> Value:
        """Return `value` if it has this type; else raise XllmError."""
        fits = {
            "bool": isinstance(value, bool),
            "int32": isinstance(value, int) and not isinstance(value, bool) and abs(value) <= INT32,
            "double": isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
            "string": isinstance(value, str),
        }
        if not fits.get(self.type, False):
            raise XllmError(f"{where}: {self.name} is {value!r}; xLLM takes {self.type}")
        checked: Value = value
        return checked


@dataclasses.dataclass(frozen=True)
class Version:
    """The flags and request fields of one version.

    number: "0.10". read_from: sources of the recording. slide_batching: flags that select this scheduler.
    """

    number: str
    read_from: str
    flags: Mapping[str, Entry]
    request_fields: Mapping[str, Entry]
    slide_batching: Mapping[str, Value]

    def check_flags(self, flags: Mapping[str, Any]) -> dict[str, Value]:
        """Return the flags if the version has all of them and values have their types; else raise XllmError."""
        return _checked(flags, self.flags, f"xLLM {self.number}", "flag")

    def check_fields(self, fields: Mapping[str, Any]) -> dict[str, Value]:
        """Return the fields of a request if the version has all of them; else raise XllmError."""
        return _checked(fields, self.request_fields, f"a request to xLLM {self.number}", "field")


def version_numbers() -> list[str]:
    """List the versions whose flags are recorded, oldest first."""
    return list(_recorded())


def load_version(number: str) -> Version:
    """Load the recorded flags of a version, "0.10" or the same as "0.10.2" or "v0.10". Raises XllmError."""
    wanted = ".".join(number.removeprefix("v").split(".")[:2])
    if wanted not in _recorded():
        raise XllmError(f"xLLM {number}: its flags are not recorded; those of {', '.join(_recorded())} are")
    part = _recorded()[wanted]
    return Version(
        wanted,
        part["read_from"],
        {flag["name"]: Entry(flag["name"], flag["type"], flag["default"]) for flag in part["flags"]},
        {field["name"]: Entry(field["name"], field["type"]) for field in part["request_fields"]},
        part["slide_batching"]["flags"],
    )


@functools.cache
def _recorded() -> dict[str, Any]:
    text = importlib.resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    versions: dict[str, Any] = json.loads(text)["versions"]
    return versions


def _checked(given: Mapping[str, Any], known: Mapping[str, Entry], where: str, what: str) -> dict[str, Value]:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise XllmError(f"{where} has no {what} {unknown[0]!r} (see {FILE})")
    return {name: known[name].check(value, where) for name, value in given.items()}
