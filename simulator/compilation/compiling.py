"""Compiling kernels by Numba. Imported when something is compiled: a process that only reads kernels needs no Numba."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaExperimentalFeatureWarning
from numba.experimental import function_type as function_type  # registers functions as arguments

from servegym.simulator.compilation import parked_code as parked_code  # registers parked tuples
from servegym.simulator.compilation.linking import (
    ENVIRONMENT,
    INNER,
    EntryCompiler,
    InnerCompiler,
    InnerDispatcher,
    OuterCompiler,
)
from servegym.simulator.compilation.loading import Code, Loaded, function_at
from servegym.simulator.compilation.locks import no_garbage_collection
from servegym.simulator.compilation.numba_types import Signature

__all__ = ["INNER", "compile_kernel", "inner_dispatcher", "lock", "outer_dispatcher"]

lock = global_compiler_lock
_njit: Any = numba.njit


def compile_kernel(
    function: Callable, declared: Signature, options: dict[str, Any], listener: Any
) -> tuple[Loaded, Code | None]:
    """Compile a function for a signature. Returns what can be called, and what can be kept on disk.

    listener: has `on_start` and `on_end` for Numba's events of compiling. Nothing can be kept of code that has
    addresses of this process in it.
    """
    dispatcher = _njit(pipeline_class=EntryCompiler, **options)(function)
    listening = event.install_listener("numba:compile", Passing(listener))
    with lock, listening, no_garbage_collection(), warnings.catch_warnings():
        # Numba calls first-class functions experimental.
        warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)
        signature = declared.numba
        what = {"dispatcher": dispatcher, "args": signature.args, "return_type": signature.return_type}
        with event.trigger_event("numba:compile", data=what):
            made = dispatcher._compiler.compile(signature.args, signature.return_type)
            return loaded_and_code(made)


class Passing(event.Listener):
    """Passes Numba's events on."""

    def __init__(self, to: Any):
        self.to = to

    def on_start(self, event: Any) -> None:
        self.to.on_start(event)

    def on_end(self, event: Any) -> None:
        self.to.on_end(event)


def loaded_and_code(made: Any) -> tuple[Loaded, Code | None]:
    """Return what can be called, and kept, of Numba's result of compiling."""
    library, described = made.library, made.fndesc
    library._ensure_finalized()
    called, addressed = library.names
    entry = function_at(library.get_pointer_to_function(called), described.qualname)
    loaded = Loaded(entry, library.get_pointer_to_function(addressed))
    module = library._final_module
    environments = [one.name for one in module.global_variables if one.name.startswith(ENVIRONMENT)]
    if described.env_name in environments:
        made.target_context.codegen().set_env(described.env_name, made.environment)
    _alive.append(library)
    if library.has_dynamic_globals or environments:
        return loaded, None
    needed = tuple(one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm."))
    needed += tuple(one.name for one in module.global_variables if one.is_declaration)
    return loaded, Code(described.qualname, library._get_compiled_object(), called, addressed, needed)


_alive: list[Any] = []  # libraries, which own the code


def inner_dispatcher(function: Callable, options: dict[str, Any]) -> Any:
    """Return Numba's dispatcher of a kernel that only kernels call."""
    return InnerDispatcher(function, targetoptions=options, pipeline_class=InnerCompiler)


def outer_dispatcher(function: Callable, options: dict[str, Any]) -> Any:
    """Return Numba's dispatcher of an executable copy of such a kernel."""
    return _njit(pipeline_class=OuterCompiler, **options)(function)
