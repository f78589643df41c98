"""Strict YAML: values that YAML would silently read as something else are errors."""

from __future__ import annotations

import re
from typing import Any

import yaml

from servegym.parsing import Malformed

DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
MERGE = "tag:yaml.org,2002:merge"


def parse_yaml(text: str) -> Any:
    """What a YAML text says (JSON is YAML too): plain data, each key once, numbers in base 10. Raises Malformed."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise Malformed("it is nested too deeply") from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        raise Malformed(f"line {mark.line + 1}: {problem}" if mark else " ".join(str(error).split())) from None


class _Loader(yaml.SafeLoader):
    """PyYAML's for plain data, without what is never meant."""


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
    """In YAML 1.1 `010` is 8 and `1:30` is 90."""
    if not DECIMAL.fullmatch(node.value):
        raise yaml.constructor.ConstructorError(
            None, None, f"{node.value} is {loader.construct_yaml_int(node)} in YAML; write that, or a decimal number",
            node.start_mark,
        )  # fmt: skip
    return int(loader.construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)
