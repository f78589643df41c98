"""`servegym bench`: every benchmark, one after the other, each figure beside its bound."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from servegym.experiments.benchmarks import (
    dynamo_comparison,
    machine,
    memory,
    overload,
    schedulers,
    single_engine,
    startup,
)
from servegym.experiments.benchmarks.figures import Figure, table
from servegym.experiments.benchmarks.scenarios import QUICK, Sizes
from servegym.experiments.errors import ExperimentError

NOT_A_TERMINAL_WIDTH = 150  # characters: what the table takes, so that a file of it is good Markdown
Benchmark = Callable[[Sizes], list[Figure]]

# Memory comes first: at its start Linux gives a process the peak of the one that started it, still small here.
BENCHMARKS: dict[str, Benchmark] = {
    "memory of a long run": memory.measure,
    "one engine": single_engine.measure,
    "overload": overload.measure,
    "the whole process": startup.measure,
    "the first process ever": startup.measure_first,
}
SCHEDULERS: dict[str, Benchmark] = {"schedulers": schedulers.measure}
HOW_TO_GET_DYNAMO = (
    "NVIDIA Dynamo: skipped; experiments/benchmarks/dynamo_setup.sh DIR, then servegym bench --dynamo DIR/bin/python"
)


def run(
    json_path: str | None, dynamo_python: str | None, quick: bool, compare_schedulers: bool = False
) -> dict[str, float]:
    """Measure everything and print it on standard error.

    json_path: where one flat JSON object of all figures goes; "-": standard output.
    dynamo_python: the Python of Dynamo's environment; None: no comparison. quick: fewer repetitions.
    compare_schedulers: measure what an iteration costs under each registered scheduler, and nothing else.

    Raises ExperimentError if `dynamo_python` cannot be run or something does not do the work it is timed for.
    """
    if dynamo_python is not None and shutil.which(dynamo_python) is None:
        raise ExperimentError(f"{dynamo_python} is no program; dynamo_setup.sh DIR makes DIR/bin/python")
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.width = NOT_A_TERMINAL_WIDTH
    benchmarks = dict(SCHEDULERS if compare_schedulers else BENCHMARKS)
    if dynamo_python is not None:
        benchmarks["NVIDIA Dynamo"] = partial(dynamo_comparison.measure, dynamo_python=dynamo_python)
    console.print(f"{datetime.date.today()}: {machine.describe()}")
    figures = measure(benchmarks, QUICK if quick else Sizes(), console)
    console.print(table(figures))
    if dynamo_python is None and not compare_schedulers:
        console.print(HOW_TO_GET_DYNAMO)
    console.print(f"at the end: {machine.describe()}")
    values = {name: value for figure in figures for name, value in figure.values.items()}
    if json_path is not None:
        document = json.dumps(values, indent=2)
        if json_path == "-":
            print(document)
        else:
            Path(json_path).write_text(document + "\n", encoding="utf-8")
    return values


def measure(benchmarks: dict[str, Benchmark], sizes: Sizes, console: Console) -> list[Figure]:
    """The figures of all benchmarks, in their order."""
    figures: list[Figure] = []
    for title, benchmark in benchmarks.items():
        with console.status(f"measuring: {title} ..."):
            figures += benchmark(sizes)
    return figures
