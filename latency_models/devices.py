"""Power and price of devices, as far as there is a source: devices.json."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

from servegym.simulator.inputs.costs import Costs

FILE = resources.files("servegym.latency_models") / "devices.json"
FIELDS = ("price_per_hour", "idle_w", "busy_w", "most_w")


@functools.cache
def devices() -> dict[str, dict[str, Any]]:
    """By hardware as profiles name it: each of `FIELDS`, None where it is not known, else with its `..._source`."""
    known: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["devices"]
    return known


def costs_of(hardware: str, count: int) -> Costs:
    """What is known of an engine on so many devices."""
    one = devices().get(hardware, {})
    return Costs(**{name: count * one[name] for name in FIELDS if one.get(name) is not None})
