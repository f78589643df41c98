"""Traces: readers of public traces, generators, arrival processes and SLO recipes, which make one workload table."""

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.traces: import it under that name")

from servegym.traces.arrivals import ARRIVALS
from servegym.traces.families import FAMILIES, generate
from servegym.traces.inspect import describe
from servegym.traces.readers import READERS, read_trace
from servegym.traces.reading import Reading
from servegym.traces.recipes import RECIPES
from servegym.traces.trace import PrefixBlocks, Trace
from servegym.traces.workloads import build_trace, build_workload, load_trace, trace_names
from servegym.traces.writing import convert, write

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
