"""Digests of kernels: of the sources, constants and types that compiled code depends on.

Numba's own cache does not notice a change in the file of a kernel that a function calls. So the files of a kernel are
named after a digest of its source and of each kernel, intrinsic, type and constant that it reaches: an edit anywhere
takes effect, and nothing else is compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import types as python_types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from servegym.simulator.compilation.numba_types import Type
from servegym.simulator.compilation.settings import code_settings
from servegym.simulator.compilation.sources import PACKAGE, source_of
from servegym.simulator.compilation.versions import versions

# Values that enter the digest by their repr, which for a type is its layout. Another object that kernels use, such as
# Parameters, has a `kernel_text`: all that compiled code depends on.
VALUES = int | float | str | tuple | np.generic | np.dtype | Type
# Files of the simulator that make code of kernels: their sources are part of every digest.
MAKERS = (
    "compilation/compiling.py", "compilation/entries.py", "compilation/kernels.py", "compilation/linking.py",
    "compilation/loading.py", "compilation/parked.py", "compilation/parked_code.py", "policies/reading.py",
)  # fmt: skip


def plain_function(function: Any) -> Any:
    """Return the Python function of a dispatcher, a Compiled or an intrinsic, or None."""
    if not isinstance(function, python_types.FunctionType):
        function = getattr(function, "py_func", getattr(function, "__wrapped__", None))
    return function if isinstance(function, python_types.FunctionType) else None


def _counts(value: Any) -> bool:
    """Return whether a reached function is compiled: a kernel or an intrinsic.

    Plain functions of this package count too, as intrinsics call them to generate code.
    """
    if isinstance(value, python_types.FunctionType):
        return value.__module__.startswith(PACKAGE)
    return hasattr(value, "py_func") or hasattr(value, "_defn")


def names_in(code: python_types.CodeType) -> set[str]:
    """Return all names that a function's code uses, including inner functions and comprehensions."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, python_types.CodeType):
            names |= names_in(constant)
    return names


def reached_values(function: python_types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield name and value of what a function's code uses outside itself: globals, module attributes, closure cells."""
    # Sorted, as the order of a set differs between processes, and a module is named by the first way to reach it.
    names = sorted(names_in(function.__code__))
    todo = [(name, function.__globals__[name]) for name in names if name in function.__globals__]
    seen = set()
    while todo:
        name, value = todo.pop(0)
        if not isinstance(value, python_types.ModuleType):
            yield name, value
        elif value not in seen:
            seen.add(value)
            todo += [(f"{name}.{inner}", vars(value)[inner]) for inner in names if inner in vars(value)]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents


def source_digest(function: Any) -> str | None:
    """Return a digest of all that the compiled code of a kernel depends on, but for the processor.

    That is `text_digest`, the signature of a Compiled, and what compiles it. None if a function has no source.
    """
    text = text_digest(function)
    if text is None:
        return None
    declared = getattr(function, "declared", None)
    signature = declared.text if isinstance(declared, Type) else ""
    made_by = f"{text} {signature} {versions()} {code_settings()}\n".encode() + makers()
    return hashlib.sha256(made_by).hexdigest()[:20]


def text_digest(function: Any) -> str | None:
    """Return a digest of the sources of a kernel and of all kernels, types and constants that it can reach.

    None if a function has no source.
    """
    digest, seen, todo = hashlib.sha256(), set(), [plain_function(function)]
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        source = source_of(current)
        if source is None:
            return None
        # With its module, after which the symbols of compiled code are named.
        digest.update(f"{current.__module__}\n{source}".encode())
        for name, value in sorted(reached_values(current), key=lambda item: item[0]):
            if isinstance(value, np.ndarray):
                digest.update(f"{name}={value.dtype!r}{value.shape}".encode() + value.tobytes())
            elif hasattr(value, "kernel_text"):
                digest.update(f"{name}={value.kernel_text}".encode())
            elif _counts(value):  # before a look whether it is a type, which takes longer
                todo.append(plain_function(value))
            elif value is None or isinstance(value, VALUES):
                digest.update(f"{name}={value!r}".encode())
    return digest.hexdigest()[:20]


@functools.cache
def makers() -> bytes:
    """Return the sources of `MAKERS`."""
    return b"".join((Path(__file__).parents[1] / name).read_bytes() for name in MAKERS)


def reached_kernels(function: Any) -> list[python_types.FunctionType]:
    """Return the Python functions of a kernel and of all kernels that it can call."""
    found: list[python_types.FunctionType] = []
    todo = [plain_function(function)]
    while todo:
        current = todo.pop()
        if current not in found:
            found.append(current)
            todo += [plain_function(value) for _, value in reached_values(current) if hasattr(value, "py_func")]
    return found
