"""`servegym compare`: schedulers x routers x scalers x loads (or clients) x seeds, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from servegym.cli import options
from servegym.cli.comparison_tables import show_comparison
from servegym.cli.options import flag, option
from servegym.cli.runners import Work, no_bound, work_options
from servegym.cli.spec_options import Words, spec_options

if TYPE_CHECKING:
    import pandas as pd

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
@work_options("results/compare-TRACE-..., one for each comparison")
def compare(
    words: Words,
    work: Work,
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
            "Also compare every run with a bound that no scheduler can exceed. Computing it takes seconds to a minute "
            "for each load and seed, and needs runs of at most 2000 requests.",
            options.HOW_MUCH,
            "--bound",
        ),
    ] = False,
    seeds: options.Seeds = 5,
    report: options.Report = None,
) -> None:
    """Compare schedulers (and routers) at several loads or with several numbers of clients, each over several seeds, on
    the same requests.

    By default a run serves 3000 requests, or all of a file of fewer than 6000; with a longer file each seed serves
    another window of it, as long as there is room. Means have 95 % intervals, and the output says what they are over.
    If all seeds would give the same run, it runs once and has no interval. Differences are paired by run.

    Every run is kept as soon as it is done: after Ctrl-C, the same command continues from there.
    """
    from servegym.evaluation.bounds.shares import find_bounds, why_no_bounds, with_shares
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
    directory = work.out or comparison.default_directory
    no_bounds = no_bound(why_no_bounds(comparison)) if bound else None
    with work.kept("runs", len(comparison.cells), directory / CELLS_FILE) as (runner, progress):
        cells = run_comparison(comparison, directory, progress, runner=runner, fresh=work.fresh)
    if bound and no_bounds is None:
        found, no_bounds = work.bounds(
            lambda progress: find_bounds(comparison, work.beside(directory, "bounds"), progress),
            f"all runs, and {{}} of {len(comparison.workloads)} bounds, are kept",
        )
        cells = cells if found is None else with_shares(comparison, cells, found)
    summary = summarise(cells, baseline, rank_by)
    plot = plot_comparison(summary, comparison.title, directory / "comparison.png")
    files = [*save_tables(cells, summary, directory), plot]

    show_comparison(comparison, summary, work.console)
    work.written(files)
    if report is not None:
        from servegym.evaluation.reports.compare_report import compare_report

        work.console.print(f"Report: {compare_report(comparison, summary, cells, report)}")
    work.write_json({**document(comparison, summary, files), "no_bound": no_bounds})


def document(comparison: Comparison, summary: pd.DataFrame, files: list[Path]) -> dict[str, Any]:
    """Make the comparison and its results as a JSON document."""
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
