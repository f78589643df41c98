"""Definition of a spec's fields: kind, bounds, unit, help, and names on the command line and in documents."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

# Kinds of values. A field of a kind in `SEVERAL` may have a list of values, of `NUMERIC` also a range.
NAME, POLICY, NUMBER, WHOLE, LOAD, CHOICE = "name", "policy", "number", "whole", "load", "choice"
FLAG, GAIN, PREDICTOR, CORRECTION = "flag", "gain", "predictor", "correction"
INCIDENTS, LOAD_PROFILE, POOLS, WINDOW = "incidents", "load profile", "pools", "window"
FRONT_END, SPECULATION, COLUMNS = "front end", "speculation", "columns"
NUMERIC = (NUMBER, WHOLE, LOAD)
POLICY_METAVAR = "NAME[:key=value,...]"
SEVERAL = (NAME, POLICY, *NUMERIC)
# Scenarios for a seed depend on this order of draws; other fields follow in their own order. A sample's first request
# is drawn after `requests` (sampling.py).
EARLY = ("trace", "slo", "device", "requests")
FIRST_DRAWN = (*EARLY, "load", "rate_per_s", "slo_scale", "cv", "load_profile")


@dataclasses.dataclass(frozen=True)
class Option:
    """The definition of a field.

    kind: of its values. least, most: inclusive bounds (most inf allows inf); above: exclusive lower bound. choices: for
    kind `CHOICE`. name: of its option on the command line; empty: the field's name. metavar: of its option. shown: the
    default as the help shows it; empty: its value. first: shown under "Most used". optional: None is allowed.
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
        """Describe the allowed values."""
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
    """Make a field of a dataclass with its `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(kind, help, optional=default is None, **more)})


def options_of(kind: type) -> dict[str, Option]:
    """Return the options of the fields of a dataclass, by the fields' names."""
    return {field.name: field.metadata["option"] for field in dataclasses.fields(kind) if "option" in field.metadata}
