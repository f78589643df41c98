"""`servegym compare`: schedulers x routers x scalers x loads (or clients) x seeds, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from servegym.cli import options
from servegym.cli.comparison_tables import show_comparison
from servegym.cli.options import flag, option
from servegym.cli.output import check_output_folder, console_for, progress_console, write_json
from servegym.cli.progress import bounds_or_why, kept_work
from servegym.cli.runners import load_policy_files, runner_of
from servegym.cli.spec_options import Words, spec_options

if TYPE_CHECKING:
    import pandas as pd

    from servegym.evaluation.bounds.shares import Bounds
    from servegym.evaluation.comparison import Comparison

EXAMPLES = """\
[bold]Examples[/bold]

servegym compare

servegym compare --scheduler edf --scheduler slide-batching:gamma=2 --load medium --load 1.2 --seeds 10

servegym compare --engines 4 --scheduler slide-batching --router round-robin --router min-load --router gorouting

servegym compare --trace my.csv --rate 4 --rate 8 --baseline vllm-fcfs --out results/mine

servegym compare --trace agent-sessions --clients 16 --clients 64 --scheduler vllm-v1 --scheduler slide-batching

servegym compare --requests 1000 --load overload --bound

servegym compare --engines 4 --router min-load --router gorouting --signal-delay 0.05 --incident fail:1@20

servegym compare --slo qoserve --arrivals gamma:cv=3 --scheduler qoserve --scheduler sarathi-edf

servegym compare --rank-by p99-ttft --scheduler vllm-v1 --scheduler expected-gain

servegym compare --seeds 50 --ray local
"""


COMPARED_BY = ("scheduler", "router", "scaler", "load", "rate_per_s", "clients")
SHOWN = {
    "scheduler": "eight of them", "router": options.ROUTER, "load": "the four that have a name",
    "requests": "3000, or all of a file of fewer than 6000",
}  # fmt: skip


@spec_options(many=COMPARED_BY, without=("seed", "split"), shown=SHOWN)
def compare(
    words: Words,
    load_policies: options.LoadPolicies = None,
    check: options.Check = None,
    baseline: Annotated[
        str | None,
        option(
            "NAME[:...]",
            "The compared scheduler to take differences to.",
            options.WHAT,
            show_default="the best at each load",
        ),
    ] = None,
    rank_by: options.RankBy = "tdg",
    bound: Annotated[
        bool,
        flag(
            "Also hold every run against what no scheduler can exceed. It takes seconds to a minute for each load "
            "and seed, and runs of at most 2000 requests.",
            options.HOW_MUCH,
            "--bound",
        ),
    ] = False,
    seeds: options.Seeds = 5,
    jobs: options.Jobs = None,
    ray: options.Ray = None,
    out: Annotated[
        Path | None,
        option(
            options.OUT_METAVAR,
            "Folder for results. Runs that are there are not repeated.",
            options.OUTPUT,
            show_default="results/compare-TRACE-..., one for each comparison",
        ),
    ] = None,
    fresh: options.Fresh = False,
    report: options.Report = None,
    json: options.Json = None,
) -> None:
    """Compare schedulers (and routers) at several loads or with several numbers of clients, each over several seeds, on
    the same requests.

    A run serves 3000 requests unless --requests says otherwise, or all of a file of fewer than 6000; of a longer one
    each seed serves a window of its own, as far as there is room. Means have 95 % intervals, and what they are over is
    said; where every seed has the same run there is one, and no interval. Differences are taken run by run.

    Every run is kept as soon as it is done: after Ctrl-C the same command goes on from there.
    """
    if out is not None:
        check_output_folder(out)
    load_policy_files(load_policies, check)

    from servegym.evaluation.bounds.shares import why_no_bounds, with_shares
    from servegym.evaluation.compared import COMPARED
    from servegym.evaluation.comparing import CELLS_FILE, run_comparison
    from servegym.evaluation.comparison import Comparison
    from servegym.evaluation.measures import check_rank
    from servegym.evaluation.plots import plot_comparison
    from servegym.evaluation.summary import check_baseline, save_tables, summarise

    check_rank(rank_by)
    comparison = Comparison(COMPARED.with_overrides(words), seeds)
    if baseline is not None:
        check_baseline(baseline, list(comparison.candidates))
    directory = out or comparison.default_directory
    no_bounds = why_no_bounds(comparison) if bound else None
    if no_bounds is not None:
        progress_console().print(f"No share of the bound: {no_bounds}.")
    with (
        runner_of(jobs, ray, load_policies) as runner,
        kept_work("runs", len(comparison.cells), directory / CELLS_FILE, fresh) as progress,
    ):
        cells = run_comparison(comparison, directory, progress, runner=runner, fresh=fresh)
    if bound and no_bounds is None:
        # One folder for all comparisons that are not told where to be: other schedulers have the same bounds.
        found, no_bounds = bounds_with_progress(comparison, (out or directory.parent) / "bounds")
        cells = with_shares(comparison, cells, found) if no_bounds is None else cells
    summary = summarise(cells, baseline, rank_by)
    plot = plot_comparison(summary, comparison.title, directory / "comparison.png")
    files = [*save_tables(cells, summary, directory), plot]

    console = console_for(json)
    show_comparison(comparison, summary, console)
    console.print("Written:", ", ".join(str(path) for path in files))
    if report is not None:
        from servegym.evaluation.reports.compare_report import compare_report

        console.print(f"Report: {compare_report(comparison, summary, cells, report)}")
    if json is not None:
        write_json({**document(comparison, summary, files), "no_bound": no_bounds}, json)


def bounds_with_progress(comparison: Comparison, directory: Path) -> tuple[Bounds, str | None]:
    """The bounds of a comparison's workloads; or none, and why."""
    from servegym.evaluation.bounds.shares import find_bounds

    kept = f"all runs, and {{}} of {len(comparison.workloads)} bounds, are kept"
    bounds, why = bounds_or_why(lambda progress: find_bounds(comparison, directory, progress), kept)
    if bounds is None:
        progress_console().print(f"No share of the bound: {why}.")
    return bounds or {}, why


def document(comparison: Comparison, summary: pd.DataFrame, files: list[Path]) -> dict[str, Any]:
    """What was compared and what came out."""
    from servegym.evaluation.measures import axis_of
    from servegym.evaluation.summary import conclusion

    return {
        "comparison": comparison.identity,
        "interval_over": comparison.repeats.over,
        "runs_of_each": comparison.repeats.runs,
        "notes": comparison.repeats.notes,
        "own_rate_per_s": comparison.own_rate_per_s,
        "summary": summary.to_dict("records"),
        "conclusions": [conclusion(at_load) for _, at_load in summary.groupby(axis_of(summary), sort=False)],
        "files": files,
    }
