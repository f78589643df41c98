"""Formulas: trees of numbers, what is known of a request, and operations; as text, and as a program for `evaluate`.

    parsed("token_gain * left / max(exec_s, 0.001)")

Operations are those that every machine rounds alike, so that a formula gives the same bytes anywhere.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from servegym.baselines.learned.stack_machine import BINARY, CONSTANT, FEATURE, FEATURES, FIRST_OPERATION, OPERATIONS
from servegym.errors import PolicyError

NAMES = tuple(feature.name for feature in FEATURES)
INFIX = {"+": 1, "-": 1, "*": 2, "/": 2}  # operation: how strongly it binds
ATOM = 3
OF_AST = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
MOST_NODES = 255
LONGEST_TEXT = 8192  # characters


class Expression(NamedTuple):
    """what: an operation, the name of a feature, or "" for the number `value`. inputs: of an operation."""

    what: str
    value: float = 0.0
    inputs: tuple[Expression, ...] = ()

    def __str__(self) -> str:
        if self.what in INFIX:
            left, right = self.inputs
            binds = INFIX[self.what]
            return f"{enclosed(left, binds)} {self.what} {enclosed(right, binds + 1)}"
        if self.inputs:
            return f"{self.what}({', '.join(map(str, self.inputs))})"
        return self.what or repr(self.value)

    def nodes(self) -> Iterator[Expression]:
        """This and all below it: inputs before what is done with them, as a stack machine takes them."""
        for part in self.inputs:
            yield from part.nodes()
        yield self

    @property
    def size(self) -> int:
        return sum(1 for _ in self.nodes())

    def program(self) -> np.ndarray:
        """float64[1 + 2 size]: how many steps there are, then (code, value) of each."""
        steps = [step for node in self.nodes() for step in code_of(node)]
        return np.array([len(steps) / 2, *steps])

    @property
    def used(self) -> tuple[str, ...]:
        """The features in it, in their order."""
        there = {node.what for node in self.nodes()}
        return tuple(name for name in NAMES if name in there)


def enclosed(part: Expression, binds: int) -> str:
    """Its text, in parentheses where it binds less than that."""
    return str(part) if INFIX.get(part.what, ATOM) >= binds else f"({part})"


def code_of(node: Expression) -> tuple[float, float]:
    if node.what == "":
        return CONSTANT, node.value
    if node.what in NAMES:
        return FEATURE, NAMES.index(node.what)
    return FIRST_OPERATION + OPERATIONS.index(node.what), 0.0


def number(value: float) -> Expression:
    """Raises PolicyError for one that is not finite."""
    if not math.isfinite(value):
        raise PolicyError(f"formula: {value} is in it; numbers should be finite")
    return Expression("", float(value))


def parsed(text: str) -> Expression:
    """The formula that a text says, in Python's syntax; `parsed(str(e)) == e`.

    Raises PolicyError for what is no formula: a name that is no feature, an operation that there is not, too many
    parts.
    """
    if len(text) > LONGEST_TEXT:
        raise PolicyError(f"formula: {len(text)} characters; there should be {LONGEST_TEXT} at most")
    try:
        expression = _of(ast.parse(text.strip(), mode="eval").body)
    except PolicyError:
        raise
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise PolicyError(f"formula: {text:.60} cannot be read ({getattr(error, 'msg', None) or error})") from None
    if expression.size > MOST_NODES:
        raise PolicyError(f"formula: {expression.size} parts; there should be {MOST_NODES} at most")
    return expression


def _of(node: ast.expr) -> Expression:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return number(node.value)
    if isinstance(node, ast.Name):
        if node.id not in NAMES:
            raise PolicyError(f"formula: there is no {node.id}; there are {', '.join(NAMES)}")
        return Expression(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        part = _of(node.operand)
        return number(-part.value) if part.what == "" else Expression("-", 0.0, (number(0.0), part))
    if isinstance(node, ast.BinOp) and type(node.op) in OF_AST:
        return Expression(OF_AST[type(node.op)], 0.0, (_of(node.left), _of(node.right)))
    functions = [name for name in OPERATIONS if name not in INFIX]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
        wanted = 2 if node.func.id in BINARY else 1
        if len(node.args) != wanted or node.keywords:
            raise PolicyError(f"formula: {node.func.id} takes {wanted}")
        return Expression(node.func.id, 0.0, tuple(_of(part) for part in node.args))
    raise PolicyError(
        f"formula: {ast.unparse(node):.60} is none; there are + - * /, {', '.join(functions)}, numbers and features"
    )


def described(expression: Expression) -> str:
    """The formula, and a line with unit and meaning for each feature in it."""
    lines = [
        f"  {feature.name:<11} {feature.unit or '-':<7} {feature.doc}"
        for feature in FEATURES
        if feature.name in expression.used
    ]
    return "\n".join([str(expression), *lines])
