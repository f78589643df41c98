"""Functions of Numba that compiled code calls: to make an array, for `np.nextafter`, and to raise an exception.

They are here so that a process which runs such code need not import Numba. Memory for arrays, which a kernel frees
before it returns, comes from the C library, as does `nextafter`. When an exception is raised, Numba is imported and its
own functions are called.
"""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import binding, ir

INT, SIZE, POINTER, VOID = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer(), ir.VoidType()
# Numba's MemInfo: reference count, destructor and its argument, data, size, allocator.
MEMORY = ir.LiteralStructType([SIZE, POINTER, POINTER, POINTER, SIZE, POINTER])
BYTES = 48
# What raises exceptions, with the GIL held: result and arguments by name.
RAISING = {
    "numba_unpickle": (POINTER, (POINTER, INT, POINTER)),
    "numba_runtime_build_excinfo_struct": (POINTER, (POINTER, POINTER)),
    "numba_do_raise": (VOID, (POINTER,)),
}
OTHERS = (
    "numba_gil_ensure", "numba_gil_release", "NRT_MemInfo_alloc_aligned", "NRT_MemInfo_call_dtor", "numba_nextafter",
)  # fmt: skip
NAMES = {*RAISING, *OTHERS}


def module() -> ir.Module:
    """Return the LLVM code of the functions."""
    made = ir.Module("runtime")
    for name, (result, arguments) in RAISING.items():
        add_raising(made, name, result, arguments)
    add_lock(made)
    add_memory(made)
    add_nextafter(made)
    return made


def add_raising(made: ir.Module, name: str, result: Any, arguments: tuple[Any, ...]) -> None:
    """Add a function that imports Numba and calls its function of this name."""
    function, builder = _function(made, name, result, arguments)
    find = ir.Constant(SIZE, ctypes.cast(_find, ctypes.c_void_p).value)
    find = builder.inttoptr(find, ir.FunctionType(POINTER, [INT]).as_pointer())
    address = builder.call(find, [INT(list(RAISING).index(name))])
    value = builder.call(builder.bitcast(address, function.function_type.as_pointer()), function.args)
    if result is VOID:
        builder.ret_void()
    else:
        builder.ret(value)


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)
def _find(index: int) -> int:
    """Return the address of one of Numba's functions for exceptions."""
    provide_numba()
    return int(binding.address_of_symbol(list(RAISING)[index]))


def provide_numba() -> None:
    """Import Numba, which tells LLVM the addresses of all its functions."""
    from numba.core.registry import cpu_target
    from numba.core.runtime import rtsys

    rtsys.initialize(cpu_target.target_context)


def add_lock(made: ir.Module) -> None:
    """Add the functions that take the GIL and write its former state to an address, and that release it."""
    function, builder = _function(made, "numba_gil_ensure", VOID, (POINTER,))
    ensure = ir.Function(made, ir.FunctionType(INT, []), "PyGILState_Ensure")
    builder.store(builder.call(ensure, []), builder.bitcast(function.args[0], INT.as_pointer()))
    builder.ret_void()
    function, builder = _function(made, "numba_gil_release", VOID, (POINTER,))
    release = ir.Function(made, ir.FunctionType(VOID, [INT]), "PyGILState_Release")
    builder.call(release, [builder.load(builder.bitcast(function.args[0], INT.as_pointer()))])
    builder.ret_void()


def add_memory(made: ir.Module) -> None:
    """Add the functions that allocate a MemInfo (aligned data, one reference, no destructor) and free it."""
    function, builder = _function(made, "NRT_MemInfo_alloc_aligned", POINTER, (SIZE, INT))
    size, align = function.args[0], builder.zext(function.args[1], SIZE)
    malloc = ir.Function(made, ir.FunctionType(POINTER, [SIZE]), "malloc")
    memory = builder.call(malloc, [builder.add(builder.add(size, align), SIZE(BYTES))])
    with builder.if_then(builder.icmp_unsigned("==", memory, ir.Constant(POINTER, None))):
        builder.ret(memory)
    last = builder.add(builder.ptrtoint(memory, SIZE), builder.add(align, SIZE(BYTES - 1)))
    data = builder.inttoptr(builder.and_(last, builder.neg(align)), POINTER)
    nothing = ir.Constant(POINTER, None)
    whole = builder.bitcast(memory, MEMORY.as_pointer())
    for i, value in enumerate((SIZE(1), nothing, nothing, data, size, nothing)):
        builder.store(value, builder.gep(whole, [INT(0), INT(i)]))
    builder.ret(memory)
    function, builder = _function(made, "NRT_MemInfo_call_dtor", VOID, (POINTER,))
    free = ir.Function(made, ir.FunctionType(VOID, [POINTER]), "free")
    builder.call(free, function.args)
    builder.ret_void()


def add_nextafter(made: ir.Module) -> None:
    """Add the function that calls the C library's."""
    double = ir.DoubleType()
    function, builder = _function(made, "numba_nextafter", double, (double, double))
    builder.ret(builder.call(ir.Function(made, function.function_type, "nextafter"), function.args))


def _function(made: ir.Module, name: str, result: Any, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    function = ir.Function(made, ir.FunctionType(result, arguments), name)
    return function, ir.IRBuilder(function.append_basic_block("entry"))
