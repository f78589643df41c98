"""Values of kernels kept in memory under an address.

A run is some sixty arrays. To hand them from Python to a kernel takes tens of microseconds a call, an iteration about
one. So a run that is stepped often is parked once, and kernels take it up by its address. Whoever parks a value keeps
the arrays alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from servegym.simulator.compilation import JIT_DISABLED, compiled
from servegym.simulator.state import FUNCTIONS, ROUTER_STATE, SIMULATION_STATE

_kept: dict[int, Any] = {}  # without compilation a value is kept as it is


def parking(kind: Any) -> tuple[Any, Any, Any]:
    """For values of a Numba type, what kernels call: store(address, value), restore(address) and size() in bytes."""
    if JIT_DISABLED:
        return _kept.__setitem__, _kept.__getitem__, lambda: 1

    @intrinsic
    def store(typing_context, address, value):
        def generate(context, builder, signature, arguments):
            builder.store(arguments[1], _pointer(context, builder, kind, arguments[0]))
            return context.get_dummy_value()

        return types.void(types.int64, kind), generate

    @intrinsic
    def restore(typing_context, address):
        def generate(context, builder, signature, arguments):
            return _load(builder, _pointer(context, builder, kind, arguments[0]))

        return kind(types.int64), generate

    @intrinsic
    def size(typing_context):
        def generate(context, builder, signature, arguments):
            return context.get_constant(types.int64, context.get_abi_sizeof(context.get_value_type(kind)))

        return types.int64(), generate

    return store, restore, size


def _pointer(context: Any, builder: Any, kind: Any, address: Any) -> Any:
    return builder.inttoptr(address, context.get_value_type(kind).as_pointer())


def _load(builder: Any, pointer: Any) -> Any:
    """The value at a pointer, put together from its scalars: those that a kernel does not use are never loaded, and
    the others where they are used (they do not change while it runs: invariant), instead of all of them on entry."""
    kind = pointer.type.pointee
    if not isinstance(kind, ir.LiteralStructType | ir.ArrayType):
        value = builder.load(pointer)
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value
    whole, zero = ir.Constant(kind, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    for i in range(len(kind.elements) if isinstance(kind, ir.LiteralStructType) else kind.count):
        part = _load(builder, builder.gep(pointer, [zero, ir.Constant(ir.IntType(32), i)]))
        whole = builder.insert_value(whole, part, i)
    return whole


PARKED = types.Tuple((SIMULATION_STATE, ROUTER_STATE, FUNCTIONS))
store_run, restore_run, size_of_run = parking(PARKED)


@compiled(types.int64())
def parked_bytes():
    """What a parked run takes."""
    return size_of_run()


@compiled(types.void(types.int64, SIMULATION_STATE, ROUTER_STATE, FUNCTIONS))
def park(address, run, router_state, functions):
    """Park a run; kernels get it back as restore_run(address)."""
    store_run(address, (run, router_state, functions))


class ParkedRun:
    """Memory for one parked run: `address`, at the start of a cache line."""

    def __init__(self) -> None:
        self._bytes = np.zeros(parked_bytes.entry() + 64, "u1")
        self.address = self._bytes.ctypes.data + -self._bytes.ctypes.data % 64

    def park(self, arrays: Any, router_state: Any, functions: Any) -> None:
        """Put a run here. It is there until another is put here or this memory is gone."""
        self._parked = (arrays, router_state, functions)  # keeps them alive
        park.entry(self.address, arrays, router_state, functions)

    def __del__(self) -> None:
        _kept.pop(self.address, None)
