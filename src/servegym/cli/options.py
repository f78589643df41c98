"""The options of the command line: one vocabulary, so that what was learned for one command serves for all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ON_WHAT, WHAT, HOW_MUCH, OUTPUT = "What is served", "By whom", "How much", "Output"


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
    """Refuse a path that no file can be written to, so that no long run ends in that."""
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; {right}")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent} to write {path.name} to")


Trace = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE",
        help="A family of generated requests, or a trace file (.csv, .jsonl, .parquet). "
        "Here as for every name: an unknown one is answered with those there are.",
        rich_help_panel=ON_WHAT,
    ),
]
Slo = Annotated[
    str,
    typer.Option(
        metavar="RECIPE[:key=value,...]",
        help="How requests get priorities, weights and SLOs, such as qoserve:shares=70-15-15; columns of the file "
        "itself win.",
        rich_help_panel=ON_WHAT,
    ),
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:key=value,...]",
        help="How requests arrive: poisson, gamma:cv=3, bursts:n=10, waves, square-wave, industrial-day, at-once, own.",
        show_default="own where the trace has times, else poisson",
        rich_help_panel=ON_WHAT,
    ),
]
Gain = Annotated[
    str,
    typer.Option(
        metavar="NAME[:key=value,...]",
        help="What a token earns: tdg, ta-slo, weighted-slo, vanilla-slo; with first_weight, decode_weight, "
        "buffered_first_token=no.",
        rich_help_panel=ON_WHAT,
    ),
]
Requests = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="How many requests a run serves; of a file, consecutive ones.",
        rich_help_panel=HOW_MUCH,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="PROFILE",
        help="A latency profile, or the path of its .json file; with :estimator=FORM behind it, policies believe that.",
        rich_help_panel=WHAT,
    ),
]
Engines = Annotated[
    int,
    typer.Option(min=1, max=1024, metavar="N", help="Engines, each of which does all.", rich_help_panel=WHAT),
]
Prefill = Annotated[
    int,
    typer.Option(
        min=0,
        max=1024,
        metavar="P",
        help="Engines that prefill only, with --decode; instead of --engines.",
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
Decode = Annotated[
    int,
    typer.Option(
        min=0,
        max=1024,
        metavar="D",
        help="Engines that decode what the prefill engines have prefilled.",
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
LinkBandwidth = Annotated[
    float,
    typer.Option(
        "--link-gb-per-s",
        metavar="GB_PER_S",
        help="How fast KV goes to each decode engine.",
        rich_help_panel=WHAT,
    ),
]
DecodeScheduler = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:key=value,...]",
        help="The scheduler of the decode engines.",
        show_default="vllm-fcfs",
        rich_help_panel=WHAT,
    ),
]
ROUTER = "round-robin"

SCHEDULER_METAVAR = "NAME[:key=value,...]"
Scheduler = Annotated[
    str,
    typer.Option(
        metavar=SCHEDULER_METAVAR, help="The scheduler and parameters other than its own.", rich_help_panel=WHAT
    ),
]
Schedulers = Annotated[
    list[str] | None,
    typer.Option(
        "--scheduler",
        metavar=SCHEDULER_METAVAR,
        help="A scheduler and parameters other than its own. Repeatable.",
        show_default="seven of them",
        rich_help_panel=WHAT,
    ),
]
Router = Annotated[
    str,
    typer.Option(metavar=SCHEDULER_METAVAR, help="Which of several engines gets a request.", rich_help_panel=WHAT),
]
Routers = Annotated[
    list[str] | None,
    typer.Option(
        "--router",
        metavar=SCHEDULER_METAVAR,
        help="Which of several engines gets a request. Repeatable: each scheduler under each router.",
        show_default=ROUTER,
        rich_help_panel=WHAT,
    ),
]
Scaler = Annotated[
    str | None,
    typer.Option(
        metavar=SCHEDULER_METAVAR,
        help="Moves engines between tiers and the common pool.",
        show_default="none: all stay in service",
        rich_help_panel=WHAT,
    ),
]
Scalers = Annotated[
    list[str] | None,
    typer.Option(
        "--scaler",
        metavar=SCHEDULER_METAVAR,
        help="Moves engines between tiers and the common pool. Repeatable: each scheduler under each scaler.",
        show_default="none: all stay in service",
        rich_help_panel=WHAT,
    ),
]
SignalDelay = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="How late a router hears of tokens, and of engines' memory.",
        rich_help_panel=WHAT,
    ),
]
PrefixStoreTokens = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Host memory of an engine, in tokens, for the KV of beginnings that prompts share; it is loaded at "
        "--host-bandwidth. The trace has prefix blocks then.",
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
Incidents = Annotated[
    list[str] | None,
    typer.Option(
        "--incident",
        metavar="KIND:ENGINE@SECONDS",
        help="An engine, numbered from 0, fails (fail:2@60), returns empty (return:2@90), or takes no more requests "
        "until it returns (drain:0@30). Repeatable.",
        rich_help_panel=WHAT,
    ),
]
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
        help="Check files of policies on small scenarios, with bounds checks, even those that have passed; or never.",
        show_default="once for each change of a file",
        rich_help_panel=WHAT,
    ),
]

JOBS_HELP = "Runs at a time. The results are the same however many."
Jobs = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help=JOBS_HELP, show_default="1; with --ray one a CPU", rich_help_panel=HOW_MUCH),
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
Rates = Annotated[
    list[float] | None,
    typer.Option("--rate", metavar="REQ_PER_S", help=f"{RATE_HELP} Repeatable.", rich_help_panel=HOW_MUCH),
]
Load = Annotated[str | None, typer.Option(metavar="X", help=LOAD_HELP, rich_help_panel=HOW_MUCH)]
Loads = Annotated[
    list[str] | None,
    typer.Option(
        "--load",
        metavar="X",
        help=f"{LOAD_HELP} Repeatable.",
        show_default="these four",
        rich_help_panel=HOW_MUCH,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="S",
        help="Seed of lengths, arrivals and priorities; of a file, which requests (0: the first).",
        rich_help_panel=HOW_MUCH,
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", help="How many seeds: each run is repeated for 0 to N - 1.", rich_help_panel=HOW_MUCH
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
Csv = Annotated[bool, typer.Option("--csv", help="Tables as CSV, not Parquet.", rich_help_panel=OUTPUT)]
OUT_METAVAR = "DIR"


Noise = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="SHARE",
        help="Noise of the device: relative standard deviation of an iteration's time.",
        rich_help_panel=WHAT,
    ),
]
Drift = Annotated[
    float,
    typer.Option(min=0, metavar="PER_S", help="Drift of the device: relative slowdown a second.", rich_help_panel=WHAT),
]
Correct = Annotated[
    bool,
    typer.Option("--correct", help="Correct the estimator by what iterations took.", rich_help_panel=WHAT),
]
HostMemory = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="GIB",
        help="Host memory of an engine, to which policies that keep the KV of victims move it.",
        rich_help_panel=WHAT,
    ),
]
HostBandwidth = Annotated[
    float,
    typer.Option(metavar="GB_PER_S", help="How fast KV moves to host memory and back.", rich_help_panel=WHAT),
]
Predictor = Annotated[
    str | None,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="Predict urgency and output lengths before requests are queued: urgency_error, length_error, "
        "length_buckets, latency_s, processing, batch_size, ...",
        rich_help_panel=WHAT,
    ),
]
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
