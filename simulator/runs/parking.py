"""Values of kernels kept in memory under an address.

A run is some sixty arrays. To hand them from Python to a kernel takes tens of microseconds a call, an iteration about
one. So a run is parked once, and kernels take it up by its address. The caller keeps the arrays alive.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from servegym.simulator.compilation.kernels import JIT_DISABLED, compiled
from servegym.simulator.records.fields import CACHE_LINE
from servegym.simulator.records.state import (
    FUNCTIONS,
    ROUTER_STATE,
    SIMULATION_STATE,
    Functions,
    RouterState,
    SimulationState,
)

_kept: dict[int, Any] = {}  # without compilation a value is kept as it is


def parking(kind: Any) -> tuple[Any, Any, Any]:
    """For values of a Numba type, what kernels call: store(address, value), restore(address) and size() in bytes."""
    if JIT_DISABLED:
        return _kept.__setitem__, _kept.__getitem__, lambda: 1

    @intrinsic
    def store(typing_context, address, value):
        def generate(context, builder, signature, arguments):
            packed = _pack(context, builder, kind, arguments[1])
            builder.store(packed, builder.inttoptr(arguments[0], packed.type.as_pointer()))
            return context.get_dummy_value()

        return types.void(types.int64, kind), generate

    @intrinsic
    def restore(typing_context, address):
        def generate(context, builder, signature, arguments):
            return _load(context, builder, kind, builder.inttoptr(arguments[0], _kept_of(context, kind).as_pointer()))

        return kind(types.int64), generate

    @intrinsic
    def size(typing_context):
        def generate(context, builder, signature, arguments):
            return context.get_constant(types.int64, context.get_abi_sizeof(_kept_of(context, kind)))

        return types.int64(), generate

    return store, restore, size


def _kept_of(context: Any, kind: Any) -> Any:
    """What is kept of a value: of an array, which is C-contiguous, its address and its shape. All else follows, and
    would fill five cache lines for one: when many runs take turns, each would find the cache cold."""
    if isinstance(kind, types.BaseTuple):
        return ir.LiteralStructType([_kept_of(context, part) for part in _parts_of(kind)])
    whole = context.get_value_type(kind)
    if not isinstance(kind, types.Array):
        return whole
    fields = _fields(context, kind)
    return ir.LiteralStructType([whole.elements[fields.index(name)] for name in ("data", "shape")])


def _parts_of(kind: Any) -> list[Any]:
    """The types of a tuple's parts."""
    return list(kind)


def _fields(context: Any, kind: Any) -> list[str]:
    """Of an array as kernels have it."""
    return list(context.data_model_manager[kind]._fields)


def _pack(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """What is kept of a value."""
    if isinstance(kind, types.BaseTuple):
        parts = [
            _pack(context, builder, part, builder.extract_value(value, i)) for i, part in enumerate(_parts_of(kind))
        ]
    elif isinstance(kind, types.Array):
        fields = _fields(context, kind)
        parts = [builder.extract_value(value, fields.index(name)) for name in ("data", "shape")]
    else:
        return value
    return _together(builder, _kept_of(context, kind), parts)


def _load(context: Any, builder: Any, kind: Any, pointer: Any) -> Any:
    """The value of which a pointer says what is kept."""
    if isinstance(kind, types.BaseTuple):
        parts = [_load(context, builder, part, _part(builder, pointer, i)) for i, part in enumerate(_parts_of(kind))]
        return _together(builder, context.get_value_type(kind), parts)
    if not isinstance(kind, types.Array):
        return _scalars(builder, pointer)
    data, shape = (_scalars(builder, _part(builder, pointer, i)) for i in range(2))
    itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    items, strides = context.get_constant(types.intp, 1), [itemsize]
    lengths = [builder.extract_value(shape, axis) for axis in range(kind.ndim)]
    for length in reversed(lengths):
        items = builder.mul(items, length)
        strides.insert(0, builder.mul(strides[0], length))
    whole = context.get_value_type(kind)
    known = {"nitems": items, "itemsize": itemsize, "data": data, "shape": shape}
    known["strides"] = _together(builder, shape.type, strides[1:])
    nothing = ir.Constant(whole, None)
    parts = [known.get(name, builder.extract_value(nothing, i)) for i, name in enumerate(_fields(context, kind))]
    return _together(builder, whole, parts)


def _part(builder: Any, pointer: Any, i: int) -> Any:
    return builder.gep(pointer, [ir.Constant(ir.IntType(32), 0), ir.Constant(ir.IntType(32), i)])


def _together(builder: Any, kind: Any, parts: list[Any]) -> Any:
    """A value of an LLVM type of its parts."""
    whole = ir.Constant(kind, ir.Undefined)
    for i, part in enumerate(parts):
        whole = builder.insert_value(whole, part, i)
    return whole


def _scalars(builder: Any, pointer: Any) -> Any:
    """The value at a pointer, put together from its scalars: those that a kernel does not use are never loaded, and
    the others where they are used (they do not change while it runs: invariant), instead of all of them on entry."""
    kind = pointer.type.pointee
    if not isinstance(kind, ir.LiteralStructType | ir.ArrayType):
        value = builder.load(pointer)
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value
    count = len(kind.elements) if isinstance(kind, ir.LiteralStructType) else kind.count
    return _together(builder, kind, [_scalars(builder, _part(builder, pointer, i)) for i in range(count)])


PARKED = types.Tuple((SIMULATION_STATE, ROUTER_STATE, FUNCTIONS))
store_run, restore_run, size_of_run = parking(PARKED)


store_functions, restore_functions, size_of_functions = parking(FUNCTIONS)


@compiled(types.UniTuple(types.int64, 2)())
def parked_bytes():
    """What a parked run takes, and its functions alone."""
    return size_of_run(), size_of_functions()


@compiled(types.void(types.int64, FUNCTIONS))
def park_functions(address, functions):
    """Park the functions of a run."""
    store_functions(address, functions)


@compiled(types.void(types.int64, SIMULATION_STATE, ROUTER_STATE, types.int64))
def park(address, run, router_state, functions_address):
    """Park a run whose functions are parked; kernels get it back as restore_run(address)."""
    store_run(address, (run, router_state, restore_functions(functions_address)))


class Room:
    """Memory for so many bytes: `address`, at the start of a cache line."""

    def __init__(self, size: int) -> None:
        self._bytes = np.zeros(size + CACHE_LINE, "u1")
        self.address = self._bytes.ctypes.data + -self._bytes.ctypes.data % CACHE_LINE

    def __del__(self) -> None:
        if _kept:  # None while Python ends
            _kept.pop(self.address, None)


class ParkedRun(Room):
    """Memory for one parked run."""

    def __init__(self) -> None:
        super().__init__(parked_bytes.entry()[0])
        self._parked: tuple[Any, Any, Any] = (None, None, None)

    def park(self, arrays: SimulationState, router_state: RouterState, functions: Functions) -> None:
        """Put a run here, unless it is what is here. It is there until another is put here or this memory is gone."""
        run = (arrays, router_state, functions)
        if all(one is other for one, other in zip(run, self._parked, strict=True)):
            return
        self._parked = run  # keeps them alive
        park.entry(self.address, arrays, router_state, parked_functions(functions).address)


@functools.lru_cache(maxsize=256)
def parked_functions(functions: Functions) -> Room:
    """The functions of a run, parked: to hand them over takes as long as all its arrays, and episodes share them."""
    room = Room(parked_bytes.entry()[1])
    park_functions.entry(room.address, functions)
    return room
