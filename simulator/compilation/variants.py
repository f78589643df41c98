"""Variants of a kernel: copies with constants replaced in it and in all kernels that it calls."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

from servegym.simulator.compilation.digests import reached_values
from servegym.simulator.compilation.kernels import Compiled, InnerKernel, with_globals
from servegym.simulator.compilation.settings import JIT_DISABLED


@functools.cache
def variant(template: Compiled, named: str, constants: tuple[tuple[str, Any], ...]) -> Compiled:
    """Return `template` with these constants in place of globals of their names, in all kernels that it reaches.

    named: suffix of the names of its kernels (`with_globals`). Numba drops a branch on a false constant before types
    are inferred. With compilation off, `template` itself is returned.
    """
    if JIT_DISABLED:
        return template
    return Variant(template, named, constants)


class Variant(Compiled):
    """A variant. Its kernels, hundreds, are copied when it is first used, as a process uses one event loop."""

    __name__: str

    def __init__(self, template: Compiled, named: str, constants: tuple[tuple[str, Any], ...]):
        super().__init__(template.py_func, template.declared, made_from=(variant, (template, named, constants)))
        del self.py_func  # the property below makes it
        self.__name__ = f"{template.written.__name__}_{named}"

    @functools.cached_property
    def py_func(self) -> Any:  # type: ignore[override]
        original: Any = self.written
        _, named, constants = self.__reduce__()[1]
        copy = _Copies(named, dict(constants)).of_function(original)
        functools.update_wrapper(self, copy)
        return copy


class _Copies:
    """Copies of kernels: those that reach one of the constants are copied, each once; the others are shared."""

    def __init__(self, named: str, constants: dict[str, Any]):
        self.named, self.constants = named, constants
        self.made: dict[FunctionType, InnerKernel] = {}
        self.globals: dict[int, dict[str, Any]] = {}  # the copies', by the id of the originals'; one for each module

    def of_kernel(self, kernel: InnerKernel) -> InnerKernel:
        function: FunctionType = kernel.py_func  # type: ignore[assignment]
        if function not in self.made:
            copy = self.of_function(function)
            self.made[function] = kernel if copy is function else InnerKernel(copy, kernel.options)
        return self.made[function]

    def of_function(self, original: FunctionType) -> FunctionType:
        """Return a copy of a function with replaced globals, or the function itself if none is."""
        replaced: dict[str, Any] = {}
        for name, value in reached_values(original):
            if name in self.constants:
                replaced[name] = self.constants[name]
            elif isinstance(value, InnerKernel):
                made = self.of_kernel(value)
                if made is not value:
                    replaced[name] = made
        if not replaced:
            return original
        values, module = original.__globals__, id(original.__globals__)
        values = self.globals[module] = self.globals.get(module) or dict(values)
        values.update(replaced)  # in a module a name is the same for all functions, so they share them
        return with_globals(original, values, self.named)
