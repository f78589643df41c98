"""What a policy uses of what it can declare, read off its code, as tables that it does not declare are empty."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import textwrap
import types as python_types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servegym.simulator.compilation.digests import reached_kernels
from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.compilation.sources import source_of
from servegym.simulator.policies.parameters import Parameters
from servegym.simulator.policies.scratch import Scratch

# Tables of `signatures.State`, and how a `StateFields` declares each.
DECLARED_BY = {
    "requests": "request=(...)",
    "engines": "engine=(...)",
    "clients": "client=(...)",
    "by_client": "by_client=True",
    "by_application": "by_application=True",
    "tasks": "tasks=True",
}
CONTEXT, STATE = "context", "state"  # kinds of expressions


@functools.cache
def state_uses(function: Compiled, kind: str) -> dict[str, str]:
    """Return the state tables that a policy's function or its kernels use, each with the first place.

    A router or scaler has one table, "engines".
    """
    found: dict[str, str] = {}
    first = function.py_func.__code__.co_varnames[0]
    for table, code, line in _uses(function.py_func, {first: CONTEXT}, kind == "scheduler", set()):
        found.setdefault(table, _where(code, line))
    return found


@functools.cache
def declarations_read(function: Compiled) -> tuple[tuple[Parameters | Scratch, str], ...]:
    """Return the declarations that a policy's function or its kernels can read by name, each with the place."""
    found = []
    for kernel in reached_kernels(function):
        for name in kernel.__code__.co_names:
            value = kernel.__globals__.get(name)
            if isinstance(value, Parameters | Scratch):
                found.append((value, _where(kernel.__code__, kernel.__code__.co_firstlineno)))
    return tuple(found)


def reads_argument(function: Any, number: int) -> bool:
    """Return whether a function uses its argument at position `number`."""
    name = function.__code__.co_varnames[number]
    return any(name in _names_loaded(instruction) for instruction in dis.get_instructions(function.__code__))


def _names_loaded(instruction: dis.Instruction) -> tuple[str, ...]:
    if not instruction.opname.startswith("LOAD_"):
        return ()
    return instruction.argval if isinstance(instruction.argval, tuple) else (str(instruction.argval),)


Use = tuple[str, python_types.CodeType, int]


def _uses(kernel: Any, given: dict[str, str], has_tables: bool, seen: set[Any]) -> Iterator[Use]:
    """Yield (table, code, line) of each use in a kernel and those it calls. given: kinds of its arguments, by name."""
    key = (kernel, *sorted(given.items()))
    if key in seen:
        return
    seen.add(key)
    code = kernel.__code__
    try:
        tree = _tree(kernel)
    except OSError:  # no source, as when typed at a prompt
        yield from _uses_in_code(code, has_tables)
        return
    before = code.co_firstlineno - 1
    known = _locals(tree, given)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = _called(kernel, node.func)
            if called is not None:
                names = called.__code__.co_varnames
                handed = {names[i]: _kind(value, known) for i, value in enumerate(node.args)}
                handed |= {word.arg: _kind(word.value, known) for word in node.keywords if word.arg}
                handed = {name: what for name, what in handed.items() if what}
                if handed:
                    yield from _uses(called, handed, has_tables, seen)
        elif isinstance(node, ast.Attribute | ast.Subscript) and _kind(node.value, known) == STATE:
            table = node.attr if has_tables and isinstance(node, ast.Attribute) else "engines"
            if table in DECLARED_BY:
                yield table, code, before + node.lineno


@functools.cache
def _tree(kernel: Any) -> ast.AST:
    """Return the parsed source of a kernel. Raises OSError if it has none."""
    source = source_of(kernel)
    if source is None:
        raise OSError
    try:
        return ast.parse(textwrap.dedent(source))
    except SyntaxError:  # cut within a text behind the last line that runs
        return ast.parse(textwrap.dedent(inspect.getsource(kernel)))


def _locals(tree: ast.AST, given: dict[str, str]) -> dict[str, str]:
    """Return the kinds of names in a kernel: its arguments, and names to which their parts are assigned."""
    known = dict(given)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for to, value in pairs:
                if isinstance(to, ast.Name) and _kind(value, known):
                    known[to.id] = _kind(value, known)
    return known


def _kind(node: ast.expr, known: dict[str, str]) -> str:
    """Return the kind of an expression; "": neither."""
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.Attribute) and node.attr == "state" and _kind(node.value, known) == CONTEXT:
        return STATE
    return ""


def _called(kernel: Any, node: ast.expr) -> Any:
    """Return the Python function of the kernel that is called, by name or as module.name; None: no kernel."""
    value = None
    if isinstance(node, ast.Name):
        value = kernel.__globals__.get(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module = kernel.__globals__.get(node.value.id)
        value = getattr(module, node.attr, None) if isinstance(module, python_types.ModuleType) else None
    if isinstance(value, python_types.FunctionType):  # a kernel, where compilation is off
        return value
    return getattr(value, "py_func", None)


def _uses_in_code(code: python_types.CodeType, has_tables: bool) -> Iterator[Use]:
    """Yield the same as `_uses` for code without source; any name `state` counts as the context's."""
    before, line = "", 0
    for instruction in dis.get_instructions(code):
        line = (instruction.positions.lineno if instruction.positions else None) or line
        name = str(instruction.argval)
        if before == "state" and has_tables and instruction.opname == "LOAD_ATTR" and name in DECLARED_BY:
            yield name, code, line
        if not has_tables and instruction.opname == "LOAD_ATTR" and name == "state":
            yield "engines", code, line
        before = (_names_loaded(instruction) or ("",))[-1]


def _where(code: python_types.CodeType, line: int) -> str:
    return f"{Path(code.co_filename).name}, line {line}"
