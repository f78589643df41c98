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

import numba
import numpy as np
from numba import types

CACHE_LINE = 64  # bytes
Tuple = TypeVar("Tuple", bound=tuple)


class Field(NamedTuple):
    """An array of a tuple. shape: of each axis its length, a number or what the sizes of a run name it."""

    dtype: Any  # of NumPy
    shape: tuple[str | int, ...]
    doc: str


class Value(NamedTuple):
    """What is no array: a function, a number, or a tuple of arrays."""

    type: Any  # of Numba
    doc: str


def array(item: Any, dimensions: int = 1) -> types.Array:
    """A C-contiguous array of a Numba type or of a NumPy dtype."""
    return types.Array(item if isinstance(item, types.Type) else numba.from_dtype(np.dtype(item)), dimensions, "C")


@functools.cache
def declared(kind: type) -> dict[str, Field | Value]:
    """The fields of a tuple as they are declared, by name. Raises TypeError for one without a declaration."""
    found: dict[str, Field | Value] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        said = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Field | Value)]
        if not said:
            raise TypeError(f"{kind.__name__}.{name} is annotated by no Field and no Value")
        found[name] = said[0]._replace(dtype=np.dtype(said[0].dtype)) if isinstance(said[0], Field) else said[0]
    return found


def numba_type(kind: type) -> types.NamedTuple:
    """The Numba type of a tuple."""
    return types.NamedTuple(
        tuple(array(one.dtype, len(one.shape)) if isinstance(one, Field) else one.type
              for one in declared(kind).values()), kind,
    )  # fmt: skip


def zeros(shape: int | tuple[Any, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros; rows of whole cache lines start at one."""
    if dtype.itemsize % CACHE_LINE:
        return np.zeros(shape, dtype)
    whole = (shape,) if isinstance(shape, int) else shape
    size = math.prod(whole) * dtype.itemsize
    raw = np.zeros(size + CACHE_LINE, "u1")
    start = -raw.ctypes.data % CACHE_LINE
    return raw[start : start + size].view(dtype).reshape(whole)


def fresh(kind: type[Tuple], sizes: Mapping[Any, int], **given: Any) -> Tuple:
    """A tuple with what is given, and zeros for the other arrays.

    Raises TypeError for an array that is not as it is declared: kernels trust it to be.
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
    """The fields that are arrays, with their names."""
    return tuple((name, one) for name, one in declared(kind).items() if isinstance(one, Field))


def fits(value: np.ndarray, dtype: np.dtype, shape: tuple[str | int, ...]) -> bool:
    """Whether an array is as it is declared. An axis of which no size is given, only a name, has any length."""
    alike = value.shape == shape or (
        len(shape) == value.ndim and all(n == m or isinstance(n, str) for n, m in zip(shape, value.shape, strict=True))
    )
    return alike and value.dtype == dtype and value.flags.c_contiguous


def longer(arrays: Tuple, sizes: Mapping[str, int]) -> Tuple:
    """The tuple with axes made longer, in the tuples within it too; what is added are zeros."""
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
    """The tuple with copies of its arrays, in the tuples within it too."""
    changed = {}
    for name, one in declared(type(arrays)).items():
        value = getattr(arrays, name)
        if isinstance(one, Field):
            changed[name] = zeros(value.shape, one.dtype)
            bytes_of(changed[name])[...] = bytes_of(value)  # rows of records would be copied field by field
        elif isinstance(one.type, types.NamedTuple):
            changed[name] = copied(value)
    return arrays._replace(**changed)  # type: ignore[attr-defined]


def bytes_of(contiguous: np.ndarray) -> np.ndarray:
    """uint8[...]: the same memory."""
    return contiguous.reshape(-1).view("u1")
