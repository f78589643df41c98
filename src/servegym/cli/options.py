"""The options of the command line, with the same names and meanings in all commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ON_WHAT, WHAT, HOW_MUCH, OUTPUT = "What is served", "By what", "How much", "Output"


def json_target(value: str | None) -> str | None:
    """`--json` as given, refused where it could not be written."""
    if value is not None and value != "-":
        check_target(Path(value), "name a file, or - for standard output")
    return value


def file_to_write(value: Path | None) -> Path | None:
    """A file as given, refused where it could not be written."""
    if value is not None:
        check_target(value, "name a file")
    return value


def check_target(path: Path, right: str) -> None:
    """Refuse a path that cannot be written to, before a long run rather than at its end."""
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; {right}")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent} to write {path.name} to")


Arrivals = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:key=value,...]",
        help="How requests arrive: poisson, gamma:cv=3, bursts:n=10, waves, square-wave, industrial-day, at-once, own.",
        show_default="own where the trace has times, else poisson",
        rich_help_panel=ON_WHAT,
    ),
]
Requests = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="How many requests a run serves. From a file they are consecutive.",
        rich_help_panel=HOW_MUCH,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=COLUMN,...",
        help="Which columns of a file are what: arrival=timestamp,prompt=input_tokens,output=completion_tokens; a dot "
        "reaches into nested fields.",
        show_default="as the names are",
        rich_help_panel=ON_WHAT,
    ),
]
TimeUnit = Annotated[
    str | None,
    typer.Option(
        metavar="s|ms|us|ns",
        help="Unit of a file's times.",
        show_default="as its format has it",
        rich_help_panel=ON_WHAT,
    ),
]
DropEmpty = Annotated[
    bool,
    typer.Option("--drop-empty", help="Leave out requests without prompt or output tokens.", rich_help_panel=ON_WHAT),
]
Sort = Annotated[bool, typer.Option("--sort", help="Sort requests by their times.", rich_help_panel=ON_WHAT)]
ROUTER = "round-robin"

SCHEDULER_METAVAR = "NAME[:key=value,...]"
LoadPolicies = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE.py", help="A Python file that registers policies of your own. Repeatable.", rich_help_panel=WHAT
    ),
]

Check = Annotated[
    bool | None,
    typer.Option(
        "--check/--no-check",
        help="Check policy files on small scenarios, with bounds checks, even if they have passed before; or never.",
        show_default="once for each change of a file",
        rich_help_panel=WHAT,
    ),
]

JOBS_HELP = "Runs at a time. The results are the same however many."
Jobs = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help=JOBS_HELP, show_default="one a CPU core", rich_help_panel=HOW_MUCH),
]
RAY_METAVAR = "local|HOST:PORT|auto"
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar=RAY_METAVAR,
        help="Run on Ray: on a cluster of this machine's cores, started and stopped here; on the one whose head node "
        "is named; or on the one that this machine is part of. The results are the same.",
        show_default="no: in threads of this process",
        rich_help_panel=HOW_MUCH,
    ),
]

RATE_HELP = "Mean arrival rate, requests per second."
LOAD_HELP = "Arrival rate relative to saturation: a number, or light (0.3), medium (0.7), high (1), overload (1.4)."
Rate = Annotated[float | None, typer.Option(metavar="REQ_PER_S", help=RATE_HELP, rich_help_panel=HOW_MUCH)]
Seed = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="S",
        help="Seed of lengths, arrivals and priorities; for a file, of which requests are taken (0: the first).",
        rich_help_panel=HOW_MUCH,
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of seeds: each run is repeated with seeds 0 to N - 1.",
        rich_help_panel=HOW_MUCH,
    ),
]
Target = Annotated[
    str,
    typer.Option(
        metavar="MEASURE=VALUE",
        help="What a rate has to be served with: attainment=0.99, at least that share of the requests within their "
        "SLOs; ttft_p99=2, tpot_p99=0.06 or ttlt_p50=30, that quantile in seconds at most; violations=0.01, at most "
        "that share with a late token.",
        rich_help_panel=ON_WHAT,
    ),
]
RankBy = Annotated[
    str,
    typer.Option(
        "--rank-by",
        metavar="MEASURE",
        help="Which is best: attainment, tdg, p99-ttft, p99-tpot, requests (finished a second), late-token, starved or "
        "fairness.",
        rich_help_panel=HOW_MUCH,
    ),
]
Price = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DEVICE=PER_HOUR",
        help="Price of an engine-hour of a device, in any currency. Repeatable.",
        show_default="not known",
        rich_help_panel=ON_WHAT,
    ),
]
Duration = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time over which requests arrive. Those from 50 to 90 % of it are judged.",
        show_default="600, or 8 times the longest SLO",
        rich_help_panel=HOW_MUCH,
    ),
]
Precision = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Precision of the rate: the next one that fails is at most this much higher.",
        rich_help_panel=HOW_MUCH,
    ),
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        callback=json_target,
        help="Write every figure as one JSON document; -: to standard output, and all else to standard error.",
        rich_help_panel=OUTPUT,
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over: forget what --out holds.", rich_help_panel=OUTPUT)]
Csv = Annotated[bool, typer.Option("--csv", help="Tables as CSV, not Parquet.", rich_help_panel=OUTPUT)]
OUT_METAVAR = "DIR"


Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.html",
        callback=file_to_write,
        help="Write a report in one self-contained HTML file.",
        rich_help_panel=OUTPUT,
    ),
]
Perfetto = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.json[.gz]",
        callback=file_to_write,
        help="Write the timeline for Perfetto or chrome://tracing.",
        rich_help_panel=OUTPUT,
    ),
]
