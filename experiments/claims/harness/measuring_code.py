"""What a measurement depends on: the code that a function reaches, found from the names it uses.

As `simulator.compilation.source_digest` does for kernels, but for any Python of servegym and the studies: functions,
classes with all their methods, and constants, which are what is written in capitals. Comments, docstrings and layout
have no part in it. Not reached is what is looked up by a name in a table that fills as modules are imported. Policies,
devices and workloads are left out: where their code differs, the digests of `identity` and those of workloads do.
"""

import ast
import dataclasses
import functools
import hashlib
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from servegym.simulator.compilation.digests import PACKAGE, plain_function, reached_values

PACKAGES = (PACKAGE, "experiments.")
CONSTANTS = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
LEFT_OUT = tuple(f"{PACKAGE}{package}." for package in ("baselines", "latency_models", "traces"))
DOCUMENTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def code_digest(function: Callable) -> str:
    """Digest of the code of a function, or of a `functools.partial`, and of all that it reaches here."""
    texts = [f"{name}\n{text}" for name, text in sorted(reached_code(function).items())]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def reached_code(function: Callable) -> dict[str, str]:
    """By name: the text of the function and of what it reaches here, and the constants that these use."""
    found: dict[str, str] = {}
    seen: set[Any] = set()
    if isinstance(function, functools.partial):
        found["arguments"] = repr((function.args, sorted(function.keywords.items())))
        function = function.func
    todo: list[Any] = [plain_function(function) or type(function)]
    while todo:
        code = todo.pop()
        if code in seen:
            continue
        seen.add(code)
        of_code = f"{code.__module__}.{code.__qualname__}"
        found[of_code] = source_text(code)
        for name, value in _used(code):
            constants: list[str] = []
            todo += _code_in(value, constants)
            if constants:
                found[f"{of_code}: {name}"] = " ".join(constants)
    return found


@functools.cache
def source_text(code: Any) -> str:
    """The source of a function or a class without comments, docstrings and layout; empty: there is none to read."""
    return ast.unparse(_tree(code))


@functools.cache
def _tree(code: Any) -> ast.Module:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError):  # made by a decorator; a lambda, in the middle of an expression
        return ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _used(code: Any) -> Iterator[tuple[str, Any]]:
    """What a function uses, by name; of a class, its bases and methods."""
    if isinstance(code, type):
        yield from ((base.__name__, base) for base in code.__bases__)
        for name, value in vars(code).items():
            # Of properties, cached ones, static and class methods it is the function that counts.
            parts = (getattr(value, part, None) for part in ("fget", "func", "__func__"))
            yield from ((name, part) for part in (value, *parts) if plain_function(part) is not None)
        return
    for name, value in reached_values(code):
        # What else has a name in lower case, or is in others' modules (`sys`), depends on what ran before.
        module, _, last = name.rpartition(".")
        of_others = module and not code.__globals__[module.partition(".")[0]].__name__.startswith(PACKAGES)
        is_code = isinstance(value, type) or plain_function(value) is not None
        if not of_others and (is_code or last.isupper()):
            yield name, value
    yield from _imported_within(code)


def _imported_within(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function imports from this package when it is called."""
    for node in ast.walk(_tree(function)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(PACKAGES):
            module = importlib.import_module(str(node.module))
            found = ((alias.name, getattr(module, alias.name, None)) for alias in node.names)
            # A module, which is an attribute only once it has been imported, is no code by itself.
            yield from ((name, value) for name, value in found if not isinstance(value, ModuleType | None))


def _code_in(value: Any, constants: list[str]) -> list[Any]:
    """The functions and classes of this package in a value; its constants are appended to `constants`."""
    code = value if isinstance(value, type) else plain_function(value)
    if code is not None:
        return [code] if _counts(code) else []
    if isinstance(value, CONSTANTS):
        constants.append(repr(value))
        return []
    if isinstance(value, np.ndarray):
        constants.append(f"{value.dtype!r} {value.shape} {value.tobytes().hex()}")
        return []
    parts: list[Any] = []
    if isinstance(value, functools.partial):
        parts = [value.func, value.args, value.keywords]
    elif isinstance(value, dict):
        parts = [part for pair in value.items() for part in pair]
    elif isinstance(value, (tuple, list)):
        parts = list(value)
    elif isinstance(value, (set, frozenset)):
        parts = sorted(value, key=repr)
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    found = [code for part in parts for code in _code_in(part, constants)]
    return [type(value), *found] if _counts(type(value)) else found


def _counts(code: Any) -> bool:
    return code.__module__.startswith(PACKAGES) and not code.__module__.startswith(LEFT_OUT)
