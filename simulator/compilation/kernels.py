"""Kernels: functions that are compiled once per source text, cached on disk, and called as first-class functions.

`kernel` decorates a helper that other kernels call. `Compiled` is a kernel with a fixed signature that is passed as a
value: the event loop takes policies, latency models and gain functions in this form, so it is compiled once for all.
Numba is imported when something is compiled, or where compiled code calls its runtime.
"""

from __future__ import annotations

import functools
import importlib
import threading
import types as python_types
from collections.abc import Callable, Mapping
from typing import Any

from servegym.simulator.compilation.arguments import check_arguments
from servegym.simulator.compilation.cache import KernelFiles, file_stamp
from servegym.simulator.compilation.digests import PACKAGE, names_in, plain_function, reached_values, source_digest
from servegym.simulator.compilation.loading import Loaded, load, needs_numba
from servegym.simulator.compilation.locks import alone_in, no_garbage_collection
from servegym.simulator.compilation.numba_types import Signature
from servegym.simulator.compilation.progress import CompileProgress
from servegym.simulator.compilation.runtime import provide_numba
from servegym.simulator.compilation.settings import JIT_DISABLED

# Kernels own no arrays: the run's arrays belong to Python while a kernel works on them. So Numba's reference counting,
# which would take three quarters of the time, is off, and a kernel cannot make arrays. A helper that must, and does not
# return them, is an `allocating_kernel`. `forceinline` is set explicitly, as Numba would pass it on to all that an
# inlined kernel calls: the event loop would become one function, which takes LLVM three to eight times as long.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "_nrt": False, "forceinline": False}


class InnerKernel:
    """A kernel for other kernels. For a call from Python, as in tests, an executable copy is compiled.

    A process that only loads compiled kernels needs no dispatcher of Numba's for the hundreds of inner ones. So Numba
    gets it when it asks for the type of the kernel, to compile one that calls it.
    """

    def __init__(self, function: Callable, options: Mapping[str, Any]):
        self.py_func, self.options = function, options
        functools.update_wrapper(self, function)

    @property
    def targetoptions(self) -> dict[str, Any]:
        """The options of Numba, which looks for `inline` here before it knows the type."""
        return {**self.options, **compiler().INNER}

    @functools.cached_property
    def _dispatcher(self) -> Any:
        return compiler().inner_dispatcher(self.py_func, self.targetoptions)

    @property
    def _numba_type_(self) -> Any:
        return self._dispatcher._numba_type_

    @property
    def overloads(self) -> dict[Any, Any]:
        """What Numba has compiled of it in this process."""
        return self._dispatcher.overloads if "_dispatcher" in vars(self) else {}

    @functools.cached_property
    def _entered(self) -> Any:
        return compiler().outer_dispatcher(self.py_func, dict(self.options))

    def __call__(self, *arguments: Any) -> Any:
        return self._entered(*arguments)

    def __reduce__(self) -> Any:
        return kernel_named, (self.py_func.__module__, self.py_func.__qualname__)


def kernel_named(module: str, name: str) -> Any:
    """Return a kernel by its module and name."""
    return getattr(importlib.import_module(module), name)


def _inner(**options: Any) -> Callable[[Callable], Any]:
    """Return a decorator for kernels that other kernels call, with these Numba options."""
    return (lambda function: function) if JIT_DISABLED else lambda function: InnerKernel(function, options)


kernel = _inner(**OPTIONS)
# A kernel that LLVM must inline: a step of an iteration, or a few lines of an inner loop.
inlined_kernel = _inner(**OPTIONS | {"forceinline": True})
allocating_kernel = _inner(**OPTIONS | {"_nrt": True})
# A kernel that Numba inlines into its callers before types are inferred: code guarded by a false constant costs
# nothing, not even to compile.
hook = _inner(**OPTIONS | {"inline": "always"})


def uncompiled_kernels(function: Any) -> int:
    """Return how many kernels that a kernel can reach are not compiled yet in this process, without hooks."""
    seen: set[Any] = set()
    todo, count = [function], 0
    while todo:
        current = todo.pop()
        plain = plain_function(current)
        if plain not in seen:
            seen.add(plain)
            count += isinstance(current, InnerKernel) and not current.overloads and "inline" not in current.options
            todo += [value for _, value in reached_values(plain) if hasattr(value, "py_func")]
    return count


_with_types: list[str] = []  # modules that wait


def has_types(module: str) -> None:
    """Import a module, which tells Numba of types, when something is compiled; at once if something has been."""
    _with_types.append(module)
    if compiler.cache_info().currsize:
        import_types()


def import_types() -> None:
    """Import the modules that wait."""
    while _with_types:
        importlib.import_module(_with_types.pop())


@functools.cache
def compiler() -> Any:
    """Return the module that compiles. Imports Numba, and tells it of kernels as values and of other types."""
    with no_garbage_collection():  # makes most of a process's objects, and they stay
        from numba import types

        from servegym.simulator.compilation import compiling

        types.WrapperAddressProtocol.register(Compiled)
        import_types()
    return compiling


_reading = threading.RLock()


