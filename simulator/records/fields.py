"""Tuples of arrays, each array declared once: name, dtype, shape and meaning.

class Known(NamedTuple):
    snapshots: Annotated[np.ndarray, Field(ENGINE_SNAPSHOT, ("engines",), "what is known of each engine")]
    decoding: Annotated[np.ndarray, Field("i4", ("engines", "capacity"), "requests with a token, by engine")]

KNOWN = numba_type(Known)                                 # what kernels are compiled for
known = fresh(Known, {"engines": 4, "capacity": 256})     # zeros, of that very type
known = longer(known, {"capacity": 512})
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np

from servegym.simulator.compilation import numba_types as types

CACHE_LINE = 64  # bytes
Tuple = TypeVar("Tuple", bound=tuple)


class Field(NamedTuple):
    """Declares an array of a tuple. shape: the length of each axis, a number or a name of a size."""

    dtype: Any  # of NumPy
    shape: tuple[str | int, ...]
    doc: str


class Value(NamedTuple):
    """Declares a function, a number or a nested tuple of a tuple."""

    type: types.Type
    doc: str


def array(item: Any, dimensions: int = 1) -> types.Array:
    """Return the type of a C-contiguous array of a type or a NumPy dtype."""
    return types.Array(item if isinstance(item, types.Type) else types.from_dtype(np.dtype(item)), dimensions, "C")


@functools.cache
def declared(kind: type) -> dict[str, Field | Value]:
    """Return the declared fields of a tuple by name. Raises TypeError for a field without a declaration."""
    found: dict[str, Field | Value] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        declarations = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Field | Value)]
        if not declarations:
            raise TypeError(f"{kind.__name__}.{name} is annotated by no Field and no Value")
        one = declarations[0]
        found[name] = one._replace(dtype=np.dtype(one.dtype)) if isinstance(one, Field) else one
    return found


def numba_type(kind: type) -> types.NamedTuple:
    """Return the type of a tuple for kernels."""
    return types.NamedTuple(
        tuple(array(one.dtype, len(one.shape)) if isinstance(one, Field) else one.type
              for one in declared(kind).values()), kind,
    )  # fmt: skip


def zeros(shape: int | tuple[Any, ...], dtype: np.dtype) -> np.ndarray:
    """Return zeros that begin at a cache line if rows are whole lines, or half a line, long."""
    if dtype.itemsize % CACHE_LINE and dtype.itemsize != CACHE_LINE // 2:
        return np.zeros(shape, dtype)
    whole = (shape,) if isinstance(shape, int) else shape
    size = math.prod(whole) * dtype.itemsize
    raw = np.zeros(size + CACHE_LINE, "u1")
    start = -raw.ctypes.data % CACHE_LINE
    return raw[start : start + size].view(dtype).reshape(whole)


def fresh(kind: type[Tuple], sizes: Mapping[Any, int], **given: Any) -> Tuple:
    """Return a tuple with the given values, and zeros for the other arrays.

    Raises TypeError for an array whose dtype or shape is not as declared, as kernels do not check it.
    """
    made = {}
    for name, one in arrays_of(kind):
        shape = tuple([sizes.get(axis, axis) for axis in one.shape])  # a number is itself
        value = given.get(name)
        if value is None:
            made[name] = zeros(shape, one.dtype)
        elif not fits(value, one.dtype, shape):
            wanted = f"{one.dtype}{list(shape)}"
            raise TypeError(f"{kind.__name__}.{name} is {value.dtype}{list(value.shape)}; it should be {wanted}")
    if unknown := given.keys() - declared(kind).keys():
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return kind(**given, **made)


@functools.cache
def arrays_of(kind: type) -> tuple[tuple[str, Field], ...]:
    """Return the fields that are arrays, with their names."""
    return tuple((name, one) for name, one in declared(kind).items() if isinstance(one, Field))


def fits(value: np.ndarray, dtype: np.dtype, shape: tuple[str | int, ...]) -> bool:
    """Return whether an array has this dtype and shape. An axis with only a name may have any length."""
    alike = value.shape == shape or (
        len(shape) == value.ndim and all(n == m or isinstance(n, str) for n, m in zip(shape, value.shape, strict=True))
    )
    return alike and value.dtype == dtype and value.flags.c_contiguous


def longer(arrays: Tuple, sizes: Mapping[str, int]) -> Tuple:
    """Return the tuple, nested tuples included, with named axes made longer by zeros."""
    changed = {}
    for name, one in declared(type(arrays)).items():
        value = getattr(arrays, name)
        if isinstance(one, Value):
            if isinstance(one.type, types.NamedTuple):
                changed[name] = longer(value, sizes)
        elif not set(sizes).isdisjoint(one.shape):
            lengths = zip(one.shape, value.shape, strict=True)
            copy = zeros(tuple(sizes.get(axis, n) if isinstance(axis, str) else n for axis, n in lengths), one.dtype)
            copy[tuple(slice(0, n) for n in value.shape)] = value
            changed[name] = copy
    return arrays._replace(**changed)  # type: ignore[attr-defined]


def copied(arrays: Tuple) -> Tuple:
    """Return the tuple with copies of its arrays, nested tuples included."""
    changed = {}
    for name, one in declared(type(arrays)).items():
        value = getattr(arrays, name)
        if isinstance(one, Field):
            changed[name] = zeros(value.shape, one.dtype)
            bytes_of(changed[name])[...] = bytes_of(value)  # NumPy copies records field by field
        elif isinstance(one.type, types.NamedTuple):
            changed[name] = copied(value)
    return arrays._replace(**changed)  # type: ignore[attr-defined]


def bytes_of(contiguous: np.ndarray) -> np.ndarray:
    """Return a uint8 view of the array's memory."""
    return contiguous.reshape(-1).view("u1")
