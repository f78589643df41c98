"""Arguments that Python hands to a kernel, checked against its signature: entries trust them."""

from __future__ import annotations

from typing import Any

import numpy as np

from servegym.simulator.compilation.numba_types import Array, FunctionType, NamedTuple, Record, Signature, Tuple, Type

NUMBERS = {"boolean": (bool, np.bool_), "float64": (int, float, np.number), "float32": (int, float, np.number)}
INTEGERS = (int, np.integer)


def check_arguments(name: str, signature: Signature, arguments: tuple[Any, ...]) -> None:
    """Raise TypeError unless a kernel of this signature takes these arguments."""
    if len(arguments) != len(signature.args):
        raise TypeError(f"{name} takes {len(signature.args)} arguments, not {len(arguments)}")
    for i, (kind, value) in enumerate(zip(signature.args, arguments, strict=True)):
        if not fits(kind, value):
            raise TypeError(f"argument {i + 1} of {name} is {described(value)}; it should be {kind!r}")


def fits(kind: Type, value: Any) -> bool:
    """Return whether a value is of a type, or a number that becomes one."""
    if isinstance(kind, Array):
        return (
            isinstance(value, np.ndarray) and value.ndim == kind.ndim and value.flags.c_contiguous
            and value.dtype == kind.item
        )  # fmt: skip
    if isinstance(kind, Record):
        return isinstance(value, np.void) and value.dtype == kind.dtype
    if isinstance(kind, NamedTuple) and not isinstance(value, kind.instance_class):
        return False
    if isinstance(kind, NamedTuple | Tuple):
        return (
            isinstance(value, tuple) and len(value) == len(kind.types)
            and all(map(fits, kind.types, value))
        )  # fmt: skip
    if isinstance(kind, FunctionType):
        return getattr(value, "declared", None) == kind.signature
    return isinstance(value, NUMBERS.get(kind.parts[0], INTEGERS))


def described(value: Any) -> str:
    """Return what a value is."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return f"{value!r} ({type(value).__name__})"
