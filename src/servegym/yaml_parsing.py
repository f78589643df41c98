"""Strict YAML: each key once, and no value that YAML would silently read as something else."""

from __future__ import annotations

import re
from typing import Any

import yaml

from servegym.errors import without_underscores
from servegym.parsing import Malformed

DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")
WITH_EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
MERGE = "tag:yaml.org,2002:merge"
EXACT = 2**53  # whole numbers below are floats too


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
