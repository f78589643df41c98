"""`servegym score`: scores a policy file with one number, and shows the figures behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from servegym.cli import options
from servegym.cli.options import option
from servegym.cli.output import console_for, new_table, number, progress_console, write_json

if TYPE_CHECKING:
    from rich.console import Console

    from servegym.evaluation.scoring.results import Score

EXAMPLES = """\
[bold]Examples[/bold]

servegym score least_laxity.py

servegym score least_laxity.py --panel hidden.yaml --json -

servegym score slide-batching:gamma=2
"""


def score(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py|NAME",
            help="A Python file that registers a scheduler or router; or a policy by name, learned:PATH too.",
        ),
    ],
    panel: Annotated[
        str | None,
        option(
            "NAME|FILE.yaml",
            "The scenarios. A file of your own, with seeds that no search has seen, is a hidden panel.",
            options.ON_WHAT,
            show_default="score; of a router score_routers",
        ),
    ] = None,
    name: Annotated[str | None, option("POLICY", "Which policy of the file, if it has several.", options.WHAT)] = None,
    baseline: Annotated[
        list[str] | None,
        option(
            "POLICY",
            "A policy to compare with. Give two or more.",
            options.WHAT,
            show_default="slide-batching and expected-gain; of a router min-load and gorouting",
        ),
    ] = None,
    least: Annotated[
        float,
        option(
            "SCORE", "Stop early below this score on the scenarios of the highest load; 0: never.", options.HOW_MUCH
        ),
    ] = 0.5,
    limit: Annotated[float, option("SECONDS", "Time limit of all its runs.", options.HOW_MUCH, min=0.1)] = 60.0,
    memory: Annotated[float, option("GIB", "Memory limit of its process.", options.HOW_MUCH, min=0.5)] = 4.0,
    json: options.Json = None,
) -> None:
    """Score a policy in one number: its TDG as a share of the best run found by a search that knows the future.

    The file is searched for what no policy needs (files, processes, private parts of other modules), compiled with
    bounds checks and run on small scenarios, then on those of the highest load, and if it does well enough there, on
    all. Each step runs in a process of its own, which may crash, hang or run out of memory; a fault of the policy is an
    error of one line (exit status 2).
    """
    from servegym.evaluation.scoring.scoring import score as score_policy

    with progress_console().status(f"scoring {policy}: checks, then runs, {limit:g} s at most"):
        found = score_policy(
            policy, panel, name, baselines=baseline or (), least=least, limit_s=limit, memory_gib=memory
        )  # fmt: skip
    show(found, console_for(json))
    write_json(found.to_json(), json)


OF = " of "  # in the key of a baseline's figure: "tdg_ratio of slide-batching"


def show(found: Score, console: Console) -> None:
    interval = f" [{found.low:.4f}, {found.high:.4f}]" if found.low == found.low else ""
    number_or_none = "no score" if found.stopped else f"{found.combined_score:.4f}{interval}"
    console.print(f"{number_or_none}  {found.policy} on panel {found.panel}: TDG over {found.relative_to}")
    baselines = list(dict.fromkeys(key.partition(OF)[2] for key in found.metrics if OF in key))
    table = new_table("", found.policy, *baselines)
    for key in found.metrics:
        if OF not in key:
            beside = (found.metrics.get(key + OF + baseline) for baseline in baselines)
            shown = ("" if value is None else number(float(value), 4) for value in (found.metrics[key], *beside))
            table.add_row(key, *shown)
    console.print(table)
    console.print(found.artifacts["feedback"])
    if "notes" in found.artifacts:
        console.print(found.artifacts["notes"])
