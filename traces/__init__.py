"""Traces: readers of public traces, generators, arrival processes and SLO recipes, which make one workload table."""

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.traces: import it under that name")

import importlib
from typing import TYPE_CHECKING, Any

from servegym.traces.arrivals import ARRIVALS
from servegym.traces.families import FAMILIES, generate
from servegym.traces.reading import Reading
from servegym.traces.recipes import RECIPES
from servegym.traces.trace import PrefixBlocks, Trace
from servegym.traces.workloads import build_trace, build_workload, load_trace, trace_names

if TYPE_CHECKING:
    from servegym.traces.inspect import describe
    from servegym.traces.readers import READERS, read_trace
    from servegym.traces.writing import convert, write

# What only files need is imported when it is asked for.
_HOMES = {
    "describe": "inspect",
    "READERS": "readers",
    "read_trace": "readers",
    "convert": "writing",
    "write": "writing",
}

__all__ = [
    "ARRIVALS",
    "FAMILIES",
    "READERS",
    "RECIPES",
    "PrefixBlocks",
    "Reading",
    "Trace",
    "build_trace",
    "build_workload",
    "convert",
    "describe",
    "generate",
    "load_trace",
    "read_trace",
    "trace_names",
    "write",
]

if not TYPE_CHECKING:  # to a type checker, a name that is not listed above is an error

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
