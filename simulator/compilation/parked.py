"""Parked tuples: tuples of arrays kept in memory, of which kernels get only the address.

A tuple of arrays as an argument is one word for each field of each array, 400 for a run, which each call stores and
reads again. A parked one is one word, and its fields are read where they are used.
"""

from __future__ import annotations

from typing import Any

from servegym.simulator.compilation.intrinsics import intrinsic
from servegym.simulator.compilation.numba_types import NamedTuple, Tuple
from servegym.simulator.compilation.settings import JIT_DISABLED

kept: dict[int, Any] = {}  # with compilation off: values by address


def _itself(value: Any) -> Any:
    return value


def _load(typing_context, value):
    """Load a parked tuple as a tuple."""
    from servegym.simulator.compilation import parked_code

    return parked_code.load(value)


loaded: Any = _itself if JIT_DISABLED else intrinsic(_load)  # for policies, which take tuples


def parking(kind: Tuple | NamedTuple) -> tuple[Any, Any, Any]:
    """Return intrinsics for tuples of a type: store(address, value), restore(address), and size() in bytes.

    A restored tuple has a `Parked` in place of each nested NamedTuple.
    """
    if JIT_DISABLED:
        return kept.__setitem__, kept.__getitem__, lambda: 1

    @intrinsic
    def store(typing_context, address, value):
        from servegym.simulator.compilation import parked_code

        return parked_code.store(kind.numba)

    @intrinsic
    def restore(typing_context, address):
        from servegym.simulator.compilation import parked_code

        return parked_code.restore(kind.numba)

    @intrinsic
    def size(typing_context):
        from servegym.simulator.compilation import parked_code

        return parked_code.size(kind.numba)

    return store, restore, size
