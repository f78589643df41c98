"""The options of the command line, with the same names and meanings in all commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from servegym.errors import ExperimentError
from servegym.scenarios.spec import LEAVES

ON_WHAT, WHAT, HOW_MUCH, OUTPUT = "What is served", "Policies and models", "How much", "Output"


def option(metavar: str | None, help: str, panel: str, *names: str, **more: Any) -> Any:
    """Make an option with its help in a panel. names: if they differ from the argument's. more: as in
    `typer.Option`."""
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, **more)


def flag(help: str, panel: str, *names: str, **more: Any) -> Any:
    """Make an option without a value; arguments as in `option`."""
    return option(None, help, panel, *names, **more)


def field_option(name: str, panel: str, **more: Any) -> Any:
    """Make the option of a spec's field for a command that takes only a few fields, with the field's name and help."""
    field = LEAVES[name][1]
    flag_name = f"--{field.name or name.replace('_', '-')}"
    return option(field.metavar or None, field.help, panel, flag_name, show_default=field.shown or False, **more)


def json_target(value: str | None) -> str | None:
    """Return the value of `--json`, or raise BadParameter if it cannot be written."""
    if value is not None and value != "-":
        check_target(Path(value), "name a file, or - for standard output")
    return value


def file_to_write(value: Path | None) -> Path | None:
    """Return a path, or raise BadParameter if it cannot be written."""
    if value is not None:
        check_target(value, "name a file")
    return value


def ending(*suffixes: str) -> Callable[[Path | None], Path | None]:
    """Return a callback of an option that writes a file: its name should end with one of `suffixes`."""

    def check(value: Path | None) -> Path | None:
        if value is not None and not value.name.lower().endswith(suffixes):
            raise typer.BadParameter(f"{value}: its name should end with {' or '.join(suffixes)}")
        return file_to_write(value)

    return check


def check_target(path: Path, right: str) -> None:
    """Raise BadParameter for a path that cannot be written, before a long run rather than at its end."""
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; {right}")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent} to write {path.name} to")


def numbers_of(texts: list[str] | None, what: str, right: str) -> dict[str, float]:
    """Parse NAME=NUMBER, each name once. what: such as "price"; right: what it should be. Raises ExperimentError."""
    found: dict[str, float] = {}
    for text in texts or []:
        name, _, value = text.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            name = ""
        if not name:
            raise ExperimentError(f"a {what} of {text!r}: it should be {right}")
        if name in found:
            raise ExperimentError(f"two {what}s of {name}; give one")
        found[name] = number
    return found


PRICE = ("price", "DEVICE=PER_HOUR, such as a100-llama3-8b=2")
Arrivals = Annotated[str | None, field_option("arrivals", ON_WHAT)]
Requests = Annotated[int | None, field_option("requests", HOW_MUCH, min=1)]
Columns = Annotated[str | None, field_option("columns", ON_WHAT)]
TimeUnit = Annotated[str | None, field_option("time_unit", ON_WHAT)]
DropEmpty = Annotated[bool, field_option("drop_empty", ON_WHAT)]
Sort = Annotated[bool, field_option("sort", ON_WHAT)]
Rate = Annotated[float | None, field_option("rate_per_s", HOW_MUCH)]
Seed = Annotated[int, field_option("seed", HOW_MUCH, min=0)]
ROUTER = "round-robin"

SCHEDULER_METAVAR = "NAME[:key=value,...]"
LoadPolicies = Annotated[
    list[Path] | None, option("FILE.py", "A Python file that registers policies of your own. Repeatable.", WHAT)
]

Check = Annotated[
    bool | None,
    flag(
        "Check policy files on small scenarios, with bounds checks, even if they have passed before; or never.",
        WHAT,
        "--check/--no-check",
        show_default="once for each change of a file",
    ),
]

JOBS_HELP = "Runs at a time. Results do not depend on it."
Jobs = Annotated[int | None, option("N", JOBS_HELP, HOW_MUCH, min=1, show_default="one a CPU core")]
RAY_METAVAR = "local|HOST:PORT|auto"
Ray = Annotated[
    str | None,
    option(
        RAY_METAVAR,
        "Run on Ray: local, a cluster of this machine's cores for this command; HOST:PORT, the cluster with this head "
        "node; auto, the cluster that this machine is part of. Results do not depend on it.",
        HOW_MUCH,
        "--ray",
        show_default="no: in threads of this process",
    ),
]

Seeds = Annotated[int, option("N", "Number of seeds: each run is repeated with seeds 0 to N - 1.", HOW_MUCH, min=1)]
Target = Annotated[
    str,
    option(
        "MEASURE=VALUE",
        "The target: attainment=0.99, at least this share of the requests within their SLOs; ttft_p99=2, "
        "tpot_p99=0.06 or ttlt_p50=30, at most so many seconds for this quantile; violations=0.01, at most this share "
        "of the requests with a late token.",
        ON_WHAT,
    ),
]
RankBy = Annotated[
    str,
    option(
        "MEASURE",
        "Measure by which the best is chosen: attainment, tdg, p99-ttft, p99-tpot, requests (finished a second), "
        "late-token, starved or fairness.",
        HOW_MUCH,
        "--rank-by",
    ),
]
Price = Annotated[
    list[str] | None,
    option(
        "DEVICE=PER_HOUR",
        "Price of an engine-hour of a device, in any currency. Repeatable.",
        ON_WHAT,
        show_default="not known",
    ),
]
Duration = Annotated[
    float | None,
    option(
        "SECONDS",
        "Time over which requests arrive; those that arrive from 50 to 90 % of it are judged.",
        HOW_MUCH,
        show_default="600, or 8 times the longest SLO",
    ),
]
Precision = Annotated[
    float, option("SHARE", "Precision: a rate higher by this share of it fails the target.", HOW_MUCH)
]
Json = Annotated[
    str | None,
    option(
        "FILE|-",
        "Write every figure as one JSON document; -: to standard output, with all else on standard error.",
        OUTPUT,
        "--json",
        callback=json_target,
    ),
]
Fresh = Annotated[bool, flag("Start over: discard what --out has.", OUTPUT, "--fresh")]
Csv = Annotated[bool, flag("Tables as CSV, not Parquet.", OUTPUT, "--csv")]
OUT_METAVAR = "DIR"


Report = Annotated[
    Path | None,
    option("FILE.html", "Write a report in one self-contained HTML file.", OUTPUT, callback=ending(".html")),
]
Perfetto = Annotated[
    Path | None,
    option(
        "FILE.json[.gz]",
        "Write the timeline for Perfetto or chrome://tracing.",
        OUTPUT,
        callback=ending(".json", ".json.gz"),
    ),
]
