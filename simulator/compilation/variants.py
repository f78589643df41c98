"""Variants of a kernel: copies with constants replaced in it and in all kernels that it calls."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

from servegym.simulator.compilation.kernels import JIT_DISABLED, Compiled, reached_values, with_globals
from servegym.simulator.compilation.linking import InnerKernel


@functools.cache
def variant(template: Compiled, named: str, constants: tuple[tuple[str, Any], ...]) -> Compiled:
    """Return `template` with these constants in place of globals of their names, in all kernels that it reaches.

    named: suffix of the names of its kernels (`with_globals`). Numba drops a branch on a false constant before types
    are inferred. With compilation off, `template` itself is returned.
    """
    if JIT_DISABLED:
        return template
    original: Any = template.py_func
    function = _Copies(named, dict(constants)).of_function(original)
    return Compiled(function, template.signature(), made_from=(variant, (template, named, constants)))


class _Copies:
    """Copies of kernels: those that reach one of the constants are copied, each once; the others are shared."""

    def __init__(self, named: str, constants: dict[str, Any]):
        self.named, self.constants = named, constants
        self.made: dict[FunctionType, InnerKernel] = {}

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
        return with_globals(original, replaced, self.named) if replaced else original
