"""`servegym validate`: compares served requests with a simulation of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegym.cli import options
from servegym.cli.options import flag, option
from servegym.cli.output import check_output_folder, console_for, number, write_json
from servegym.cli.tables import Rows, show_tables
from servegym.errors import ServegymError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from servegym.evaluation.measured.fitting import Setting
    from servegym.traces.reading import Reading

EXAMPLES = """\
[bold]Examples[/bold]

servegym validate my_requests.csv --profile results/calibrate/mine.json --max-sequences 128

servegym validate results/live/requests.parquet --profile results/calibrate/mine.json --async-scheduling

servegym validate light.csv heavy.csv burst.csv --profile a100-llama3-8b --fit my-engine
"""
SHOWN = ("e2e", "itl", "ttft")
LEAVING = ("e2e p99", "itl p99", "tokens/s", "stage", "e2e mean")  # columns left out in a narrow terminal


def validate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[REQUESTS]...",
            help="Served requests, a CSV or Parquet file a run with arrival_s, prompt_tokens, output_tokens, ttft_s, "
            "e2e_s (or --columns names them) and optionally failed and prompt_id. Or the detailed result of vllm bench "
            "serve, or the report of AIPerf, GuideLLM or inference-perf.",
        ),
    ] = None,
    profile: Annotated[
        str | None, option("PROFILE", "Profile of REQUESTS' engine, with its CPU time.", options.WHAT, "--profile")
    ] = None,
    fit: Annotated[
        str | None,
        option(
            "NAME",
            "Fit batch times, CPU time of a step and the client's delay to REQUESTS, write profile NAME, and report "
            "how many runs the fit needs.",
            options.WHAT,
        ),
    ] = None,
    within: Annotated[
        float, option("PERCENT", "With --fit: the largest error that is small enough.", options.WHAT, min=0.1)
    ] = 5.0,
    max_sequences: Annotated[int, option("N", "max_num_seqs of REQUESTS' engine.", options.WHAT, min=1)] = 256,
    batch_tokens: Annotated[
        int, option("N", "max_num_batched_tokens of REQUESTS' engine.", options.WHAT, min=1)
    ] = 2048,
    asynchronous: Annotated[
        bool,
        flag(
            "REQUESTS' engine formed the next batch while one ran, as vLLM does by default since 0.14.",
            options.WHAT,
            "--async-scheduling",
        ),
    ] = False,
    columns: options.Columns = None,
    time_unit: options.TimeUnit = None,
    out: Annotated[Path, option(options.OUT_METAVAR, "Folder for the errors and the picture.", options.OUTPUT)] = Path(
        "results/validate"
    ),
    json: options.Json = None,
) -> None:
    """Simulate requests that a real engine has served, and show the errors of the simulation.

    Writes errors.csv, with every figure measured and simulated, and scatter.png. Nothing is fitted unless --fit is
    given, and no request is left out. The public measured runs are a study: python -m experiments validate, in a clone.
    """
    check_output_folder(out)
    if not files or profile is None:
        raise ServegymError(
            "validate takes files of served requests and --profile, the profile of their engine; the public measured "
            "runs are a study: python -m experiments validate, in a clone"
        )
    if fit and not re.fullmatch("[a-z0-9][a-z0-9.-]*", fit):
        raise ServegymError(f"--fit {fit}: a profile's name has small letters, digits, dots and hyphens")
    from servegym.traces.reading import Reading

    reading = Reading(columns or (), time_unit)
    settings = _own(files, profile, max_sequences, batch_tokens, asynchronous, reading)
    errors, requests = _errors_of_own(settings)
    console = console_for(json)
    for served, _, _ in settings:
        for note in served.notes:
            console.print(f"{served.name}: {note}")
    written = write_errors(errors, out, console)
    fitted = None
    if fit:
        made, fitted = _fit(fit, profile, settings, within, console)
        written.append(out / f"{fit}.json")
        written[-1].write_text(made, encoding="utf-8")
    console.print(f"written: {', '.join(map(str, written))}", soft_wrap=True)
    rows = errors.to_dict("records")
    write_json({"errors": rows, "by_request_percent": requests, "fitted": fitted, "files": written}, json)


def write_errors(errors: pd.DataFrame, out: Path, console: Console) -> list[Path]:
    """Write the errors and their picture into a folder, and print both tables; returns the files."""
    from servegym.evaluation.measured.figures import HEADLINE
    from servegym.evaluation.measured.plot import plot

    out.mkdir(parents=True, exist_ok=True)
    path, picture = out / "errors.csv", out / "scatter.png"
    errors.to_csv(path, index=False)
    plot(errors[errors["case"] == HEADLINE], picture)
    show_tables(console, {"": error_rows(errors[errors["case"] == HEADLINE])}, LEAVING, ["stage"])
    show_tables(console, {"": case_rows(errors)})
    console.print(f"{HEADLINE}: each run as it was served, with no assumption changed.")
    return [path, picture]


def _fit(
    name: str, profile: str, settings: list[Setting], within: float, console: Console
) -> tuple[str, dict[str, Any]]:
    """Fit a profile and print both tables; returns the profile's text and a record of the fit."""
    from dataclasses import asdict

    from servegym.cli.progress import bar_of
    from servegym.evaluation.measured.few_runs import curve, errors_left, needed
    from servegym.evaluation.measured.fitted_profile import fitted_document
    from servegym.evaluation.measured.fitting import fit
    from servegym.latency_models.documents import to_text
    from servegym.latency_models.estimators import ESTIMATOR
    from servegym.latency_models.profile import profile_document

    terms = fit(settings)
    base = profile_document(profile.partition(ESTIMATOR)[0])
    command = f"servegym validate {len(settings)} files --profile {profile} --fit {name}"
    document = fitted_document(name, base, settings[0][1], terms, settings, command)
    with bar_of("fits to fewer runs") as (_, progress):
        left = curve(errors_left(settings, progress))
    found = needed(left, within)
    console.print(
        f"fitted to all: every batch times {terms.factor:.4g}, {1e3 * terms.step_cpu_s:.3g} ms of CPU time a step, "
        f"{1e3 * terms.client_s:.3g} ms before the queue",
        soft_wrap=True,
    )
    show_tables(console, {"": fit_rows(left, found, within)})
    return to_text(document), {"terms": asdict(terms), "runs_needed": found, "errors_left": left.to_dict("index")}