class Compiled:
    """A kernel of a fixed signature, usable as a value inside other kernels and callable from Python.

    It is compiled (or read from the cache) when it is first used, not when it is defined.
    """

    def __init__(
        self,
        py_func: Callable,
        signature: Signature,
        made_from: tuple[Callable, tuple] | None = None,
        written: Callable | None = None,
    ):
        if not isinstance(signature, Signature):
            what = f"the signature of {py_func.__name__} is of {type(signature).__module__}"
            raise TypeError(f"{what}; it should be made of servegym.simulator.compilation.numba_types")
        self.py_func = py_func
        self.declared = signature
        self._files: KernelFiles | None = None
        self._code: Loaded | None = None
        self.made_from = made_from  # function and arguments that made it; None: it is a module's attribute
        # The author's function, by whose name it is imported: py_func, or what py_func was made from.
        self.written: Any = py_func if written is None else written
        functools.update_wrapper(self, py_func)

    @property
    def _loaded(self) -> Loaded:
        # No cached_property, which until Python 3.12 holds a lock that other kernels wait for.
        if self._code is None:
            self._code = self._read() or self._compile()
        return self._code

    def load(self) -> bool:
        """Load it from the cache, unless it is loaded, and return whether that was possible."""
        if self._code is None and not JIT_DISABLED:
            self._code = self._read()
        return JIT_DISABLED or self._code is not None

    def _read(self) -> Loaded | None:
        """Load its file. Numba's lock is never awaited under `_reading`, as a thread that compiles takes both."""
        with _reading:
            if self._files is None and (digest := source_digest(self)):
                stamp = "" if self.py_func.__module__.startswith(PACKAGE) else file_stamp(self.py_func)
                self._files = KernelFiles(digest, stamp)
            code = self._files and self._files.read()
        if not code:
            return None
        if needs_numba(code):
            provide_numba()
        with _reading:
            return self._code or load(code)

    def _compile(self) -> Loaded:
        """Compile it, or load what another process has compiled meanwhile."""
        compiling = compiler()
        progress = CompileProgress(self.py_func, lambda: uncompiled_kernels(self))
        # Of several processes, one compiles and the others load what it wrote. Numba's lock is taken first: a thread
        # that compiles holds it already when it comes here for a kernel that its own kernel reaches.
        waiting = f"servegym: waiting for another process, which compiles kernels of {progress.name}"
        with compiling.lock:
            if self._code is not None:  # by another thread
                return self._code
            if self._files is None:
                return compiling.compile_kernel(self.py_func, self.declared, OPTIONS, progress)[0]
            with alone_in(self._files.directory, waiting):
                if (read := self._read()) is not None:
                    return read
                loaded, code = compiling.compile_kernel(self.py_func, self.declared, OPTIONS, progress)
                if code:
                    self._files.write(code)
                return loaded

    def __wrapper_address__(self) -> int:
        return self._loaded.address

    def signature(self) -> Any:
        """Return Numba's signature."""
        return self.declared.numba

    @property
    def _numba_type_(self) -> Any:
        from numba import types

        return types.FunctionType(self.signature())

    @property
    def value(self) -> Any:
        """The argument for a kernel: this object, or the plain function if compilation is off."""
        return self.py_func if JIT_DISABLED else self

    @functools.cached_property
    def entry(self) -> Callable:
        """The compiled function without a check of the types of arguments.

        Call it only with arguments of the signature's types.
        """
        return self.py_func if JIT_DISABLED else self._loaded.entry

    def __call__(self, *arguments: Any) -> Any:
        if not JIT_DISABLED:
            check_arguments(self.written.__name__, self.declared, arguments)
        return self.entry(*arguments)

    def __reduce__(self) -> Any:
        # Pickled by reference: by the name in its module, or by what made it.
        if self.made_from is not None:
            return self.made_from
        return kernel_named, (self.written.__module__, self.written.__qualname__)


_specialised: dict[Any, Compiled] = {}
_plain_kernel = functools.cache(kernel)


def specialised(template: Compiled, **names: Any) -> Compiled:
    """Return `template` with some of its globals replaced by kernels that are called directly and compiled with it.

    Globals may be kernels, a Compiled (called as a kernel), numbers (constants) or declarations. Numba would compile a
    closure again in each process. The same template and names give the same object. Raises ValueError for a name that
    the template does not use.
    """
    used = names_in(template.py_func.__code__)
    for name in names:
        if name not in used or name not in template.py_func.__globals__:
            raise ValueError(f"{template.py_func.__name__} uses no global {name}")
    values = {name: _identity(value) for name, value in names.items()}
    key = (template.py_func, *((name, type(value), value) for name, value in sorted(values.items())))
    if key not in _specialised:
        _specialised[key] = _specialise(template, names)
    return _specialised[key]


def _identity(value: Any) -> Any:
    """Return what tells specialised kernels apart."""
    return getattr(value, "kernel_text", None) or getattr(value, "py_func", value)


def _specialise(template: Compiled, names: dict[str, Any]) -> Compiled:
    original = template.py_func
    plain = {name: _plain_kernel(value.py_func) if isinstance(value, Compiled) else value
             for name, value in names.items()}  # fmt: skip
    copy = with_globals(original, {**original.__globals__, **plain}, "")
    copy.__name__ = copy.__qualname__ = copy.__name__ + (source_digest(copy) or str(len(_specialised)))[:8]
    return Compiled(copy, template.declared, (_make, (template, names)))


def with_globals(original: Any, values: dict[str, Any], named: str) -> python_types.FunctionType:
    """Return a copy of a function that has `values` as its globals.

    named: suffix of its name, as symbols of compiled code are named after functions and must differ.
    """
    name = f"{original.__name__}_{named}"
    copy = python_types.FunctionType(original.__code__, values, name)
    copy.__qualname__, copy.__doc__ = name, original.__doc__
    return copy


def _make(template: Compiled, names: dict[str, Any]) -> Compiled:
    return specialised(template, **names)


def compiled(signature: Signature) -> Callable[[Callable], Compiled]:
    """Return a decorator for first-class kernels of this signature."""
    return lambda py_func: Compiled(py_func, signature)
