"""Entries: the function of each compiled kernel that Python calls.

Numba's entries need Numba's own modules. These are functions of CPython (METH_FASTCALL) that read the address and shape
of an array from NumPy's object, and build what the kernel gets. An array is taken as C-contiguous, and its dtype is not
looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from servegym.simulator.compilation.parked_code import array_value, together

INT32, INT64, POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
# Bytes from the start of an object. NumPy: `PyArrayObject_fields` (data, nd, dimensions), `PyVoidScalarObject` (obval).
HEAD = object.__basicsize__
DATA, AXES, LENGTHS, ROW = HEAD, HEAD + 8, HEAD + 16, HEAD + 8
ARRAY, VOID = range(2)  # loading.CLASSES


def add_entry(context: Any, library: Any, described: Any, name: str) -> None:
    """Add the entry of a kernel, which is described by Numba's `fndesc`, to its library."""
    module = context.create_module("entry")
    kind = context.call_conv.get_function_type(described.restype, described.argtypes)
    kernel = ir.Function(module, kind, described.llvm_func_name)
    entry = ir.Function(module, ir.FunctionType(POINTER, [POINTER, POINTER.as_pointer(), INT64]), name)
    builder = ir.IRBuilder(entry.append_basic_block("entry"))
    Entry(context, builder, entry.args[0]).write(kernel, described, *entry.args[1:])
    library.add_ir_module(module)


class Entry:
    """What writes the code of an entry."""

    def __init__(self, context: Any, builder: Any, classes: Any):
        self.context, self.builder, self.classes = context, builder, classes
        self.api = context.get_python_api(builder)

    def write(self, kernel: Any, described: Any, given: Any, count: Any) -> None:
        builder, api, expected = self.builder, self.api, len(described.argtypes)
        name = described.qualname.rpartition(".")[2]
        self.unless(builder.icmp_signed("==", count, INT64(expected)), f"{name} takes {expected} arguments")
        values = []
        for i, kind in enumerate(described.argtypes):
            values.append(self.value(kind, builder.load(builder.gep(given, [INT64(i)]))))
        thread = api.save_thread()
        status, result = self.context.call_conv.call_function(
            builder, kernel, described.restype, described.argtypes, values
        )
        api.restore_thread(thread)
        with builder.if_then(status.is_ok, likely=True):
            if described.restype == types.none:
                builder.ret(api.make_none())
            else:
                builder.ret(api.from_native_return(described.restype, result, None))
        if not builder.block.is_terminated:
            self.context.call_conv.raise_error(builder, api, status)
            builder.ret(api.get_null_object())

    def unless(self, condition: Any, message: str) -> None:
        """Raise TypeError unless a condition holds."""
        with self.builder.if_then(self.builder.not_(condition), likely=False):
            self.api.err_set_string("PyExc_TypeError", message)
            self.builder.ret(self.api.get_null_object())

    def value(self, kind: Any, given: Any) -> Any:
        """Return the kernel's value of an object."""
        if isinstance(kind, types.BaseTuple):
            return self.tuple(kind, given)
        if isinstance(kind, types.Array):
            return self.array(kind, given)
        if isinstance(kind, types.Record):
            self.check_class(given, VOID, "a record (np.void)")
            return self.builder.bitcast(self.field(given, ROW, POINTER), self.context.get_value_type(kind))
        if isinstance(kind, types.FunctionType):
            return self.function(kind, given)
        native = self.api.to_native_value(kind, given)
        with self.builder.if_then(native.is_error, likely=False):
            self.builder.ret(self.api.get_null_object())
        return native.value

    def tuple(self, kind: Any, given: Any) -> Any:
        parts = []
        for i, part in enumerate(kind):
            item = self.api.tuple_getitem(given, i)
            with self.builder.if_then(cgutils.is_null(self.builder, item), likely=False):
                self.builder.ret(self.api.get_null_object())
            parts.append(self.value(part, item))
        return together(self.builder, self.context.get_value_type(kind), parts)

    def array(self, kind: Any, given: Any) -> Any:
        self.check_class(given, ARRAY, "an array")
        axes = self.builder.icmp_signed("==", self.field(given, AXES, INT32), INT32(kind.ndim))
        self.unless(axes, f"an argument should be an array with {kind.ndim} axes")
        lengths = self.field(given, LENGTHS, ir.ArrayType(INT64, kind.ndim).as_pointer())
        data = self.builder.bitcast(
            self.field(given, DATA, POINTER), self.context.get_data_type(kind.dtype).as_pointer()
        )
        return array_value(self.context, self.builder, kind, data, self.builder.load(lengths))

    def function(self, kind: Any, given: Any) -> Any:
        """Return the value of an object with `__wrapper_address__`."""
        builder, api = self.builder, self.api
        number = api.call_method(given, "__wrapper_address__")
        with builder.if_then(cgutils.is_null(builder, number), likely=False):
            builder.ret(api.get_null_object())
        made = cgutils.create_struct_proxy(kind)(self.context, builder)
        made.c_addr, made.py_addr = api.long_as_voidptr(number), given
        made.jit_addr = ir.Constant(POINTER, None)
        api.decref(number)
        return made._getvalue()

    def field(self, given: Any, offset: int, kind: Any) -> Any:
        """Return a field of an object, `offset` bytes from its start."""
        place = self.builder.gep(given, [INT64(offset)])
        return self.builder.load(self.builder.bitcast(place, kind.as_pointer()))

    def check_class(self, given: Any, which: int, what: str) -> None:
        kind = ir.FunctionType(INT32, [POINTER, POINTER])
        ask = cgutils.get_or_insert_function(self.builder.module, kind, "PyObject_IsInstance")
        is_one = self.builder.call(ask, [given, self.api.tuple_getitem(self.classes, which)])
        self.unless(self.builder.icmp_signed(">", is_one, INT32(0)), f"an argument should be {what}")


def layout_holds() -> bool:
    """Return whether objects of NumPy have the layout that entries read."""
    import ctypes

    def at(one: Any, offset: int, kind: Any) -> Any:
        return kind.from_address(id(one) + offset).value

    array, row = np.arange(6.0).reshape(2, 3), np.zeros(1, [("x", "f8")])[0]
    lengths = at(array, LENGTHS, ctypes.c_void_p)
    return (
        at(array, DATA, ctypes.c_void_p) == array.ctypes.data
        and at(array, AXES, ctypes.c_int) == 2
        and [ctypes.c_int64.from_address(lengths + 8 * i).value for i in range(2)] == [2, 3]
        and at(row, ROW, ctypes.c_void_p) == row.__array_interface__["data"][0]
    )


if not layout_holds():
    raise ImportError(f"NumPy {np.__version__} lays its arrays out in a way that compiled kernels do not know")
