"""The single definition of a spec's field: kind, bounds and unit, and its name on the command line and in documents."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

# Kinds of values. Of those in `SEVERAL` a list may stand for one value, of `NUMERIC` a range too.
NAME, POLICY, NUMBER, WHOLE, LOAD, CHOICE = "name", "policy", "number", "whole", "load", "choice"
FLAG, GAIN, PREDICTOR, CORRECTION = "flag", "gain", "predictor", "correction"
INCIDENTS, LOAD_PROFILE, POOLS, WINDOW = "incidents", "load profile", "pools", "window"
FRONT_END, SPECULATION, COLUMNS = "front end", "speculation", "columns"
NUMERIC = (NUMBER, WHOLE, LOAD)
POLICY_METAVAR = "NAME[:key=value,...]"
SEVERAL = (NAME, POLICY, *NUMERIC)
# The order of draws is part of what a seed means; other fields follow in their own order. A sample's first request is
# drawn behind `requests` (sampling.py).
EARLY = ("trace", "slo", "device", "requests")
FIRST_DRAWN = (*EARLY, "load", "rate_per_s", "slo_scale", "cv", "load_profile")


@dataclasses.dataclass(frozen=True)
class Option:
    """A field.

    kind: of its values. least, most: bounds of allowed values (most: inf allows inf too); above: a bound below all of
    them. choices: of kind `CHOICE`. help, unit: for people. name: on the command line; empty: the field's own. metavar:
    what stands for the value there. shown: the default in words; empty: the value. first: one of those most people
    need. optional: it may be None.
    """

    kind: str
    help: str
    unit: str = ""
    name: str = ""
    metavar: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    shown: str = ""
    first: bool = False
    optional: bool = False

    @property
    def allowed_text(self) -> str:
        """What values are allowed, in words."""
        if self.kind == CHOICE:
            return f"one of {', '.join(self.choices)}"
        what = {WHOLE: "a whole number", NUMBER: "a number", LOAD: "a number"}[self.kind]
        if self.above is not None:
            return f"{what} above {self.above:g}" + (" (inf: at once)" if self.most == math.inf else "")
        if self.most is not None:
            return f"{what} from {self.least or 0:g} to {self.most:g}"
        return f"{what} of {self.least or 0:g} or more"

    def allows(self, number: float) -> bool:
        """Whether a number is within the bounds."""
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (number <= self.most if self.most is not None else number < math.inf)
        )


def option(default: Any, kind: str, help: str, **more: Any) -> Any:
    """A field of a dataclass with its `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(kind, help, optional=default is None, **more)})


def options_of(kind: type) -> dict[str, Option]:
    """The options of the fields of a dataclass, by the fields' names."""
    return {field.name: field.metadata["option"] for field in dataclasses.fields(kind) if "option" in field.metadata}
