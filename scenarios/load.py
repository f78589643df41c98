"""Load: an arrival rate relative to what the deployment can serve of a trace."""

from __future__ import annotations

import math

from servegym.errors import SpecError

LOADS = {"light": 0.3, "medium": 0.7, "high": 1.0, "overload": 1.4}


def parse_load(text: str) -> float:
    """A load from its name in `LOADS` or a number above 0. Raises SpecError."""
    try:
        load = LOADS[text] if text in LOADS else float(text)
    except ValueError:
        load = math.nan
    if not 0 < load < math.inf:
        names = ", ".join(f"{name} ({value:g})" for name, value in LOADS.items())
        raise SpecError(f"a load of {text!r}: it should be a number above 0, or one of {names}")
    return load


def load_title(load: float) -> str:
    """The load as a reader knows it: 0.7 (medium)."""
    names = [name for name, value in LOADS.items() if value == load]
    return f"{load:.4g} ({names[0]})" if names else f"{load:.4g}"
