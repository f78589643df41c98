"""Linking: kernels that only kernels call become machine code once, within the kernel that Python enters.

Numba makes a library of each function: all that it calls is linked in, optimised and compiled to machine code, with an
entry for Python and one for C. Of the hundreds of kernels of an event loop only one is entered, so two thirds of a
first compile would go into code that never runs. Here an inner kernel ends as LLVM code; the outer one (`Compiled`)
links all that it reaches, each kernel once, and is optimised as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from numba import _dynfunc, types  # type: ignore[attr-defined]
from numba.core import cgutils, lowering
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.errors import new_error_context  # type: ignore[attr-defined]
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering

from servegym.simulator.compilation.entries import add_entry

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
        self.make_internal(self._final_module)
        drop_environments(self._final_module)
        super().finalize()

    def make_internal(self, module: Any) -> None:
        """Make inner kernels internal: LLVM inlines those called once, and drops unused arguments."""
        for function in module.functions:
            if function.linkage.name == "linkonce_odr":
                function.linkage = "internal"


class EntryLibrary(OuterLibrary):
    """The same for a kernel that is kept on disk: its two functions are called after its content, all else is internal.

    Names that Numba gives have counters of the process, so that of two files both may have the same.
    """

    own_names: tuple[str, str]  # of Numba, for the entry and for the function that kernels call
    names: tuple[str, str]

    def make_internal(self, module: Any) -> None:
        """Make all but its two functions internal, and name those."""
        content = hashlib.sha256(module.as_bitcode()).hexdigest()[:24]
        self.names = f"called.{content}", f"addressed.{content}"
        for own, name in zip(self.own_names, self.names, strict=True):
            module.get_function(own).name = name
        for function in module.functions:
            if not function.is_declaration and function.name not in self.names:
                function.linkage = "internal"


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


class Lower(lowering.Lower):
    """Numba's lowering, but a function that is a value is called at its C address, the only one that a kernel has.

    Numba adds code for two other kinds: functions that return exceptions to the caller, and functions of Python.
    """

    def _lower_call_FunctionType(self, kind: Any, call: Any, signature: Any) -> Any:
        signature = types.unliteral(signature)
        given = self.fold_call_args(kind, signature, call.args, call.vararg, call.kws)
        function = cgutils.create_struct_proxy(kind)(self.context, self.builder, value=self.loadvar(call.func.name))
        pointer = self.builder.bitcast(function.c_addr, self.context.get_value_type(kind.ftype))
        return self.builder.call(pointer, given)


class KernelLowering(NativeLowering):
    _name: Any

    @property
    def lowering_class(self) -> Any:
        return Lower


@register_pass(mutates_CFG=True, analysis_only=False)
class InnerLowering(KernelLowering):
    """Lowering without what makes a function executable: entries and machine code."""

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
class OuterLowering(KernelLowering):
    """Lowering into a library that links inner kernels."""

    _name = "outer_lowering"
    library_class = OuterLibrary

    def run_pass(self, state: Any) -> bool:
        state.library = self.library_class(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class EntryLowering(OuterLowering):
    """The same, with an entry of ours in the place of Numba's."""

    _name = "entry_lowering"
    library_class = EntryLibrary

    def run_pass(self, state: Any) -> bool:
        state.flags.no_cpython_wrapper = state.flags.no_compile = True
        super().run_pass(state)
        described = state["cr"].fndesc
        own = f"entry.{described.llvm_func_name}"
        add_entry(state.targetctx, state.library, described, own)
        state.library.own_names = own, described.llvm_cfunc_wrapper_name
        return True


class KernelPasses(PassManager):
    """Numba's passes without its event for each, to which nothing listens.

    Such an event has the types of all arguments as text, and all flags: a twentieth of the time of a first compile.
    """

    def _runPass(self, index: int, run: Any, state: Any) -> None:
        run.analysis = self._analysis
        with new_error_context("Pass {name}", name=run.name()):
            for step in (run.run_initialization, run.run_pass, run.run_finalizer):
                step(state)


class KernelCompiler(CompilerBase):
    """Numba's compiler with another lowering pass."""

    lowering: type

    def define_pipelines(self) -> list[Any]:
        given = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline = KernelPasses(given.pipeline_name)
        pipeline.passes = [(self.lowering if one is NativeLowering else one, what) for one, what in given.passes]
        pipeline.finalize()
        return [pipeline]


class InnerCompiler(KernelCompiler):
    lowering = InnerLowering


class OuterCompiler(KernelCompiler):
    lowering = OuterLowering


class EntryCompiler(KernelCompiler):
    lowering = EntryLowering


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
