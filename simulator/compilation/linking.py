"""Linking: kernels that only kernels call become machine code once, within the kernel that Python enters.

Numba makes a library of each function: all that it calls is linked in, optimised and compiled to machine code, with an
entry for Python and one for C. Of the hundreds of kernels of an event loop only one is entered, so two thirds of a
first compile would go into code that never runs. Here an inner kernel ends as LLVM code; the outer one (`Compiled`)
links all that it reaches, each kernel once, and is optimised as a whole.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numba
from numba import _dynfunc, types  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering

# Options of Numba for inner kernels: no entries.
INNER = {"nopython": True, "boundscheck": None, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

ENVIRONMENT, MISSING = "_ZN08NumbaEnv", ".const.missing Environment: "  # prefixes of names that Numba gives


class InnerLibrary(JITCodeLibrary):
    """The LLVM code of an inner kernel alone, not optimised and not executable."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalize_dynamic_globals()
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "external":
                function.linkage = "linkonce_odr"  # several outer kernels may link it
        self._finalized = True

    @property
    def module(self) -> Any:
        """Its own code, without that of its callees."""
        self._ensure_finalized()
        return self._final_module

    def _get_module_for_linking(self) -> Any:
        """Return its code and that of all it reaches, for Numba's own libraries, such as a user's `njit`."""
        if self._shared_module is None:
            module = self.module.clone()
            link(module, self._linking_libraries)
            self._shared_module = module
        return self._shared_module


class OuterLibrary(JITCodeLibrary):
    """The code of a kernel that Python enters, and of all that it reaches."""

    def finalize(self) -> None:
        link(self._final_module, self._linking_libraries)
        self._linking_libraries = []
        # As internal functions, those called once are inlined, and unused arguments are dropped.
        for function in self._final_module.functions:
            if function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        drop_environments(self._final_module)
        super().finalize()


def drop_environments(module: Any) -> None:
    """Drop the variables for environments (a function's Python objects) that no code of a module reads.

    Code that reads one checks first whether it is there, and has its name in the message if it is not. The names of the
    others, which have all fields of the arguments' types, would be most of a kernel's file; and to read it Numba would
    make these environments, in 40 us each, and import the modules of their functions.
    """
    variables = list(module.global_variables)
    read = {one.name.removeprefix(MISSING) for one in variables if one.name.startswith(MISSING)}
    for one in variables:
        if one.name.startswith(ENVIRONMENT) and one.name not in read:
            one.linkage = "internal"  # LLVM removes it, as nothing uses it


def link(module: Any, libraries: Iterable[JITCodeLibrary]) -> None:
    """Link libraries, and all that the inner ones among them reach, into a module."""
    for library in callers_first(libraries):
        code = library.module if isinstance(library, InnerLibrary) else library._get_module_for_linking()
        module.link_in(code, preserve=True)


def callers_first(libraries: Iterable[Any]) -> list[Any]:
    """Return the libraries and all that the inner ones among them reach, each after all of its callers.

    LLVM leaves out a function that no linked function calls, so callers come first.
    """
    callees_first: list[Any] = []
    seen: set[int] = set()
    todo: list[tuple[Any, bool]] = [(library, False) for library in libraries]
    while todo:
        library, is_done = todo.pop()
        if is_done:
            callees_first.append(library)
        elif id(library) not in seen:
            seen.add(id(library))
            todo.append((library, True))
            if isinstance(library, InnerLibrary):
                todo += [(inner, False) for inner in library._linking_libraries]
    return callees_first[::-1]


@register_pass(mutates_CFG=True, analysis_only=False)
class InnerLowering(NativeLowering):
    """Numba's lowering without what makes a function executable: entries and machine code."""

    _name = "inner_lowering"

    def run_pass(self, state: Any) -> bool:
        library = state.library = InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        fndesc, env = lowered.fndesc, lowered.env
        # A stand-in for the function where kernels look it up; it cannot be called.
        function = _dynfunc.make_function(fndesc.lookup_module(), fndesc.qualname, "", 0, env, (library,))
        state.targetctx.insert_user_function(function, fndesc, [library])
        state["cr"] = lowered._replace(cfunc=function)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class OuterLowering(NativeLowering):
    """Numba's lowering into a library that links inner kernels."""

    _name = "outer_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = OuterLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


class KernelCompiler(CompilerBase):
    """Numba's compiler with another lowering pass."""

    lowering: type

    def define_pipelines(self) -> list[Any]:
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.passes = [(self.lowering if one is NativeLowering else one, what) for one, what in pipeline.passes]
        pipeline.finalize()
        return [pipeline]


class InnerCompiler(KernelCompiler):
    lowering = InnerLowering


class OuterCompiler(KernelCompiler):
    lowering = OuterLowering


def widened(kind: Any) -> Any:
    """Return the type that an inner kernel gets for an argument: int64 for all signed integers, literal ones too."""
    return types.int64 if types.unliteral(kind) in types.signed_domain else kind


class InnerDispatcher(CPUDispatcher):
    """Numba's dispatcher, which compiles a kernel once for all kinds of signed integers that it is called with."""

    def fold_argument_types(self, args: Any, kws: Any) -> Any:
        signature, folded = super().fold_argument_types(args, kws)
        return signature, tuple(map(widened, folded))

    def get_call_template(self, args: Any, kws: Any) -> Any:
        return super().get_call_template([*map(widened, args)], {name: widened(kind) for name, kind in kws.items()})


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
        return {**self.options, **INNER}

    @functools.cached_property
    def _dispatcher(self) -> Any:
        return InnerDispatcher(self.py_func, targetoptions=self.targetoptions, pipeline_class=InnerCompiler)

    @property
    def _numba_type_(self) -> Any:
        return self._dispatcher._numba_type_

    @property
    def overloads(self) -> dict[Any, Any]:
        """What Numba has compiled of it in this process."""
        return self._dispatcher.overloads if "_dispatcher" in vars(self) else {}

    @functools.cached_property
    def _entered(self) -> Any:
        return numba.njit(pipeline_class=OuterCompiler, **self.options)(self.py_func)

    def __call__(self, *arguments: Any) -> Any:
        return self._entered(*arguments)

    def __reduce__(self) -> Any:
        return kernel_named, (self.py_func.__module__, self.py_func.__qualname__)


def kernel_named(module: str, name: str) -> Any:
    """Return a kernel by its module and name."""
    return getattr(importlib.import_module(module), name)
