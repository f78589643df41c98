"""`servegym evaluate`: heuristic, tuned and learned policies on a panel of held-out cases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from servegym.cli import evaluation_options as panels
from servegym.cli import options
from servegym.cli.evaluation_tables import show_evaluation
from servegym.cli.output import progress_console
from servegym.cli.progress import bar_of
from servegym.cli.runners import Work, no_bound, work_options
from servegym.cli.spec_options import Words, spec_options
from servegym.errors import ServegymError

if TYPE_CHECKING:
    import pandas as pd

    from servegym.evaluation.panels.evaluation import Evaluation
    from servegym.evaluation.panels.panel import Panel

SUCH = {  # two policies of each kind, for errors
    "scheduler": ("slide-batching", "edf"), "router": ("gorouting", "min-load"),
    "scaler": ("polyserve", "target-utilisation"),
}  # fmt: skip
ENGINES = ("engines", "prefill", "decode", "pools")
EXAMPLES = """\
[bold]Examples[/bold]

servegym evaluate --scheduler slide-batching --scheduler slide-batching:gamma=2 --scheduler qoserve

servegym evaluate --scheduler slide-batching --scheduler learned:runs/batching/policy.json --bound

servegym evaluate --router gorouting --router min-load --router learned:runs/routing/policy.json --engines 4

servegym evaluate --scheduler edf --scheduler sjf --trace azure-code --device h100-llama3-8b --load high --seeds 20

servegym evaluate --panel mine.yaml --scheduler edf --scheduler sjf --out results/mine --json -

servegym evaluate --scheduler vllm-v1 --scheduler expected-gain --rank-by p99-ttft

servegym evaluate tuned.json --engines 4

