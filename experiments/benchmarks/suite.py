"""`servegym bench`: every benchmark, one after the other, each figure beside its bound."""

import datetime
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from experiments.benchmarks import (
    aisimulate_comparison,
    budgets,
    cluster,
    decisions,
    dynamo_clusters,
    dynamo_comparison,
    environments,
    loops,
    machine,
    memory,
    overload,
    routers,
    schedulers,
    sessions,
    single_engine,
    startup,
    streamed,
    tuning,
    vidur_comparison,
    workers,
)
from experiments.benchmarks.figures import Figure, table
from experiments.benchmarks.scenarios import QUICK, Sizes
from servegym.errors import ExperimentError

NOT_A_TERMINAL_WIDTH = 200  # characters: what the table takes, so that a file of it is good Markdown
Benchmark = Callable[[Sizes], list[Figure]]

# Memory comes first: at its start Linux gives a process the peak of the one that started it, still small here.
BENCHMARKS: dict[str, Benchmark] = {
    "memory of a long run": memory.measure,
    "days that are streamed": streamed.measure,
    "a cluster": cluster.measure,
    "one engine": single_engine.measure,
    "overload": overload.measure,
    "routers": routers.measure,
    "decisions": decisions.measure,
    "environments": environments.measure,
    "the whole process": startup.measure,
    "the first process ever": startup.measure_first,
    "budgets": budgets.measure,
}
# Asked for by name, instead of the others.
ASKED_FOR: dict[str, Benchmark] = {
    "budgets": budgets.measure_all,
    "loops": loops.measure,
    "schedulers": schedulers.measure,
    "routers": routers.measure_all,
    "sessions": sessions.measure,
    "tuning": tuning.measure,  # needs the extra tune
    "workers": workers.measure,
}
HOW_TO_GET = {
    "NVIDIA Dynamo": "experiments/benchmarks/dynamo_setup.sh DIR, then servegym bench --dynamo DIR/bin/python",
    "Vidur": "experiments/benchmarks/vidur_setup.sh DIR, then servegym bench --vidur DIR",
    "AISimulate": "experiments/benchmarks/aisimulate_setup.sh DIR, then servegym bench --aisimulate DIR",
}


def run(
    json_path: str | None,
    quick: bool = False,
    dynamo_python: str | None = None,
    vidur: str | None = None,
    aisimulate: str | None = None,
    asked_for: tuple[str, ...] = (),
) -> dict[str, float]:
    """Measure everything and print it on standard error.

    json_path: where one flat JSON object of all figures goes; "-": standard output.
    quick: fewer repetitions. dynamo_python: the Python of Dynamo's environment; None: no comparison.
    vidur, aisimulate: the folder of that simulator's environment, or its Python; None: no comparison.
    asked_for: names of `ASKED_FOR`, each in detail; instead of the others, if there is one.

    Raises ExperimentError if one of these cannot be run or something does not do the work it is timed for.
    """
    pythons = {
        "NVIDIA Dynamo": checked_python(dynamo_python, "dynamo_setup.sh DIR makes DIR/bin/python"),
        "Vidur": checked_python(vidur, "vidur_setup.sh DIR makes DIR"),
        "AISimulate": checked_python(aisimulate, "aisimulate_setup.sh DIR makes DIR"),
    }
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.width = NOT_A_TERMINAL_WIDTH
    benchmarks = {name: ASKED_FOR[name] for name in asked_for} or dict(BENCHMARKS)
    if dynamo := pythons["NVIDIA Dynamo"]:
        benchmarks["NVIDIA Dynamo"] = partial(dynamo_comparison.measure, dynamo_python=dynamo)
        benchmarks["NVIDIA Dynamo, several engines"] = partial(dynamo_clusters.measure, dynamo_python=dynamo)
    if vidur_python := pythons["Vidur"]:
        benchmarks["Vidur"] = partial(vidur_comparison.measure, vidur_python=vidur_python)
    if aisimulate_python := pythons["AISimulate"]:
        benchmarks["AISimulate"] = partial(
            aisimulate_comparison.measure, aisimulate_python=aisimulate_python, dynamo_python=dynamo
        )
    console.print(f"{datetime.date.today()}: {machine.describe()}")
    figures = measure(benchmarks, QUICK if quick else Sizes(), console)
    console.print(table(figures))
    for name, python in pythons.items():
        if python is None and not asked_for:
            console.print(f"{name}: skipped; {HOW_TO_GET[name]}")
    console.print(f"at the end: {machine.describe()}")
    values = {name: value for figure in figures for name, value in figure.values.items()}
    if json_path is not None:
        document = json.dumps(values, indent=2)
        if json_path == "-":
            print(document)
        else:
            Path(json_path).write_text(document + "\n", encoding="utf-8")
    return values


def checked_python(given: str | None, how_to_get: str) -> str | None:
    """The Python of an environment, given as that or as its folder. Raises ExperimentError if it is none."""
    if given is None:
        return None
    python = str(Path(given) / "bin" / "python") if Path(given).is_dir() else given
    if shutil.which(python) is None:
        raise ExperimentError(f"{python} is no program; {how_to_get}")
    return python


def measure(benchmarks: dict[str, Benchmark], sizes: Sizes, console: Console) -> list[Figure]:
    """The figures of all benchmarks, in their order. What is under way is shown; without a terminal, each by a line."""
    figures: list[Figure] = []
    for number, (title, benchmark) in enumerate(benchmarks.items(), 1):
        under_way = f"measuring: {title} ({number} of {len(benchmarks)}) ..."
        if not console.is_terminal:
            console.print(under_way)
        with console.status(under_way):
            figures += benchmark(sizes)
    return figures
