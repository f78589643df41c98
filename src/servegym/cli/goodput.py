"""`servegym goodput`: finds the highest rate at which schedulers meet a target, by bisection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from servegym.cli import options
from servegym.cli.compare import SHOWN
from servegym.cli.comparison_tables import show_unsettled
from servegym.cli.options import option
from servegym.cli.output import number, show_notes
from servegym.cli.runners import Work, work_options
from servegym.cli.spec_options import Words, spec_options
from servegym.cli.tables import BEST, show_tables

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from servegym.evaluation.goodput import GoodputSearch

EXAMPLES = """\
[bold]Examples[/bold]

servegym goodput --scheduler slide-batching --scheduler sarathi-fcfs

servegym goodput --target ttft_p99=2 --scheduler vllm-v1 --scheduler expected-gain

servegym goodput --target violations=0.01 --slo qoserve:shares=70-15-15 --scheduler qoserve --scheduler sarathi-edf

servegym goodput --target attainment=0.9 --engines 4 --router min-load --router gorouting --duration 1800

servegym goodput --trace my.csv --arrivals gamma:cv=3 --seeds 10 --jobs 4 --out results/mine
"""


@spec_options(
    many=("scheduler", "router", "scaler"),
    without=("load", "rate_per_s", "requests", "incidents", "seed", "split"),
    shown=SHOWN,
)
@work_options("results/goodput-TRACE-..., one for each search")
def goodput(
    words: Words,
    work: Work,
    target: options.Target = "attainment=0.99",
    baseline: Annotated[
        str | None,
        option(
            "NAME[:...]",
            "The scheduler to take differences to.",
            options.WHAT,
            show_default="the one with the highest goodput",
        ),
    ] = None,
    duration: options.Duration = None,
    precision: options.Precision = 0.02,
    seeds: options.Seeds = 5,
) -> None:
    """Find the highest rate at which schedulers (and routers) meet a target.

    The rate is found by bisection for each seed, with the same arrivals up to their scale for every rate and
    scheduler, in steady state and until all requests are done: a request that never finishes is not in time. Means have
    95 % intervals; the output says what they are over.
    """
    from servegym.evaluation.compared import COMPARED
    from servegym.evaluation.comparison import Comparison
    from servegym.evaluation.goodput import SEARCHES_FILE, GoodputSearch, search_goodput
    from servegym.evaluation.search_tables import summarise_goodput
    from servegym.evaluation.summary import check_baseline
    from servegym.evaluation.targets import parse_target

    setup = Comparison(COMPARED.replaced(load=1.0).with_overrides(words), seeds)
    search = GoodputSearch(setup, parse_target(target), duration, precision)
    if baseline is not None:
        check_baseline(baseline, list(setup.candidates))
    directory = work.out or search.default_directory
    with work.kept("searches", len(search.cells), directory / SEARCHES_FILE) as (runner, progress):
        rows = search_goodput(search, directory, progress, runner=runner, fresh=work.fresh)
    summary = summarise_goodput(rows, setup.saturation_rate_per_s, baseline)
    files = [directory / "goodput.csv", directory / "searches.csv"]
    for table, path in zip((summary, rows), files, strict=True):
        table.to_csv(path, index=False)
    show(search, summary, work.console)
    work.written(files)
    work.write_json(document(search, summary, rows, files))


def show(search: GoodputSearch, summary: pd.DataFrame, console: Console) -> None:
    """Print a table with the reference in bold, and the limits of its figures."""
    from servegym.evaluation.goodput import LOADS
    from servegym.evaluation.measures import Measure

    console.print(search.title)
    show_notes(search.setup.provenance, console)
    saturation = search.setup.saturation_rate_per_s
    low, high = (number(load * saturation) for load in LOADS)
    reference = summary["reference"].iloc[0]
    found = Measure("goodput_per_s", "goodput, requests/s")
    rows = [
        {
            "scheduler": row["scheduler"] + BEST * (row["scheduler"] == reference),
            found.title: missing(row, low, high) if row["below"] + row["above"] else found.text(row),
            "of saturation": number(row["load"]),
            search.target.shown.title: search.target.shown.text(row),
            "minus *": "" if row["scheduler"] == reference else found.text(row, "difference", "+"),
        }
        for _, row in summary.iterrows()
    ]
    show_tables(console, {"": rows}, ["of saturation", "minus *"])
    console.print(
        f"*: the reference of the differences, the highest goodput unless --baseline says otherwise\n"
        f"Saturation: {number(saturation)} requests/s; {search.repeats.legend}; a rate "
        f"{100 * search.precision:g} % higher is too much"
    )
    for note in search.repeats.notes:
        console.print(note)
    show_unsettled(summary, "scheduler", search.lasting_s, console)


def missing(row: pd.Series, low: str, high: str) -> str:
    """Say why there is no mean."""
    parts = [f"below {low} in {row['below']}"] * (row["below"] > 0)
    parts += [f"at least {high} in {row['above']}"] * (row["above"] > 0)
    return f"{', '.join(parts)} of {row['seeds']} run{'s' * bool(row['seeds'] > 1)}"


def document(search: GoodputSearch, summary: pd.DataFrame, rows: pd.DataFrame, files: list[Path]) -> dict[str, Any]:
    """Make the search and its results as a JSON document."""
    return {
        "search": search.identity,
        "interval_over": search.repeats.over,
        "notes": search.repeats.notes,
        "summary": summary.to_dict("records"),
        "searches": rows.to_dict("records"),
        "files": files,
    }
