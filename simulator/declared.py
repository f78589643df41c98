"""What of its state a policy uses, read off its code: a table that it has not declared is not there to be used."""

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

from servegym.simulator.compilation import Compiled, reached_kernels

# Tables of `signatures.State`, and how a `StateFields` declares each.
DECLARED_BY = {
    "requests": "request=(...)",
    "engines": "engine=(...)",
    "clients": "client=(...)",
    "by_client": "by_client=True",
    "by_application": "by_application=True",
    "tasks": "tasks=True",
}
STATE_ARGUMENT = {"router": 4, "scaler": 3}  # theirs is one table, engines


@functools.cache
def state_uses(function: Compiled, kind: str) -> dict[str, str]:
    """The tables of its state that a policy's function, or a kernel it calls, names; and where first."""
    if kind in STATE_ARGUMENT:
        code = function.py_func.__code__
        line = _reading(function.py_func, code.co_varnames[STATE_ARGUMENT[kind]])
        return {"engines": _where(code, line)} if line else {}
    found: dict[str, str] = {}
    for kernel in reached_kernels(function):
        for _, line, attribute in _locals_read(kernel.__code__):
            if attribute in DECLARED_BY:
                found.setdefault(attribute, _where(kernel.__code__, line))
    return found


def _reading(function: Any, name: str) -> int:
    """The line where a function reads its argument; 0: nowhere. Handed to a kernel it is read if that reads it."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except OSError:  # typed at a prompt
        return next((line for names, line, _ in _locals_read(function.__code__) if name in names), 0)
    handed = set()
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        kernel: Any = getattr(function.__globals__.get(call.func.id), "py_func", None)
        for place, argument in enumerate(call.args):
            whole = isinstance(argument, ast.Name) and argument.id == name and kernel not in (None, function)
            if whole and not _reading(kernel, kernel.__code__.co_varnames[place]):
                handed.add(argument)
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name
             and isinstance(node.ctx, ast.Load) and node not in handed]  # fmt: skip
    return function.__code__.co_firstlineno - 1 + min(lines) if lines else 0


def _locals_read(code: python_types.CodeType) -> Iterator[tuple[tuple[str, ...], int, str]]:
    """Of each reading of local variables: their names, the line, and the attribute that is then read of the last."""
    instructions, line = list(dis.get_instructions(code)), 0
    for instruction, following in zip(instructions, [*instructions[1:], None], strict=True):
        line = (instruction.positions.lineno if instruction.positions else None) or line
        if instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            is_attribute = following is not None and following.opname == "LOAD_ATTR"
            yield names, line, str(following.argval) if following is not None and is_attribute else ""


def _where(code: python_types.CodeType, line: int) -> str:
    return f"{Path(code.co_filename).name}, line {line}"
