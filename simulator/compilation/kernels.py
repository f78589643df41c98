"""Compiling kernels: once per source text, cached on disk, called as first-class functions.

`kernel` decorates a helper that other kernels call. `Compiled` is a kernel with a fixed signature that is passed as a
value: the event loop takes policies, latency models and gain functions in this form, so it is compiled once for all.

Numba's own cache does not notice a change in the file of a kernel that a function calls. Here the cache directory of a
function is named after a digest of its source and of each kernel, intrinsic, type and constant that it reaches. So an
edit anywhere takes effect, and nothing else is compiled again.
"""

import contextlib
import functools
import hashlib
import inspect
import types as python_types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from servegym.simulator.compilation.locks import alone_in, no_garbage_collection

with no_garbage_collection():  # makes most of a process's objects, and they stay
    import numba
from numba import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaExperimentalFeatureWarning
from numba.core.event import install_listener
from numba.core.registry import cpu_target

from servegym.simulator.compilation import linking, parked
from servegym.simulator.compilation.cache import KernelFiles, cache_root, file_stamp
from servegym.simulator.compilation.linking import InnerKernel, OuterCompiler, kernel_named
from servegym.simulator.compilation.progress import CompileProgress
from servegym.simulator.compilation.sources import source_of

# Kernels own no arrays: the run's arrays belong to Python while a kernel works on them. So Numba's reference counting,
# which would take three quarters of the time, is off, and a kernel cannot make arrays. A helper that must, and does not
# return them, is an `allocating_kernel`. `forceinline` is set explicitly, as Numba would pass it on to all that an
# inlined kernel calls: the event loop would become one function, which takes LLVM three to eight times as long.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "_nrt": False, "forceinline": False}
# Settings of Numba (NUMBA_BOUNDSCHECK, ...) that compiled code depends on; they are part of the digest.
FLAGS = ("BOUNDSCHECK", "OPT", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "EXTEND_VARIABLE_LIFETIMES")
# Values that enter the digest by their repr, which for a type is its layout. Another object that kernels use, such as
# Parameters, has a `kernel_text`: all that compiled code depends on.
VALUES = int | float | str | tuple | np.generic | np.dtype | types.Type
PACKAGE = f"{__name__.partition('.')[0]}."
_config: Any = numba.config
JIT_DISABLED = bool(_config.DISABLE_JIT)
# The sources of linking, and of reading tuples in memory, are part of the digest too.
LINKING = inspect.getsource(linking) + inspect.getsource(parked)
_njit: Any = numba.njit


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


def plain_function(function: Any) -> Any:
    """Return the Python function of a dispatcher, a Compiled or an intrinsic, or None."""
    if not isinstance(function, python_types.FunctionType):
        function = getattr(function, "py_func", getattr(function, "__wrapped__", None))
    return function if isinstance(function, python_types.FunctionType) else None


def _counts(value: Any) -> bool:
    """Return whether a reached function is compiled: a kernel or an intrinsic.

    Plain functions of this package count too, as intrinsics call them to generate code.
    """
    if isinstance(value, python_types.FunctionType):
        return value.__module__.startswith(PACKAGE)
    return hasattr(value, "py_func") or hasattr(value, "_defn")


def _names(code: python_types.CodeType) -> set[str]:
    """Return all names that a function's code uses, including inner functions and comprehensions."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, python_types.CodeType):
            names |= _names(constant)
    return names


def reached_values(function: python_types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield name and value of what a function's code uses outside itself: globals, module attributes, closure cells."""
    # Sorted, as the order of a set differs between processes, and a module is named by the first way to reach it.
    names = sorted(_names(function.__code__))
    todo = [(name, function.__globals__[name]) for name in names if name in function.__globals__]
    seen = set()
    while todo:
        name, value = todo.pop(0)
        if not isinstance(value, python_types.ModuleType):
            yield name, value
        elif value not in seen:
            seen.add(value)
            todo += [(f"{name}.{inner}", vars(value)[inner]) for inner in names if inner in vars(value)]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents


def signature_text(signature: Any) -> str:
    """Return a signature as text, with the modules of its tuples' classes, which pickled code imports."""
    classes: set[str] = set()
    todo: list[Any] = [signature.return_type, *signature.args]
    while todo:
        kind = todo.pop()
        if isinstance(kind, types.BaseTuple):
            todo += kind.types  # type: ignore[attr-defined]
        if isinstance(kind, types.NamedTuple | types.NamedUniTuple):
            classes.add(f"{kind.instance_class.__module__}.{kind.instance_class.__qualname__}")
        if isinstance(kind, types.FunctionType):
            todo += [kind.signature.return_type, *kind.signature.args]
    return f"{signature} {sorted(classes)}"


def source_digest(function: Any) -> str | None:
    """Return a digest of the sources of `function` and of all kernels, types and constants that it can reach.

    The signature of a Compiled is part of it. None if a function has no source.
    """
    digest, seen, todo = hashlib.sha256(), set(), [plain_function(function)]
    if isinstance(function, Compiled):
        digest.update(signature_text(function.signature()).encode())
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        source = source_of(current)
        if source is None:
            return None
        # With its module, as pickled code names modules and imports them when it is loaded.
        digest.update(f"{current.__module__}\n{source}".encode())
        for name, value in sorted(reached_values(current), key=lambda item: item[0]):
            if isinstance(value, np.ndarray):
                digest.update(f"{name}={value.dtype!r}{value.shape}".encode() + value.tobytes())
            elif hasattr(value, "kernel_text"):
                digest.update(f"{name}={value.kernel_text}".encode())
            elif _counts(value):  # before a look whether it is a type, which takes longer
                todo.append(plain_function(value))
            elif value is None or isinstance(value, VALUES):
                digest.update(f"{name}={value!r}".encode())
    flags = [f"{flag}={getattr(_config, flag, None)}" for flag in FLAGS]
    digest.update(f"{numba.__version__} {np.__version__} {OPTIONS} {flags}\n{LINKING}".encode())
    return digest.hexdigest()[:20]


