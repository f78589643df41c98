"""`servegym evaluate`: heuristic, tuned and learned policies on a panel of held-out cases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegym.cli import evaluation_options as panels
from servegym.cli import options
from servegym.cli.compare import bar_of
from servegym.cli.evaluation_tables import show_evaluation
from servegym.cli.interruption import Interrupted
from servegym.cli.output import check_output_folder, console_for, progress_console, write_json
from servegym.cli.user_policies import load_policy_files
from servegym.simulator.errors import ServegymError

if TYPE_CHECKING:
    import pandas as pd

    from servegym.experiments.evaluation.evaluation import Evaluation
    from servegym.experiments.evaluation.panel import Panel

EXAMPLES = """\
[bold]Examples[/bold]

servegym evaluate --scheduler slide-batching --scheduler slide-batching:gamma=2 --scheduler qoserve

servegym evaluate --scheduler slide-batching --scheduler learned:runs/batching/policy.json --bound

servegym evaluate --router gorouting --router min-load --router learned:runs/routing/policy.json --engines 4

servegym evaluate --scheduler edf --scheduler sjf --trace azure-code --device h100-llama3-8b --load high --seeds 20

servegym evaluate --panel mine.yaml --scheduler edf --scheduler sjf --out results/mine --json -
"""


def evaluate(
    panel: panels.PanelFile = None,
    trace: panels.Traces = None,
    slo: panels.Slo = None,
    allow_seen: panels.AllowSeen = False,
    scheduler: panels.Schedulers = None,
    router: panels.Routers = None,
    scaler: panels.Scalers = None,
    baseline: panels.Baseline = None,
    load_policies: options.LoadPolicies = None,
    device: panels.Devices = None,
    engines: panels.Engines = None,
    prefill: options.Prefill = 0,
    decode: options.Decode = 0,
    decode_scheduler: options.DecodeScheduler = None,
    load: panels.Loads = None,
    requests: panels.Requests = None,
    seeds: panels.Seeds = None,
    first_seed: panels.FirstSeed = None,
    bound: panels.Bound = False,
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Runs at a time. The results are the same however many.",
            rich_help_panel=options.HOW_MUCH,
        ),
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar=options.OUT_METAVAR,
            help="Where runs, tables, pictures, the report and model cards are kept, and runs found again.",
            show_default="results/evaluate-PANEL-..., one for each evaluation",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start over: forget what --out holds.", rich_help_panel=options.OUTPUT),
    ] = False,
    json: options.Json = None,
) -> None:
    """Evaluate schedulers, routers or scalers on held-out cases: traces x devices x loads x seeds.

    Policies of one kind are judged, at least two, all on the same requests; of the other kinds one can be named, or is
    the panel's. A learned policy is refused where a case is one it was trained on.

    Every run is kept as soon as it is done: after Ctrl-C the same command goes on from there.
    """
    if out is not None:
        check_output_folder(out)
    load_policy_files(load_policies)

    from servegym.experiments.evaluation.evaluation import Evaluation
    from servegym.experiments.load import parse_load

    named = {"scheduler": scheduler or [], "router": router or [], "scaler": scaler or []}
    kind = judged_kind(named)
    fixed = {other: texts[0] for other, texts in named.items() if other != kind and texts}
    evaluation = Evaluation(
        chosen_panel(panel, kind, engines, prefill, decode).replaced(
            traces=tuple(trace) if trace else None,
            devices=tuple(device) if device else None,
            loads=tuple(map(parse_load, load)) if load else None,
            slo=slo,
            requests=requests,
            seeds=seeds,
            first_seed=first_seed,
            decode_scheduler=decode_scheduler,
            **fixed,
        ),
        tuple(named[kind]),
        kind,
        baseline,
        allow_seen,
    )
    directory = out or evaluation.default_directory
    runs = run_with_progress(evaluation, directory, jobs, fresh)
    no_bound = None
    if bound:
        runs, no_bound = bounds_with_progress(evaluation, runs, (out or directory.parent) / "bounds")
    write_results(evaluation, runs, directory, no_bound, json)


def judged_kind(named: dict[str, list[str]]) -> str:
    """Which kind is judged: the one that is named more than once. Raises ServegymError for none, or several."""
    several = [kind for kind, texts in named.items() if len(texts) > 1]
    if len(several) > 1:
        raise ServegymError(
            f"several {several[0]}s and several {several[1]}s are named; policies of one kind are judged"
        )
    if not several:
        once = [kind for kind, texts in named.items() if texts]
        missing = f"one {once[-1]} is named" if once else "no policies are named"
        raise ServegymError(
            f"{missing}; name two or more of a kind, such as --scheduler slide-batching --scheduler edf"
        )
    return several[0]


def chosen_panel(name: str | None, kind: str, engines: int | None, prefill: int, decode: int) -> Panel:
    """The panel, with the engines that are asked for."""
    from servegym.experiments.evaluation.panel import load_panel

    many = kind != "scheduler" or engines is not None or prefill > 0
    panel = load_panel(name or ("held_out_routers" if many else "held_out"))
    if prefill or decode:
        return panel.replaced(engines=engines or 1, prefill=prefill, decode=decode)
    return panel if engines is None else panel.replaced(engines=engines, prefill=0, decode=0)


def run_with_progress(evaluation: Evaluation, directory: Path, jobs: int, fresh: bool) -> pd.DataFrame:
    """The runs of an evaluation, with a progress bar on standard error."""
    from servegym.experiments.evaluation.evaluation import RUNS_FOLDER, run_evaluation

    with bar_of("runs") as (done, progress):
        try:
            return run_evaluation(evaluation, directory, progress, jobs=jobs, fresh=fresh)
        except KeyboardInterrupt:
            kept = f"{done[0]} of {evaluation.runs} runs are kept in {directory / RUNS_FOLDER}"
            raise Interrupted(f"{kept}; the same command{' without --fresh' * fresh} goes on from there") from None


def bounds_with_progress(
    evaluation: Evaluation, runs: pd.DataFrame, directory: Path
) -> tuple[pd.DataFrame, str | None]:
    """The runs with their shares of the bound; or as they are, and why there is none."""
    from servegym.experiments.errors import ExperimentError
    from servegym.experiments.evaluation.bounds import why_none, with_bounds

    reason = why_none(evaluation)
    with bar_of("bounds") as (done, progress):
        try:
            if reason is None:
                return with_bounds(evaluation, runs, directory, progress), None
        except ExperimentError as error:
            reason = str(error)
        except KeyboardInterrupt:
            raise Interrupted(
                f"all runs, and {done[0]} bounds, are kept; the same command goes on from there"
            ) from None
    progress_console().print(f"No share of the bound: {reason}.")
    return runs, reason


def write_results(
    evaluation: Evaluation, runs: pd.DataFrame, directory: Path, no_bound: str | None, json: str | None
) -> None:
    """Tables, pictures, report and cards into the directory; tables to the console."""
    from servegym.experiments.evaluation import tables
    from servegym.experiments.evaluation.card import save_cards
    from servegym.experiments.evaluation.plots import plot_differences, plot_profile
    from servegym.experiments.evaluation.report import evaluation_report

    cells, groups = tables.cells_table(evaluation, runs), tables.groups_table(evaluation, runs)
    differences = plot_differences(evaluation, cells, groups, directory / "differences.png")
    profile = plot_profile(evaluation, runs, directory / "profile.png")
    files = [
        *tables.save_tables(runs, cells, groups, directory),
        differences,
        profile,
        evaluation_report(evaluation, cells, groups, differences, profile, directory / "report.html"),
        *save_cards(evaluation, cells, groups, directory),
    ]
    console = console_for(json)
    show_evaluation(evaluation, cells, groups, console)
    console.print("Written:", ", ".join(str(path) for path in files))
    if json is not None:
        write_json(document(evaluation, cells, groups, files) | {"no_bound": no_bound}, json)


def document(evaluation: Evaluation, cells: pd.DataFrame, groups: pd.DataFrame, files: list[Path]) -> dict[str, Any]:
    """What was judged and what came out."""
    from servegym.experiments.evaluation.tables import conclusions

    return {
        "evaluation": evaluation.identity,
        "baseline": evaluation.baseline_label,
        "runs": evaluation.runs,
        "groups": groups.to_dict("records"),
        "cells": cells.to_dict("records"),
        "conclusions": conclusions(evaluation, groups),
        "files": files,
    }
