"""Reshaping in kernels, without Numba's check for arrays that are not contiguous: it needs functions of Numba's."""

from typing import Any

from servegym.simulator.compilation.intrinsics import intrinsic
from servegym.simulator.compilation.settings import JIT_DISABLED


def _reshaped(numbers: Any, columns: Any) -> Any:
    return numbers.reshape((-1, columns))


@intrinsic
def _rows(typing_context, numbers, columns):
    """Return a contiguous array as rows of some columns."""
    from numba import types

    from servegym.simulator.compilation.parked_code import array_value, together

    kind = types.Array(numbers.dtype, 2, "C")

    def generate(context, builder, signature, arguments):
        given = context.make_array(numbers)(context, builder, arguments[0])
        width = context.cast(builder, arguments[1], columns, types.intp)
        shape = context.get_value_type(types.UniTuple(types.intp, 2))
        lengths = together(builder, shape, [builder.sdiv(given.nitems, width), width])
        return array_value(context, builder, kind, given.data, lengths)

    return kind(numbers, columns), generate


# in_rows(numbers, columns): a contiguous array of one axis as rows of `columns` numbers each
in_rows: Any = _reshaped if JIT_DISABLED else _rows
