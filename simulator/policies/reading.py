"""`Parameters.read` and `Scratch.read` in kernels.

A declaration is a constant of the kernels that name it. Its `read` compiles to loads from the context's numbers, or to
arrays over its scratch memory; the compiler drops what is not used. Imported when something is compiled.
"""

from typing import Any

import numba
from numba import types
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin, lower_constant
from numba.core.typing.templates import AttributeTemplate, bound_function, infer_getattr, signature
from numba.extending import register_model, typeof_impl
from numba.np import arrayobj

from servegym.simulator.policies.parameters import Parameters, row_class
from servegym.simulator.policies.scratch import DTYPES, Scratch, rows_of


class Declared(types.Type):
    """The Numba type of a declaration, one for each layout. title: the class name of what `read` returns."""

    def __init__(self, title: str, layout: Any):
        self.title, self.layout = title, layout
        super().__init__(f"{title}{layout}")

    @property
    def row(self) -> types.NamedTuple:
        """The type of what `read` returns."""
        names, kinds = tuple(name for name, _ in self.layout), [self.type_of(kind) for _, kind in self.layout]
        return types.NamedTuple(kinds, row_class(self.title, names))

    def type_of(self, kind: Any) -> Any:
        raise NotImplementedError


class DeclaredParameters(Declared):
    def type_of(self, kind: bool) -> Any:
        return types.int64 if kind else types.float64


class DeclaredScratch(Declared):
    def type_of(self, kind: str) -> Any:
        return types.Array(numba.from_dtype(DTYPES[kind]), 1, "C")


for declared in (DeclaredParameters, DeclaredScratch):
    register_model(declared)(models.OpaqueModel)


@typeof_impl.register(Parameters)
def _type_of_parameters(value: Parameters, _: Any) -> Any:
    return DeclaredParameters("Parameters", value.layout)


@typeof_impl.register(Scratch)
def _type_of_scratch(value: Scratch, _: Any) -> Any:
    return DeclaredScratch("Scratch", value.layout)


@lower_constant(DeclaredParameters)
@lower_constant(DeclaredScratch)
def _no_value(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


@infer_getattr
class _ParametersRead(AttributeTemplate):
    key = DeclaredParameters

    @bound_function("servegym.parameters.read")
    def resolve_read(self, declared: Any, arguments: Any, keywords: Any) -> Any:
        return signature(declared.row, *arguments)


@infer_getattr
class _ScratchRead(AttributeTemplate):
    key = DeclaredScratch

    @bound_function("servegym.scratch.read")
    def resolve_read(self, declared: Any, arguments: Any, keywords: Any) -> Any:
        return signature(declared.row, *arguments)


def _array_of(context: Any, builder: Any, kind: Any, value: Any, field: str) -> Any:
    """Return the array in a field of a NamedTuple."""
    at = kind.fields.index(field)
    return arrayobj.make_array(kind.types[at])(context, builder, builder.extract_value(value, at))


@lower_builtin("servegym.parameters.read", DeclaredParameters, types.BaseNamedTuple)
def _read_parameters(context: Any, builder: Any, called: Any, arguments: Any) -> Any:
    numbers = _array_of(context, builder, called.args[1], arguments[1], "parameters")
    values = []
    for i, kind in enumerate(called.return_type.types):
        number = builder.load(builder.gep(numbers.data, [context.get_constant(types.intp, i)]))
        values.append(context.cast(builder, number, types.float64, kind))
    return context.make_tuple(builder, called.return_type, values)


@lower_builtin("servegym.scratch.read", DeclaredScratch, types.BaseNamedTuple)
def _read_scratch(context: Any, builder: Any, called: Any, arguments: Any) -> Any:
    whole = _array_of(context, builder, called.args[1], arguments[1], "scratch")
    length, values, row = builder.extract_value(whole.shape, 1), [], 0
    for (_, kind), of in zip(called.args[0].layout, called.return_type.types, strict=True):
        first = builder.mul(length, context.get_constant(types.intp, row))
        array = arrayobj.make_array(of)(context, builder)
        data = builder.bitcast(builder.gep(whole.data, [first]), array.data.type)
        size = DTYPES[kind].itemsize
        strides = [context.get_constant(types.intp, size)]
        arrayobj.populate_array(array, data=data, shape=[length], strides=strides, itemsize=size, meminfo=None)
        values.append(array._getvalue())
        row += rows_of(kind)
    return context.make_tuple(builder, called.return_type, values)
