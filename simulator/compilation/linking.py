"""Kernels that only kernels call: they become code once, within the kernel that is entered.

Numba makes a library of each function that it compiles: all that it calls is linked in, optimised and turned into
machine code, with an entry for Python and one for C. An event loop has hundreds of kernels, and one of them is entered:
two thirds of a first compile went into code that never ran. Here an inner kernel ends as LLVM code; the outer one
(`Compiled`) links all that it reaches, each kernel once, and is optimised as a whole.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numba
from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering


class InnerLibrary(JITCodeLibrary):
    """The code of an inner kernel and nothing else: not optimised as a whole, never run from here."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalize_dynamic_globals()
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "external":
                function.linkage = "linkonce_odr"  # several outer kernels may have it
        self._finalized = True

    @property
    def module(self) -> Any:
        """Its own code, without that of its callees."""
        self._ensure_finalized()
        return self._final_module

    def _get_module_for_linking(self) -> Any:
        """Its code and that of all it reaches: what a library of Numba's own links, a user's `njit` that calls it."""
        if self._shared_module is None:
            module = self.module.clone()
            link(module, self._linking_libraries)
            self._shared_module = module
        return self._shared_module


class OuterLibrary(JITCodeLibrary):
    """The code of a kernel that is entered, and of all that it reaches."""

    def finalize(self) -> None:
        link(self._final_module, self._linking_libraries)
        self._linking_libraries = []
        # Its own now: what is called once is inlined, and arguments that are not read are dropped.
        for function in self._final_module.functions:
            if function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        super().finalize()


def link(module: Any, libraries: Iterable[JITCodeLibrary]) -> None:
    """Link these into a module, and all that the inner ones among them reach."""
    for library in callers_first(libraries):
        code = library.module if isinstance(library, InnerLibrary) else library._get_module_for_linking()
        module.link_in(code, preserve=True)


def callers_first(libraries: Iterable[Any]) -> list[Any]:
    """These and all that the inner ones among them reach, each behind all of its callers.

    In this order, since LLVM leaves out a function that nothing linked so far calls.
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
    """As Numba's, but for what makes a function run: entries, machine code."""

    _name = "inner_lowering"

    def run_pass(self, state: Any) -> bool:
        library = state.library = InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        fndesc, env = lowered.fndesc, lowered.env
        # Stands for the function where kernels look it up; it has no code to be called at.
        function = _dynfunc.make_function(fndesc.lookup_module(), fndesc.qualname, "", 0, env, (library,))
        state.targetctx.insert_user_function(function, fndesc, [library])
        state["cr"] = lowered._replace(cfunc=function)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class OuterLowering(NativeLowering):
    """As Numba's, into a library that links what inner kernels leave."""

    _name = "outer_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = OuterLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


class KernelCompiler(CompilerBase):
    """Numba's compiler with another way to lower."""

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


class InnerKernel(CPUDispatcher):
    """A kernel for other kernels. Called from Python, by tests and tools, a twin of it runs that can be entered."""

    def __init__(self, function: Callable, options: Mapping[str, Any]):
        inner = {"nopython": True, "boundscheck": None, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        super().__init__(function, targetoptions={**options, **inner}, pipeline_class=InnerCompiler)
        self.options = options

    @functools.cached_property
    def _entered(self) -> Any:
        return numba.njit(pipeline_class=OuterCompiler, **self.options)(self.py_func)

    def __call__(self, *arguments: Any) -> Any:
        return self._entered(*arguments)

    def __reduce__(self) -> Any:
        return kernel_named, (self.py_func.__module__, self.py_func.__qualname__)


def kernel_named(module: str, name: str) -> Any:
    """A kernel by where it is."""
    return getattr(importlib.import_module(module), name)
