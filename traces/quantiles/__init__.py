"""Reads the tables from which families are drawn: lengths, clients and sessions of public traces."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

LENGTHS, CLIENTS, SESSIONS = ".json", ".clients.json", ".sessions.json"  # endings of the kinds of tables


def families_with(ending: str) -> list[str]:
    """List the families that have a table of this kind, sorted."""
    parted = (file.name.partition(".") for file in resources.files(__name__).iterdir())
    return sorted(name for name, dot, rest in parted if dot + rest == ending)


@functools.cache
def table_of(family: str, ending: str) -> dict[str, Any]:
    """Read a family's table of this kind."""
    table: dict[str, Any] = json.loads((resources.files(__name__) / f"{family}{ending}").read_text("utf-8"))
    return table


def origin_of(table: dict[str, Any]) -> dict[str, Any]:
    """Return where a table's figures are from, for the provenance of traces."""
    return {key: table[key] for key in ("source", "commit", "licence", "changes")}
