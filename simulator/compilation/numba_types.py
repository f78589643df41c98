"""Types of kernels' arguments and results, named as in `numba.types`, without importing Numba.

To import Numba takes as long as to import NumPy and Gymnasium, and a process that only runs compiled kernels needs none
of it. So signatures are made of these; what compiles asks for `numba`, Numba's own type.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np


class Type:
    """A type: its class and its parts. Two with equal parts are equal. Called with argument types: a signature."""

    def __init__(self, *parts: Any):
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.parts == other.parts)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((type(self), self.parts))

    def __repr__(self) -> str:
        return self.text

    @functools.cached_property
    def text(self) -> str:
        """All that compiled code depends on, for digests."""
        return f"{type(self).__name__}({', '.join(map(repr, self.parts))})"

    @functools.cached_property
    def numba(self) -> Any:
        """Numba's type. Imports Numba."""
        from numba import types
        from numba.core.errors import NumbaExperimentalFeatureWarning

        with warnings.catch_warnings():
            # Numba calls first-class functions experimental.
            warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)
            return self._of(types)

    def _of(self, types: Any) -> Any:
        raise NotImplementedError

    def __call__(self, *arguments: Type) -> Signature:
        return Signature(self, *arguments)


class Scalar(Type):
    """A number, or void, by Numba's name."""

    def _of(self, types: Any) -> Any:
        return getattr(types, self.parts[0])

    @property
    def dtype(self) -> np.dtype:
        return np.dtype("?" if self.parts[0] == "boolean" else self.parts[0])


class Record(Type):
    """A row of a structured dtype."""

    @property
    def dtype(self) -> np.dtype:
        return self.parts[0]

    def _of(self, types: Any) -> Any:
        from numba import from_dtype

        return from_dtype(self.parts[0])


class Array(Type):
    """An array: type of its items, number of its axes, layout."""

    def _of(self, types: Any) -> Any:
        item, *rest = self.parts
        return types.Array(item.numba, *rest)

    @functools.cached_property
    def item(self) -> np.dtype:
        """The dtype of an item."""
        return self.parts[0].dtype

    @property
    def ndim(self) -> int:
        return self.parts[1]


class Tuple(Type):
    """A tuple of types."""

    @property
    def types(self) -> tuple[Type, ...]:
        return self.parts[0]

    def _of(self, types: Any) -> Any:
        return types.Tuple([kind.numba for kind in self.types])


class NamedTuple(Type):
    """A tuple of types, and its class."""

    @property
    def types(self) -> tuple[Type, ...]:
        return self.parts[0]

    @property
    def instance_class(self) -> Any:
        return self.parts[1]

    @functools.cached_property
    def text(self) -> str:
        # With the module of the class, which the compiled code of another class of this name does not fit.
        kind, fields = self.instance_class, zip(self.instance_class._fields, self.types, strict=True)
        described = ", ".join(f"{name}: {one!r}" for name, one in fields)
        return f"{kind.__module__}.{kind.__qualname__}({described})"

    def _of(self, types: Any) -> Any:
        return types.NamedTuple([kind.numba for kind in self.types], self.instance_class)


class FunctionType(Type):
    """A compiled function of a signature, as a value."""

    @property
    def signature(self) -> Signature:
        return self.parts[0]

    def _of(self, types: Any) -> Any:
        return types.FunctionType(self.signature.numba)


class Signature(Type):
    """Types of a function's result and arguments."""

    @property
    def return_type(self) -> Type:
        return self.parts[0]

    @property
    def args(self) -> tuple[Type, ...]:
        return self.parts[1:]

    @functools.cached_property
    def text(self) -> str:
        return f"({', '.join(map(repr, self.args))}) -> {self.return_type!r}"

    def _of(self, types: Any) -> Any:
        return self.return_type.numba(*[kind.numba for kind in self.args])


def UniTuple(kind: Type, count: int) -> Tuple:
    """Return the type of a tuple of `count` items of one type."""
    return Tuple((kind,) * count)


@functools.cache
def from_dtype(dtype: np.dtype) -> Type:
    """Return the type of an array's items."""
    if dtype.names is not None:
        return Record(dtype)
    return Scalar("boolean" if dtype.kind == "b" else dtype.name)


void, boolean = Scalar("void"), Scalar("boolean")
int8, int32, int64, uint32 = Scalar("int8"), Scalar("int32"), Scalar("int64"), Scalar("uint32")
float32, float64 = Scalar("float32"), Scalar("float64")
