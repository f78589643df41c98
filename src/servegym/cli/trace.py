"""`servegym trace`: inspects, converts and generates traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegym.cli import options
from servegym.cli.options import option
from servegym.cli.output import console_for, new_table, number, write_json

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = """\
[bold]Examples[/bold]

servegym trace inspect azure-conv

servegym trace inspect my.parquet --json -

servegym trace inspect log.csv --columns arrival=timestamp,prompt=input_tokens,output=completion_tokens --time-unit ms
"""
CONVERT_EXAMPLES = """\
[bold]Examples[/bold]

servegym trace convert published.jsonl mine.parquet

servegym trace convert published.csv mine.csv --requests 2000 --rate 5 --slo proserve --seed 3
"""
GENERATE_EXAMPLES = """\
[bold]Examples[/bold]

servegym trace generate azure-conv mine.csv --requests 5000 --rate 6

servegym trace generate sharegpt bursty.parquet --rate 4 --arrivals gamma:cv=3 --slo polyserve
"""
LENGTHS = ("prompt_tokens", "output_tokens")
ARRIVALS = {
    "span_s": "from the first arrival to the last, s",
    "rate_per_s": "mean rate, requests/s",
    "peak_minute_over_mean": "rate of the busiest minute / mean rate",
    "interarrival_cv": "time between arrivals, standard deviation / mean",
}

app = typer.Typer(rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def trace(context: typer.Context) -> None:
    """Inspect, convert and generate traces."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(epilog=EXAMPLES)
def inspect(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A family of generated requests, or a trace file.")],
    columns: options.Columns = None,
    time_unit: options.TimeUnit = None,
    drop_empty: options.DropEmpty = False,
    sort: options.Sort = False,
    json: options.Json = None,
) -> None:
    """Print figures of a trace: arrivals and lengths of its requests."""
    from servegym.traces.inspect import describe
    from servegym.traces.reading import Reading

    figures = describe(trace, Reading(columns or (), time_unit, drop_empty, sort))
    console = console_for(json)
    console.print(f"{figures['name']}: {figures['requests']:,} requests")
    lengths = new_table("tokens", *(name.removesuffix("_tokens") for name in LENGTHS))
    for level in figures[LENGTHS[0]]:
        lengths.add_row(level, *(number(figures[name][level], 0) for name in LENGTHS))
    console.print(lengths, arrivals_table(figures), provenance_table(figures))
    write_json(figures, json)


Target = Annotated[Path, typer.Argument(metavar="FILE", help="The file to write: .csv, .jsonl (also .gz) or .parquet.")]
Recipe = Annotated[
    str | None,
    option(
        "RECIPE",
        "The recipe for priorities, weights and SLOs of requests.",
        options.ON_WHAT,
        show_default="none but what the trace has",
    ),
]


@app.command(epilog=CONVERT_EXAMPLES)
def convert(
    source: Annotated[str, typer.Argument(metavar="TRACE", help="A trace file of any known format.")],
    target: Target,
    tokenizer: Annotated[
        str | None, option("characters/N", "For a trace of texts: count N characters as a token.", options.ON_WHAT)
    ] = None,
    slo: Recipe = None,
    rate: options.Rate = None,
    arrivals: options.Arrivals = None,
    requests: options.Requests = None,
    seed: options.Seed = 0,
    columns: options.Columns = None,
    time_unit: options.TimeUnit = None,
    drop_empty: options.DropEmpty = False,
    sort: options.Sort = False,
) -> None:
    """Convert a trace of any known format to servegym's own: arrival_s, prompt_tokens, output_tokens and so on."""
    from servegym.traces.reading import Reading

    write_trace(source, target, requests=requests, rate_per_s=rate, slo=slo, arrivals=arrivals, seed=seed,
                tokenizer=tokenizer, reading=Reading(columns or (), time_unit, drop_empty, sort))  # fmt: skip


@app.command(epilog=GENERATE_EXAMPLES)
def generate(
    family: Annotated[str, typer.Argument(metavar="FAMILY", help="A family of generated requests.")],
    target: Target,
    slo: Recipe = None,
    rate: options.Rate = None,
    arrivals: options.Arrivals = None,
    requests: options.Requests = None,
    seed: options.Seed = 0,
) -> None:
    """Draw requests of a family and write them in servegym's own format."""
    from servegym.errors import WorkloadError
    from servegym.traces.workloads import trace_names

    if family not in trace_names():
        raise WorkloadError(f"unknown family '{family}'; known: {', '.join(trace_names())}; convert takes files")
    write_trace(family, target, requests=requests, rate_per_s=rate, slo=slo, arrivals=arrivals, seed=seed)


def write_trace(source: str, target: Path, **arguments: Any) -> None:
    """Write the trace and print its size."""
    from servegym.traces.writing import convert as convert_trace

    written = convert_trace(source, target, **arguments)
    times = "with arrival times" if written.arrival_s is not None else "without arrival times"
    console_for(None).print(f"Written: {target}, {len(written):,} requests, {times}")


def arrivals_table(figures: dict[str, Any]) -> Table | str:
    """Make the table of arrivals; a remark for a trace without times."""
    if figures["span_s"] is None:
        return "no arrival times: --rate or --load draws them"
    table = new_table("arrivals", "")
    for name, words in ARRIVALS.items():
        table.add_row(words, number(figures[name]))
    return table


def provenance_table(figures: dict[str, Any]) -> Table:
    """Make the table of a trace's provenance: the parts of its description that the other tables do not have."""
    table = new_table("origin", "", numbers=False)
    for name, value in figures.items():
        if name not in ("name", "requests", *ARRIVALS, *LENGTHS) and value not in (None, []):
            table.add_row(name, "; ".join(map(str, value)) if isinstance(value, list) else str(value))
    return table
