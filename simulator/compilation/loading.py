"""Machine code made callable, by llvmlite alone: as a function of Python, and as an address for other kernels."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding

from servegym.simulator.compilation import runtime

METH_FASTCALL = 0x0080  # of CPython: function(self, arguments, their number)
# What an entry gets as `self`: the classes that it checks arguments for.
CLASSES = (np.ndarray, np.void)


class Code(NamedTuple):
    """The machine code of a kernel.

    called, addressed: symbols of its entry from Python, and of the function that other kernels call. needed: symbols
    that it does not define.
    """

    name: str
    object: bytes
    called: str
    addressed: str
    needed: tuple[str, ...]


class Loaded(NamedTuple):
    """A kernel that can be called: from Python, and at an address with the C types of its signature."""

    entry: Callable
    address: int


class Definition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


_new: Any = ctypes.pythonapi.PyCFunction_NewEx
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
_known: set[str] = set()  # symbols that this process has


@functools.cache
def engine() -> Any:
    """Return LLVM's engine that has the code which this process reads from files."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    # As Numba's `_load_global_helpers` does.
    binding.add_symbol("_Py_NoneStruct", id(None))
    for error in (RuntimeError, SystemError, TypeError, ValueError):
        binding.add_symbol(f"PyExc_{error.__name__}", id(error))
    machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(jit=True)
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


def needs_numba(code: Code) -> bool:
    """Return whether code calls functions of Numba that `runtime` lacks: `runtime.provide_numba` should come before."""
    engine()
    return not runtime.NAMES.issuperset(missing(code.needed))


def load(code: Code) -> Loaded:
    """Load machine code. Raises ImportError if it calls what nothing here defines."""
    known = engine()
    if needed := missing(code.needed):
        provide_runtime()
        if unknown := set(needed) - runtime.NAMES:
            raise ImportError(f"compiled code of {code.name} needs {', '.join(sorted(unknown))}")
    known.add_object_file(binding.ObjectFileRef.from_data(code.object))
    known.finalize_object()
    entry = function_at(known.get_function_address(code.called), code.name)
    return Loaded(entry, known.get_function_address(code.addressed))


@functools.cache
def provide_runtime() -> None:
    """Add the functions of `runtime` to the code in the engine."""
    module = binding.parse_assembly(str(runtime.module()))
    module.triple = binding.get_process_triple()
    engine().add_module(module)


def missing(symbols: Collection[str]) -> list[str]:
    """Return the symbols that nothing in this process defines."""
    unknown = [name for name in symbols if name not in _known and binding.address_of_symbol(name) is None]
    _known.update(set(symbols).difference(unknown))
    return unknown


def function_at(address: int, name: str) -> Callable:
    """Return a Python function that calls the entry at an address."""
    definition = Definition(name.encode(), address, METH_FASTCALL, None)
    # CPython reads it as long as the function is there, which may be until after the end of this module.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))
    return _new(ctypes.byref(definition), CLASSES, None)
