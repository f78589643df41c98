"""Strict JSON and YAML: each key once, and no value that YAML would silently read as something else."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from servegym.errors import without_underscores

DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")
WITH_EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
MERGE = "tag:yaml.org,2002:merge"
LARGEST_INTEGER = 2**63  # the limit of other JSON readers
EXACT = 2**53  # whole numbers below are floats too
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


def parse_yaml(text: str) -> Any:
    """Return what a YAML text says (JSON is YAML too): plain data, each key once, numbers in base 10. Raises
    Malformed."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise Malformed("it is nested too deeply") from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        raise Malformed(f"line {mark.line + 1}: {problem}" if mark else " ".join(str(error).split())) from None


class _Loader(yaml.SafeLoader):
    """PyYAML's for plain data, without what is never meant."""

    def construct_scalar(self, node: yaml.ScalarNode) -> Any:
        value = super().construct_scalar(node)
        if isinstance(value, str) and (why := without_underscores(value)):
            raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)
        return value


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) and key_node.tag != MERGE else None
        if key is not None and key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    """Convert a decimal number only: in YAML 1.1 `010` is 8 and `1:30` is 90."""
    number = int(loader.construct_yaml_int(node))
    if not DECIMAL.fullmatch(node.value):
        raise _otherwise(node, number)
    return number


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    """Convert a number with a point or an exponent; 1e3 is a whole number."""
    number = float(loader.construct_yaml_float(node))
    if ":" in node.value:
        raise _otherwise(node, number)
    is_whole = "e" in node.value.lower() and abs(number) < EXACT and number.is_integer()
    return int(number) if is_whole else number


def _otherwise(node: yaml.ScalarNode, number: float) -> yaml.YAMLError:
    why = f"{node.value} is {number} in YAML; write that, or a decimal number"
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_str)  # 2026-01-01 is no number
# PyYAML reads 1e3 and 1.5e3 as text: in YAML 1.1 a number has a point, and its exponent a sign.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", WITH_EXPONENT, list("-+.0123456789"))


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
