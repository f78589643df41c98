"""`servegym validate`: measured runs beside the same runs simulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegym.cli import options
from servegym.cli.output import check_output_folder, console_for, new_table, number, write_json
from servegym.errors import ServegymError

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

EXAMPLES = """\
[bold]Examples[/bold]

SERVEGYM_DATA=data servegym validate

servegym validate --run llama-2-7b --run mixtral

servegym validate --closed-loops

servegym validate my_requests.csv --profile results/calibrate/mine.json --max-sequences 128
"""
SHOWN = ("e2e", "itl", "ttft")


def validate(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[REQUESTS]",
            help="Requests of one's own as they were served, CSV or Parquet: arrival_s, prompt_tokens, output_tokens, "
            "ttft_s, e2e_s; if there are, failed and prompt_id. Else the measured runs under SERVEGYM_DATA.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="What served REQUESTS, CPU time included.", rich_help_panel=options.WHAT),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="Only runs whose name has it. Repeatable.", rich_help_panel=options.ON_WHAT),
    ] = None,
    closed_loops: Annotated[
        bool,
        typer.Option(
            "--closed-loops", help="The measured closed loops instead of the runs.", rich_help_panel=options.ON_WHAT
        ),
    ] = False,
    max_sequences: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="max_num_seqs of REQUESTS' engine.", rich_help_panel=options.WHAT),
    ] = 256,
    batch_tokens: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="max_num_batched_tokens of REQUESTS' engine.", rich_help_panel=options.WHAT
        ),
    ] = 2048,
    out: Annotated[
        Path,
        typer.Option(
            metavar=options.OUT_METAVAR, help="Folder for the errors and the picture.", rich_help_panel=options.OUTPUT
        ),
    ] = Path("results/validate"),
    json: options.Json = None,
) -> None:
    """Simulate runs that were measured on real engines, and show how far off the simulation is.

    Writes errors.csv, every figure measured and simulated under every assumption, and scatter.png. Nothing is fitted to
    the runs, and none is left out. Of closed loops it also says how well a simulation chooses among configurations.
    """
    check_output_folder(out)
    if closed_loops:
        if file is not None or profile is not None or run:
            raise ServegymError("--closed-loops takes no requests, --profile or --run")
        return _closed_loops(out, json)
    if (file is None) != (profile is None):
        raise ServegymError("requests of one's own take --profile, what served them; measured runs have their own")
    errors, requests = _own(file, profile, max_sequences, batch_tokens) if file and profile else _runs(run)
    from servegym.evaluation.measured.plot import plot
    from servegym.evaluation.measured.study import HEADLINE

    out.mkdir(parents=True, exist_ok=True)
    path, picture = out / "errors.csv", out / "scatter.png"
    errors.to_csv(path, index=False)
    plot(errors[errors["case"] == HEADLINE], picture)
    console = console_for(json)
    console.print(error_table(errors[errors["case"] == HEADLINE]), case_table(errors))
    console.print(f"written: {path}, {picture}", soft_wrap=True)
    if json is not None:
        rows: list[dict[str, Any]] = errors.to_dict("records")
        write_json({"errors": rows, "by_request_percent": requests, "files": [path, picture]}, json)


def _closed_loops(out: Path, json: str | None) -> None:
    from servegym.evaluation.measured import ranking
    from servegym.evaluation.measured.closed_loops import read_loops
    from servegym.evaluation.measured.closed_study import medians, study
    from servegym.evaluation.measured.plot import plot_loops
    from servegym.evaluation.measured.runs import folder_of_runs
    from servegym.evaluation.measured.study import HEADLINE

    folder = folder_of_runs()
    errors = study(read_loops(folder)[0], folder)
    out.mkdir(parents=True, exist_ok=True)
    path, picture = out / "errors.csv", out / "scatter.png"
    errors.to_csv(path, index=False)
    headlined = errors[errors["case"] == HEADLINE]
    plot_loops(headlined, picture)
    cases = new_table("median |error|, %", "points", "TPOT", "TTFT")
    for name, rows in errors.groupby("case", sort=False):
        found = medians(rows)
        cases.add_row(str(name), number(len(rows)), number(found["tpot"], 1), number(found["ttft"], 1))
    orders = ranking.orders(headlined)
    order = new_table("order of configurations", "pairs right", "mean regret, %")
    for metric, rows in orders.groupby("metric", sort=False):
        order.add_row(str(metric), f"{rows['right'].sum()} of {rows['pairs'].sum()}", number(rows["regret"].mean(), 1))
    console = console_for(json)
    console.print(cases, order)
    console.print(f"written: {path}, {picture}", soft_wrap=True)
    if json is not None:
        points: list[dict[str, Any]] = errors.to_dict("records")
        write_json({"errors": points, "orders": orders.to_dict("records"), "files": [path, picture]}, json)


def _own(
    file: Path, profile: str, max_sequences: int, batch_tokens: int
) -> tuple[pd.DataFrame, dict[str, dict[str, float]]]:
    from servegym.evaluation.measured.engine_terms import EngineTerms
    from servegym.evaluation.measured.runs import read_own
    from servegym.evaluation.measured.serving import simulated
    from servegym.evaluation.measured.study import HEADLINE, Case, by_request, errors_of
    from servegym.latency_models.profile import load_profile

    own = read_own(file, max_sequences, batch_tokens)
    case = Case(HEADLINE, "the profile, and nothing beside it", lambda run: EngineTerms("none", "the profile has all"))
    served = simulated(own, load_profile(profile), case.terms(own))
    return errors_of([(own, case, served)]), {own.name: by_request(own, served)}


def _runs(words: list[str] | None) -> tuple[pd.DataFrame, dict[str, dict[str, float]]]:
    from servegym.evaluation.measured.runs import folder_of_runs, read_runs
    from servegym.evaluation.measured.study import HEADLINE, by_request, errors_of, study

    folder = folder_of_runs()
    runs = [one for one in read_runs(folder) if not words or any(word in one.name for word in words)]
    if not runs:
        raise ServegymError(f"no measured run's name has {' or '.join(words or ())}")
    served = list(study(runs, folder))
    of_requests = {run.name: by_request(run, found) for run, case, found in served if case.name == HEADLINE}
    return errors_of(served), of_requests


def error_table(errors: pd.DataFrame) -> Table:
    """Signed errors by run and stage."""
    table = new_table(
        "error, %", "stage", *(f"{metric} {part}" for metric in SHOWN for part in ("mean", "p99")), "tokens/s"
    )
    for (name, stage), rows in errors.groupby(["run", "stage"], sort=False):
        by_metric = rows.set_index("metric")["error_percent"]
        figures = [by_metric[f"{metric}_{part}"] for metric in SHOWN for part in ("mean", "p99")]
        mark = " (given up on)" if rows["overloaded"].iloc[0] else ""
        table.add_row(
            f"{name}{mark}",
            str(stage),
            *(number(float(one), 1) for one in (*figures, by_metric["output_tokens_per_s"])),
        )
    return table


def case_table(errors: pd.DataFrame) -> Table:
    """Median absolute errors of means over runs, for each assumption."""
    from servegym.evaluation.measured.figures import headline

    table = new_table("median |error| of means, %", "runs", *SHOWN)
    for name, rows in errors.groupby("case", sort=False):
        medians = headline(rows)
        table.add_row(str(name), number(int(rows["run"].nunique())), *(number(medians[metric], 1) for metric in SHOWN))
    return table
