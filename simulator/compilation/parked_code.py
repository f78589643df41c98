"""The code of parked tuples (parked.py): what Numba and LLVM are told of them. Imported when something is compiled."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import lower_getattr_generic, register_model


class Parked(types.Type):
    """The Numba type of a parked tuple. Kernels read its fields as those of the tuple itself.

    kind: the NamedTuple.
    """

    def __init__(self, kind: types.NamedTuple):
        self.kind = kind
        layout = hashlib.sha256(str(kind).encode()).hexdigest()[:12]
        super().__init__(f"Parked({kind.instance_class.__name__}, {layout})")  # short, as symbols are named after types


register_model(Parked)(models.OpaqueModel)


@infer_getattr
class ParkedFields(AttributeTemplate):
    key = Parked

    def generic_resolve(self, parked: Parked, name: str) -> Any:  # type: ignore[override]
        fields = parked.kind.fields
        return _read_as(parked.kind[fields.index(name)]) if name in fields else None


@lower_getattr_generic(Parked)
def read_field(context: Any, builder: Any, parked: Parked, value: Any, name: str) -> Any:
    pointer = builder.bitcast(value, _kept_of(context, parked.kind).as_pointer())
    i = parked.kind.fields.index(name)
    return _read(context, builder, parked.kind[i], _part(builder, pointer, i))


def load(value: Any) -> Any:
    """Return signature and code of a parked tuple's load as a tuple; another value stays as it is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not isinstance(value, Parked):
            return arguments[0]
        pointer = builder.bitcast(arguments[0], _kept_of(context, value.kind).as_pointer())
        return _load(context, builder, value.kind, pointer)

    return (value.kind if isinstance(value, Parked) else value)(value), generate


def store(kind: Any) -> Any:
    """Return signature and code that store a tuple of a type at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        packed = _pack(context, builder, kind, arguments[1])
        builder.store(packed, builder.inttoptr(arguments[0], packed.type.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, kind), generate


def restore(kind: Any) -> Any:
    """Return signature and code that restore a tuple of a type from an address, nested NamedTuples as `Parked`."""
    parts = tuple(map(_read_as, kind))
    given = types.NamedTuple(parts, kind.instance_class) if isinstance(kind, types.NamedTuple) else types.Tuple(parts)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _kept_of(context, kind).as_pointer())
        parts = [_read(context, builder, part, _part(builder, pointer, i)) for i, part in enumerate(kind)]
        return together(builder, context.get_value_type(given), parts)

    return given(types.int64), generate


def size(kind: Any) -> Any:
    """Return signature and code of the size in bytes of a parked tuple of a type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.int64, context.get_abi_sizeof(_kept_of(context, kind)))

    return types.int64(), generate


def _read_as(kind: Any) -> Any:
    """Return the type that a kernel gets for a part of a parked tuple."""
    return Parked(kind) if isinstance(kind, types.NamedTuple) else kind


def _read(context: Any, builder: Any, kind: Any, pointer: Any) -> Any:
    """Return the value that a kernel gets for a part, from a pointer to it."""
    if isinstance(kind, types.NamedTuple):
        return builder.bitcast(pointer, context.get_value_type(Parked(kind)))
    return _load(context, builder, kind, pointer)


@functools.cache
def _kept_of(context: Any, kind: Any) -> Any:
    """Return the LLVM type of a parked value. Of an array, which is C-contiguous, only address and shape are kept.

    The rest follows from these, and would take five times the cache lines, which many runs share.
    """
    if isinstance(kind, types.BaseTuple):
        return ir.LiteralStructType([_kept_of(context, part) for part in _parts_of(kind)])
    whole = context.get_value_type(kind)
    if not isinstance(kind, types.Array):
        return whole
    fields = _fields(context, kind)
    return ir.LiteralStructType([whole.elements[fields.index(name)] for name in ("data", "shape")])


def _parts_of(kind: Any) -> list[Any]:
    """Return the types of a tuple's parts."""
    return list(kind)


def _fields(context: Any, kind: Any) -> list[str]:
    """Return the names of the fields of an array in kernels."""
    return list(context.data_model_manager[kind]._fields)


def _pack(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Return a value as it is parked."""
    if isinstance(kind, types.BaseTuple):
        parts = [
            _pack(context, builder, part, builder.extract_value(value, i)) for i, part in enumerate(_parts_of(kind))
        ]
    elif isinstance(kind, types.Array):
        fields = _fields(context, kind)
        parts = [builder.extract_value(value, fields.index(name)) for name in ("data", "shape")]
    else:
        return value
    return together(builder, _kept_of(context, kind), parts)


def _load(context: Any, builder: Any, kind: Any, pointer: Any) -> Any:
    """Return the value that is parked at a pointer."""
    if isinstance(kind, types.BaseTuple):
        parts = [_load(context, builder, part, _part(builder, pointer, i)) for i, part in enumerate(_parts_of(kind))]
        return together(builder, context.get_value_type(kind), parts)
    if not isinstance(kind, types.Array):
        return _scalars(builder, pointer)
    data, lengths = (_scalars(builder, _part(builder, pointer, i)) for i in range(2))
    return array_value(context, builder, kind, data, lengths)


def array_value(context: Any, builder: Any, kind: Any, data: Any, shape: Any) -> Any:
    """Return a kernel's C-contiguous array, from its address and the length of each axis."""
    itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    items, strides = context.get_constant(types.intp, 1), [itemsize]
    lengths = [builder.extract_value(shape, axis) for axis in range(kind.ndim)]
    for length in reversed(lengths):
        items = builder.mul(items, length)
        strides.insert(0, builder.mul(strides[0], length))
    whole = context.get_value_type(kind)
    known = {"nitems": items, "itemsize": itemsize, "data": data, "shape": shape}
    known["strides"] = together(builder, shape.type, strides[1:])
    nothing = ir.Constant(whole, None)
    parts = [known.get(name, builder.extract_value(nothing, i)) for i, name in enumerate(_fields(context, kind))]
    return together(builder, whole, parts)


def _part(builder: Any, pointer: Any, i: int) -> Any:
    return builder.gep(pointer, [ir.Constant(ir.IntType(32), 0), ir.Constant(ir.IntType(32), i)])


def together(builder: Any, kind: Any, parts: list[Any]) -> Any:
    """Return a value of an LLVM type, built from its parts."""
    whole = ir.Constant(kind, ir.Undefined)
    for i, part in enumerate(parts):
        whole = builder.insert_value(whole, part, i)
    return whole


def _scalars(builder: Any, pointer: Any) -> Any:
    """Return the value at a pointer, built from scalar loads.

    The loads are marked invariant, as the values do not change while a kernel runs. So LLVM drops those that are not
    used, and moves the others to where they are used.
    """
    kind = pointer.type.pointee
    if not isinstance(kind, ir.LiteralStructType | ir.ArrayType):
        value = builder.load(pointer)
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value
    count = len(kind.elements) if isinstance(kind, ir.LiteralStructType) else kind.count
    return together(builder, kind, [_scalars(builder, _part(builder, pointer, i)) for i in range(count)])