def fit_rows(left: pd.DataFrame, needed: dict[str, int | None], percent: float) -> Rows:
    """Make the rows of errors on runs left out of a fit, by the number of fitted runs, and the number that suffices."""
    head = "runs fitted: median |error| of the others, %"
    rows = [
        {head: str(count)} | {metric: number(float(errors[metric]), 1) for metric in SHOWN}
        for count, errors in left.iterrows()
    ]
    of_each = {metric: "more" if needed[metric] is None else str(needed[metric]) for metric in SHOWN}
    return [*rows, {head: f"runs needed for {percent:g} %"} | of_each]


def _own(
    files: list[Path], profile: str, max_sequences: int, batch_tokens: int, asynchronous: bool, reading: Reading
) -> list[Setting]:
    from servegym.evaluation.measured.engine_terms import EngineTerms
    from servegym.evaluation.measured.runs import read_own
    from servegym.latency_models.profile import load_profile

    stems = [file.stem for file in files]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None:
        raise ServegymError(f"two files have the name {twice}, which names a run; rename one")
    terms, served_by = EngineTerms("none", "the profile has all", asynchronous=asynchronous), load_profile(profile)
    return [(read_own(file, max_sequences, batch_tokens, reading), served_by, terms) for file in files]


def _errors_of_own(settings: list[Setting]) -> tuple[pd.DataFrame, dict[str, dict[str, float]]]:
    from servegym.evaluation.measured.figures import HEADLINE, by_request, errors_of
    from servegym.evaluation.measured.serving import simulated

    served = [(run, HEADLINE, simulated(run, profile, terms)) for run, profile, terms in settings]
    return errors_of(served), {run.name: by_request(run, found) for run, _, found in served}


def error_rows(errors: pd.DataFrame) -> Rows:
    """Make the rows of signed errors by run and stage."""
    found = []
    for (name, stage), rows in errors.groupby(["run", "stage"], sort=False):
        by_metric = rows.set_index("metric")["error_percent"]
        mark = " (given up on)" if rows["overloaded"].iloc[0] else ""
        figures = {f"{metric} {part}": by_metric[f"{metric}_{part}"] for metric in SHOWN for part in ("mean", "p99")}
        figures["tokens/s"] = by_metric["output_tokens_per_s"]
        named = {"error, %": f"{name}{mark}", "stage": str(stage)}
        found.append(named | {column: number(float(one), 1) for column, one in figures.items()})
    return found


def case_rows(errors: pd.DataFrame) -> Rows:
    """Make the rows of median absolute errors of means over runs, for each assumption."""
    from servegym.evaluation.measured.figures import headline

    found = []
    for name, rows in errors.groupby("case", sort=False):
        medians, runs = headline(rows), number(int(rows["run"].nunique()))
        figures = {metric: number(medians[metric], 1) for metric in SHOWN}
        found.append({"median |error| of means, %": str(name), "runs": runs} | figures)
    return found