def reached_kernels(function: Any) -> list[python_types.FunctionType]:
    """Return the Python functions of a kernel and of all kernels that it can call."""
    found: list[python_types.FunctionType] = []
    todo = [plain_function(function)]
    while todo:
        current = todo.pop()
        if current not in found:
            found.append(current)
            todo += [plain_function(value) for _, value in reached_values(current) if hasattr(value, "py_func")]
    return found


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


def check_bounds() -> None:
    """Compile kernels with bounds checks from now on. The cache keeps them apart from those without."""
    _config.BOUNDSCHECK = 1


class Compiled(types.WrapperAddressProtocol):
    """A kernel of a fixed signature, usable as a value inside other kernels and callable from Python.

    It is compiled (or read from the cache) when it is first used, not when it is defined.
    """

    def __init__(
        self,
        py_func: Callable,
        signature: Any,
        made_from: tuple[Callable, tuple] | None = None,
        written: Callable | None = None,
    ):
        self.py_func = py_func
        self._signature = signature
        self._read: tuple[KernelFiles, Any] | None = None  # what `_kept` has read
        self.made_from = made_from  # function and arguments that made it; None: it is a module's attribute
        # The author's function, by whose name it is imported: py_func, or what py_func was made from.
        self.written: Any = py_func if written is None else written
        functools.update_wrapper(self, py_func)

    def _kept(self) -> tuple[KernelFiles | None, Any]:
        """Return the cache of this kernel (None if it has no source), and what that had of it (None if nothing)."""
        with global_compiler_lock:
            if self._read is None and (digest := source_digest(self)):
                stamp = "" if self.py_func.__module__.startswith(PACKAGE) else file_stamp(self.py_func)
                files = KernelFiles(digest, stamp, cache_root() / digest)
                self._read = files, files.load_overload(self._signature, cpu_target.target_context)
            return self._read or (None, None)

    @functools.cached_property
    def dispatcher(self) -> Any:
        """Numba's object that compiles, and that checks the arguments of calls. Entries from the cache need none."""
        if JIT_DISABLED:
            return self.py_func
        dispatcher = _njit(pipeline_class=OuterCompiler, **OPTIONS)(self.py_func)
        files, kept = self._kept()
        if files is not None:
            dispatcher._cache = files
        if kept is not None:
            dispatcher.add_overload(kept)
        else:
            self._compile(dispatcher)
        dispatcher.disable_compile()
        return dispatcher

    @property
    def _result(self) -> Any:
        """Numba's result of compiling, or what the cache had of it."""
        _, kept = self._kept()
        return kept if kept is not None else next(iter(self.dispatcher.overloads.values()))

    def _compile(self, dispatcher: Any) -> None:
        """Compile a dispatcher, or load what another process has compiled meanwhile."""
        progress = CompileProgress(self.py_func, lambda: uncompiled_kernels(self))
        directory = dispatcher._cache.cache_path
        # Of several processes, one compiles and the others load what it wrote. Numba's lock is taken first: a thread
        # that compiles holds it already when it comes here for a kernel that its own kernel reaches.
        waiting = f"servegym: waiting for another process, which compiles kernels of {progress.name}"
        alone = alone_in(Path(directory), waiting) if directory else contextlib.nullcontext()
        listening = install_listener("numba:compile", progress)
        with global_compiler_lock, alone, listening, no_garbage_collection(), warnings.catch_warnings():
            # Numba calls first-class functions experimental.
            warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)
            dispatcher.compile(self._signature)

    @functools.cached_property
    def _address(self) -> int:
        return self._result.library.get_pointer_to_function(self._result.fndesc.llvm_cfunc_wrapper_name)

    def __wrapper_address__(self) -> int:
        return self._address

    def signature(self) -> Any:
        return self._signature

    @property
    def value(self) -> Any:
        """The argument for a kernel: this object, or the plain function if compilation is off."""
        return self.py_func if JIT_DISABLED else self

    @functools.cached_property
    def entry(self) -> Callable:
        """The compiled function without Numba's check of argument types, which takes 0.5 ms for the arrays of a run.

        Call it only with arguments of the signature's types.
        """
        if JIT_DISABLED:
            return self.py_func
        return self._result.entry_point

    def __call__(self, *arguments: Any) -> Any:
        # Registers the type of kernels as arguments, which nothing else has imported if nothing was compiled.
        import numba.experimental.function_type  # noqa: F401

        return self.dispatcher(*arguments)

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
    used = _names(template.py_func.__code__)
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
    return Compiled(copy, template.signature(), (_make, (template, names)))


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


def compiled(signature: Any) -> Callable[[Callable], Compiled]:
    """Return a decorator for first-class kernels of this signature."""
    return lambda py_func: Compiled(py_func, signature)