servegym evaluate tuned.json other.json --scheduler sarathi-fcfs --router min-load --baseline tuned
"""


@spec_options(
    many=("trace", "device", "load", "scheduler", "router", "scaler"), without=("rate_per_s", "seed", "split"),
    help_texts={kind: panels.JUDGED.format(kind=kind) for kind in ("scheduler", "router", "scaler")},
    shown=panels.PANELS,
)  # fmt: skip
@work_options(
    "results/evaluate-PANEL-..., one for each evaluation",
    "Folder for runs, tables, pictures, the report and model cards. Runs that it has are not repeated.",
)
def evaluate(
    words: Words,
    work: Work,
    artifacts: panels.Artifacts = None,
    panel: panels.PanelFile = None,
    allow_seen: panels.AllowSeen = False,
    baseline: panels.Baseline = None,
    rank_by: options.RankBy = "tdg",
    seeds: panels.Seeds = None,
    first_seed: panels.FirstSeed = None,
    bound: panels.Bound = False,
    headroom: panels.Headroom = False,
) -> None:
    """Evaluate schedulers, routers or scalers on held-out cases: traces x devices x loads x seeds.

    Name two or more policies of one kind, which are compared on the same requests, and at most one of each other kind,
    in place of the panel's. Or name artifacts: the policies in each serve together, and are compared with the same
    policies at their defaults, or with named ones. A trained or tuned policy is refused on a case on which it was
    trained or tuned.

    Every run is kept as soon as it is done: after Ctrl-C, the same command continues from there.
    """
    from servegym.evaluation.panels.evaluation import RUNS_FOLDER, Evaluation, run_evaluation
    from servegym.evaluation.panels.references import check_kind, why_none, with_bounds

    named = {kind: texts_of(words.pop(kind, None)) for kind in ("scheduler", "router", "scaler")}
    decoding = texts_of(words.get("decode_scheduler"))
    judged = (
        artifacts_judged(artifacts, named | {"decode_scheduler": decoding}) if artifacts else policies_judged(named)
    )
    if named["scaler"]:  # a panel with a start-up time needs one
        words["scaler"] = named["scaler"][0]
    where = {name: words[name] for name in ENGINES if name in words}
    if panel is None and not where:
        words |= judged.engines
    evaluation = Evaluation(
        chosen_panel(panel, judged.many or bool(where or judged.engines)).replaced(
            words | judged.fixed, seeds=seeds, first_seed=first_seed
        ),
        judged.policies,
        judged.kind,
        baseline,
        allow_seen,
        rank_by,
    )
    if headroom:
        check_kind(evaluation)
    with bar_of("sets of requests") as (_, drawn):
        evaluation.draw(drawn)
    directory = work.out or evaluation.default_directory
    no_bounds = no_bound(why_none(evaluation)) if bound else None
    with work.kept("runs", evaluation.runs, directory / RUNS_FOLDER) as (runner, progress):
        runs = run_evaluation(evaluation, directory, progress, runner=runner, fresh=work.fresh)
    if bound and no_bounds is None:
        shares, no_bounds = work.bounds(
            lambda progress: with_bounds(evaluation, runs, work.beside(directory, "bounds"), progress),
            "all runs, and {} bounds, are kept",
        )
        runs = runs if shares is None else shares
    if headroom:
        runs = against_best(evaluation, runs, work.beside(directory, "headroom"))
    write_results(evaluation, runs, directory, no_bounds, work)


class Judged(NamedTuple):
    """The policies to judge, as `Evaluation` takes them.

    fixed: policies of the other kinds, with which all are judged. many: whether they need several engines.
    engines: fields of a spec with the engines for which they were made, if known.
    """

    kind: str
    policies: tuple[str, ...]
    fixed: dict[str, str | None]
    many: bool
    engines: Mapping[str, int] = MappingProxyType({})


def policies_judged(named: dict[str, list[str]]) -> Judged:
    """Find the policies of the kind of which several are named. Raises ServegymError as `judged_kind` does."""
    kind = judged_kind(named)
    fixed: dict[str, str | None] = {other: texts[0] for other, texts in named.items() if other != kind and texts}
    return Judged(kind, tuple(named[kind]), fixed, kind != "scheduler")


def artifacts_judged(texts: list[str], named: dict[str, list[str]]) -> Judged:
    """Load the artifacts, after the policies with which they are compared (`reference_sets`).

    Named policies replace those of an artifact; one of a kind that no artifact has serves with all. Raises
    ServegymError for several of that kind.
    """
    from servegym.evaluation.panels.sets import SET, artifact_of, artifact_text, reference_sets

    artifacts = [artifact_of(artifact_text(text))[1] for text in texts]
    roles = {role for artifact in artifacts for role in artifact.policies}
    if several := [role for role, names in named.items() if role not in roles and len(names) > 1]:
        raise ServegymError(f"several {several[0]}s are named, and no artifact has one; name one for all to serve with")
    fixed = {role: names[0] if role not in roles and names else None for role, names in named.items()}
    made_for = artifacts[0].workload or {}
    prefill, decode, engines = (made_for.get(key, 0) for key in ("prefill", "decode", "engines"))
    where: dict[str, int] = {"engines": engines} if engines > 1 else {}
    if prefill and decode:
        where = {"prefill": prefill, "decode": decode}
    policies = (*reference_sets(artifacts, named), *map(artifact_text, texts))
    return Judged(SET, policies, fixed, bool({"router", "scaler"} & roles), where)


def judged_kind(named: dict[str, list[str]]) -> str:
    """Find the kind of which several policies are named. Raises ServegymError if there is none, or more than one."""
    several = [kind for kind, texts in named.items() if len(texts) > 1]
    if len(several) > 1:
        raise ServegymError(
            f"several {several[0]}s and several {several[1]}s are named; policies of one kind are judged"
        )
    if not several:
        once = [kind for kind, texts in named.items() if texts]
        missing, kind = (f"one {once[-1]} is named", once[-1]) if once else ("no policies are named", "scheduler")
        such = " ".join(f"--{kind} {name}" for name in SUCH[kind])
        raise ServegymError(f"{missing}; name two or more of a kind, such as {such}")
    return several[0]


def chosen_panel(name: str | None, many: bool) -> Panel:
    """Load the panel, by default that for one engine or, if `many`, for several."""
    from servegym.evaluation.panels.panel import load_panel

    return load_panel(name or ("held_out_routers" if many else "held_out"))


def texts_of(given: Any) -> list[str]:
    """Convert one name or several to a list."""
    from servegym.scenarios.ranges import listed

    return [str(text) for text in listed(given)]


def against_best(evaluation: Evaluation, runs: pd.DataFrame, directory: Path) -> pd.DataFrame:
    """Add each run's share of the best run found; print how many scenarios no search covers."""
    from servegym.evaluation.panels.references import with_headroom

    runs, unsearched = with_headroom(evaluation, runs, directory)
    if unsearched:
        scenarios = sum(len(part.workloads) for part in evaluation.parts)
        progress_console().print(
            f"No share of the best found: for {unsearched} of {scenarios} scenarios there is no search in {directory}; "
            "run servegym headroom with the same panel."
        )
    return runs


def write_results(
    evaluation: Evaluation, runs: pd.DataFrame, directory: Path, no_bounds: str | None, work: Work
) -> None:
    """Write tables, pictures, report and cards into the directory; print the tables."""
    from servegym.evaluation.panels import tables
    from servegym.evaluation.panels.card import save_cards
    from servegym.evaluation.panels.plots import plot_differences, plot_profile
    from servegym.evaluation.panels.report import evaluation_report

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
    show_evaluation(evaluation, runs, cells, groups, work.console)
    work.written(files)
    work.write_json(document(evaluation, cells, groups, files) | {"no_bound": no_bounds})


def document(evaluation: Evaluation, cells: pd.DataFrame, groups: pd.DataFrame, files: list[Path]) -> dict[str, Any]:
    """Make the evaluation and its results as a JSON document."""
    from servegym.evaluation.panels.tables import conclusions

    return {
        "evaluation": evaluation.identity,
        "baseline": evaluation.baseline_label,
        "ranked_by": evaluation.rank_by,
        "runs": evaluation.runs,
        "interval_over": evaluation.over,
        "notes": evaluation.notes,
        "groups": groups.to_dict("records"),
        "cells": cells.to_dict("records"),
        "conclusions": conclusions(evaluation, groups),
        "files": files,
    }
