"""Strict JSON: each key once, and what a JSON Schema says of it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

LARGEST_INTEGER = 2**63  # the limit of other JSON readers
LONGEST_MESSAGE = 400
MOST_ERRORS = 100  # of a schema; the one to report is the best of these


class Malformed(ValueError):
    """A text that is not JSON or YAML, or has a duplicate key; the message is one line that says where."""


def parse_json(text: str) -> Any:
    """Return what a JSON text says. Raises Malformed."""
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


def schema_problem(document: Any, schema: Mapping[str, Any], name: str) -> str:
    """Describe what is wrong with a JSON document: a number that is not finite or too large for other readers, or a
    part that a JSON Schema does not allow; "": nothing. name: of the schema's file."""
    import jsonschema

    left: list[tuple[str, Any]] = [("", document)]
    while left:
        at, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{at}.{key}" if at else str(key), item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            left += [(f"{at}[{index}]", item) for index, item in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            return f"{at:.99} is {value}; it should be a finite number"
        elif isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
            return f"{at:.99} is a whole number of {value.bit_length()} bits; 63 are the most"
    try:
        errors = jsonschema.Draft202012Validator(schema).iter_errors(document)
        error = jsonschema.exceptions.best_match(itertools.islice(errors, MOST_ERRORS))
    except RecursionError:
        return "it is nested too deep"
    if error is None:
        return ""
    at = ".".join(str(part) for part in error.absolute_path)
    message = f"{at:.99}: {error.message}" if at else error.message
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[: LONGEST_MESSAGE - 3]}..."
    return f"{message} (see {name})"
