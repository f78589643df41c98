"""`servegym plan`: finds how many engines of each device serve a rate, by bisection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.cli import options
from servegym.cli.comparison_tables import show_unsettled
from servegym.cli.output import number, show_notes
from servegym.cli.runners import Work, work_options
from servegym.cli.spec_options import Words, spec_options
from servegym.cli.tables import show_tables
from servegym.errors import ExperimentError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from servegym.evaluation.plan import Plan

EXAMPLES = """\
[bold]Examples[/bold]

servegym plan --rate 40 --router min-load --device a100-llama3-8b --device h100-llama3-8b

servegym plan --rate 40 --device a100-llama3-8b --device h100-llama3-8b --price a100-llama3-8b=2 \
--price h100-llama3-8b=4.5

servegym plan --engines 4 --router min-load --target violations=0.01 --scheduler edf --scheduler vllm-v1
"""
# Fields that are searched or the same for all devices, or that have no meaning in a steady state.
LEFT_OUT = (
    "load", "requests", "incidents", "seed", "split", "keep_slos", "price_per_hour", "prefill", "decode",
    "decode_scheduler", "link_gb_per_s", "scaler", "startup_s", "started", "role_change_s",
)  # fmt: skip
SCHEDULER = "vllm-v1"  # the order of most engines
SHOWN = {
    "engines": "1, or with --rate as few as suffice", "rate_per_s": "the highest that the engines serve",
    "scheduler": SCHEDULER, "router": options.ROUTER,
}  # fmt: skip


@spec_options(
    many=("device", "scheduler"),
    without=LEFT_OUT,
    shown=SHOWN,
    help_texts={
        "rate_per_s": "Rate to serve, requests per second: finds the fewest engines for it.",
        "engines": "Number of engines: finds the highest rate that they serve.",
    },
)
@work_options("results/plan-TRACE-..., one for each plan")
def plan(
    words: Words,
    work: Work,
    target: options.Target = "attainment=0.99",
    price: options.Price = None,
    duration: options.Duration = None,
    precision: options.Precision = 0.02,
    seeds: options.Seeds = 5,
) -> None:
    """Find the fewest engines of each device that meet a target at a rate, or the highest rate at which N engines do.

    Both are found by bisection for each seed, with the same requests for all devices, in steady state and until all
    requests are done. SLOs are those of the recipe, the same for all devices. With prices the table has costs.
    """
    from servegym.evaluation.plan import ROWS_FILE, Plan, make_plan
    from servegym.evaluation.plan_plot import plot_plan
    from servegym.evaluation.search_tables import summarise_plan
    from servegym.evaluation.targets import parse_target
    from servegym.scenarios.parts import Policies
    from servegym.scenarios.spec import ServingSpec

    if "rate_per_s" in words and "engines" in words:
        raise ExperimentError("--rate and --engines are both given; give one of them, and the other is found")
    spec = ServingSpec(policies=Policies(scheduler=SCHEDULER, router=options.ROUTER)).with_overrides(words)
    asked = Plan(spec, parse_target(target), seeds, duration, precision, options.numbers_of(price, *options.PRICE))
    directory = work.out or asked.default_directory
    with work.kept("searches", len(asked.cells), directory / ROWS_FILE) as (runner, progress):
        rows = make_plan(asked, directory, progress, runner=runner, fresh=work.fresh)
    summary = summarise_plan(rows, {device: asked.price_per_hour(device) for device in asked.devices})
    files = [directory / "plan.csv", directory / "searches.csv"]
    for table, path in zip((summary, rows), files, strict=True):
        table.to_csv(path, index=False)
    files.append(plot_plan(summary, asked.rate_per_s is not None, asked.title, directory / "plan.png"))
    show(asked, summary, work.console)
    work.written(files)
    work.write_json(document(asked, summary, rows, files))


def show(asked: Plan, summary: pd.DataFrame, console: Console) -> None:
    """Print a table and the limits of its figures."""
    from servegym.evaluation.measures import P99_TPOT, P99_TTFT, Measure

    console.print(asked.title)
    show_notes(asked.by_device[asked.devices[0]].setup.provenance, console)
    counts = asked.rate_per_s is not None
    several, priced = len(summary["scheduler"].unique()) > 1, summary["cost_per_hour"].notna().any()
    rate, mean = Measure("rate_per_s", "requests/s"), Measure("mean_engines", "mean over runs", 2)
    shown = list(dict.fromkeys([asked.target.shown, P99_TTFT, P99_TPOT]))
    rows = []
    for _, row in summary.iterrows():
        if counts:
            found, engines = {"engines": number(row["engines"], 0), mean.title: mean.text(row)}, row["mean_engines"]
        else:
            found, engines = {rate.title: rate.text(row)}, row["engines"]
        found["requests/s an engine"] = number(row["rate_per_s"] / engines)
        if row["missing"]:
            found = dict.fromkeys(found, "") | {next(iter(found)): missing(row, counts)}
        costs = {
            "cost an hour": number(row["cost_per_hour"], 2),
            "cost of a million tokens": number(row["cost_per_million_tokens"]),
        }
        label = {"device": row["device"], **({"scheduler": row["scheduler"]} if several else {})}
        rows.append({**label, **found, **{one.title: one.text(row) for one in shown}, **(costs if priced else {})})
    show_tables(console, {"": rows}, ["requests/s an engine", mean.title, "cost of a million tokens"])
    if counts:
        console.print("Engines: enough in every run; mean over runs of the fewest")
    console.print(f"p99s: with this number of engines at this rate; {asked.repeats.legend}")
    for note in asked.repeats.notes:
        console.print(note)
    show_unsettled(summary, "device", asked.lasting_s, console)


def missing(row: pd.Series, counts: bool) -> str:
    """Say why there is no number."""
    seeds = f"in {row['missing']} of {row['seeds']} run{'s' * bool(row['seeds'] > 1)}"
    return f"no number is enough {seeds}" if counts else f"{row['found']} the rates tried {seeds}"


def document(asked: Plan, summary: pd.DataFrame, rows: pd.DataFrame, files: list[Path]) -> dict[str, Any]:
    """Make the plan and its results as a JSON document."""
    return {
        "plan": asked.identity,
        "interval_over": asked.repeats.over,
        "notes": asked.repeats.notes,
        "prices_per_hour": {device: asked.price_per_hour(device) for device in asked.devices},
        "summary": summary.to_dict("records"),
        "searches": rows.to_dict("records"),
        "files": files,
    }
