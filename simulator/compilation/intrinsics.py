"""Intrinsics: functions that generate the LLVM code of a call, made known to Numba when something is compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Intrinsic:
    """What `numba.extending.intrinsic` makes of a function, without importing Numba before a kernel is compiled."""

    def __init__(self, function: Callable):
        self._defn = function
        functools.update_wrapper(self, function)

    @functools.cached_property
    def _numba_type_(self) -> Any:
        from numba import types
        from numba.core.typing.templates import make_intrinsic_template

        return types.Function(make_intrinsic_template(self, self._defn, self._defn.__name__))

    def __call__(self, *arguments: Any) -> Any:
        raise NotImplementedError(f"{self._defn.__name__} is part of compiled code; Python cannot call it")

    def __deepcopy__(self, memo: Any) -> Intrinsic:
        return self


def intrinsic(function: Callable) -> Any:
    """Return an intrinsic; function(typing_context, *types) returns its signature and what generates its code."""
    return Intrinsic(function)
