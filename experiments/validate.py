"""`python -m experiments validate`: the public measured runs beside the same runs simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pandas as pd
import typer

from servegym.cli import options
from servegym.cli.output import check_output_folder, console_for, number, write_json
from servegym.cli.progress import bar_of
from servegym.cli.tables import show_tables
from servegym.cli.validate import write_errors
from servegym.errors import ServegymError

EXAMPLES = """\
[bold]Examples[/bold]

SERVEGYM_DATA=data python -m experiments validate

python -m experiments validate --run llama-2-7b --run mixtral

python -m experiments validate --closed-loops
"""
T = TypeVar("T")


def validate(
    run: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Only runs whose name contains it. Repeatable.")
    ] = None,
    closed_loops: Annotated[
        bool, typer.Option("--closed-loops", help="The measured closed loops instead of the runs.")
    ] = False,
    out: Annotated[
        Path, typer.Option(metavar=options.OUT_METAVAR, help="Folder for the errors and the picture.")
    ] = Path("results/validate"),
    json: options.Json = None,
) -> None:
    """Simulate the runs that were measured on real engines, and show how far off the simulation is.

    Reads measured/ under SERVEGYM_DATA. Writes errors.csv, every figure measured and simulated under every assumption,
    and scatter.png. Nothing is fitted to the runs, and none is left out. Of closed loops it also says how well a
    simulation chooses among configurations.
    """
    check_output_folder(out)
    if closed_loops:
        if run:
            raise ServegymError("--closed-loops takes no --run")
        return _closed_loops(out, json)
    errors, requests = _runs(run)
    console = console_for(json)
    written = write_errors(errors, out, console)
    console.print(f"written: {', '.join(map(str, written))}", soft_wrap=True)
    if json is not None:
        rows: list[dict[str, Any]] = errors.to_dict("records")
        write_json({"errors": rows, "by_request_percent": requests, "files": written}, json)


def _closed_loops(out: Path, json: str | None) -> None:
    from experiments.measured import ranking
    from experiments.measured.closed_loops import read_loops
    from experiments.measured.closed_study import medians, study
    from experiments.measured.loops_plot import plot_loops
    from experiments.measured.public_runs import folder_of_runs
    from servegym.evaluation.measured.figures import HEADLINE

    folder = folder_of_runs()
    errors = study(one_by_one("measured points", read_loops(folder)[0]), folder)
    out.mkdir(parents=True, exist_ok=True)
    path, picture = out / "errors.csv", out / "scatter.png"
    errors.to_csv(path, index=False)
    headlined = errors[errors["case"] == HEADLINE]
    plot_loops(headlined, picture)
    cases = []
    for name, rows in errors.groupby("case", sort=False):
        found = medians(rows)
        figures = {"points": number(len(rows)), "TPOT": number(found["tpot"], 1), "TTFT": number(found["ttft"], 1)}
        cases.append({"median |error|, %": str(name)} | figures)
    orders = ranking.orders(headlined)
    order = [
        {
            "order of configurations": str(metric),
            "pairs right": f"{rows['right'].sum()} of {rows['pairs'].sum()}",
            "mean regret, %": number(rows["regret"].mean(), 1),
        }
        for metric, rows in orders.groupby("metric", sort=False)
    ]
    console = console_for(json)
    show_tables(console, {"": cases})
    show_tables(console, {"": order})
    console.print(f"written: {path}, {picture}", soft_wrap=True)
    if json is not None:
        points: list[dict[str, Any]] = errors.to_dict("records")
        write_json({"errors": points, "orders": orders.to_dict("records"), "files": [path, picture]}, json)


def _runs(words: list[str] | None) -> tuple[pd.DataFrame, dict[str, dict[str, float]]]:
    from experiments.measured.public_runs import folder_of_runs, read_runs
    from experiments.measured.study import errors_of, study
    from servegym.evaluation.measured.figures import HEADLINE, by_request

    folder = folder_of_runs()
    runs = [one for one in read_runs(folder) if not words or any(word in one.name for word in words)]
    if not runs:
        raise ServegymError(f"no measured run's name has {' or '.join(words or ())}")
    served = list(study(one_by_one("measured runs", runs), folder))
    of_requests = {run.name: by_request(run, found) for run, case, found in served if case.name == HEADLINE}
    return errors_of(served), of_requests


def one_by_one(what: str, items: Sequence[T]) -> Iterator[T]:
    """The items, with a progress bar of how many have been asked for and are done."""
    with bar_of(what) as (_, progress):
        for count, item in enumerate(items):
            progress(count, len(items))
            yield item
        progress(len(items), len(items))
