"""Strict JSON: no duplicate keys, and no nesting too deep for the parser."""

from __future__ import annotations

import json
from typing import Any


class Malformed(ValueError):
    """A text that is not JSON or YAML, or has a duplicate key; the message is one line that says where."""


def parse_json(text: str) -> Any:
    """What a JSON text says. Raises Malformed."""
    try:
        return json.loads(text, object_pairs_hook=_without_doubles)
    except RecursionError:
        raise Malformed("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise Malformed(f"line {error.lineno} column {error.colno}: {error.msg}; is it cut off?") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise Malformed(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return found
