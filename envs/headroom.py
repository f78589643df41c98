"""What there is to win in the episodes of an environment, as measured: envs/headroom.json."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("headroom.json")
DEFAULT = "default"  # what is drawn where no preset is named


@functools.cache
def measured() -> dict[str, Any]:
    """By environment and preset; and how it was measured."""
    found: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return found


def headroom_of(name: str) -> dict[str, dict[str, Any]]:
    """Mean TDG ratios in an environment, by preset: of random actions, of its base, of the best rule that ships, and of
    the best run that was found in each episode; empty for one that was not measured."""
    rooms: dict[str, dict[str, Any]] = measured()["environments"].get(name, {})
    return rooms
