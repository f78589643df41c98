"""`servegym bench`: how fast the simulator is."""

from __future__ import annotations

from typing import Annotated

import typer

from servegym.cli import options
from servegym.cli.runners import load_policy_files

EXAMPLES = """\
[bold]Examples[/bold]

servegym bench --quick

servegym bench --json bench.json --dynamo dynamo-env/bin/python

servegym bench --vidur vidur-env

servegym bench --aisimulate aisimulate-env --dynamo dynamo-env

servegym bench --schedulers --routers

servegym bench --sessions
"""


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, coarser figures.")] = False,
    dynamo: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Environment with ai-dynamo, or its Python, to compare with."),
    ] = None,
    vidur: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Environment with vidur, or its Python, to compare with."),
    ] = None,
    aisimulate: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Environment with aisimulate, or its Python, to compare with."),
    ] = None,
    schedulers: Annotated[
        bool,
        typer.Option("--schedulers", help="Only this: an iteration's cost under each scheduler, beside sarathi-fcfs."),
    ] = False,
    routers: Annotated[
        bool,
        typer.Option("--routers", help="Only this: requests routed per second by each router, at several loads."),
    ] = False,
    tuning: Annotated[
        bool,
        typer.Option("--tuning", help="Only this: trials a minute of `servegym tune` as it is (needs servegym[tune])."),
    ] = False,
    loops: Annotated[
        bool,
        typer.Option("--loops", help="Only this: the event loops side by side, and what each takes to compile."),
    ] = False,
    sessions: Annotated[
        bool,
        typer.Option("--sessions", help="Only this: 537,600 requests of chat on 256 engines that cache prefixes."),
    ] = False,
    workers: Annotated[
        bool,
        typer.Option("--workers", help="Only this: what a second worker adds to a comparison and to a trial."),
    ] = False,
    budgets: Annotated[
        bool,
        typer.Option("--budgets", help="Only this: starts of processes, first resets, the wheel's size, lines."),
    ] = False,
    load_policies: options.LoadPolicies = None,
    check: options.Check = None,
    json: options.Json = None,
) -> None:
    """Measure the simulator's speed on this machine, each figure beside its bound."""
    from experiments.benchmarks import suite

    load_policy_files(load_policies, check)
    wishes = {
        "schedulers": schedulers,
        "routers": routers,
        "sessions": sessions,
        "tuning": tuning,
        "loops": loops,
        "workers": workers,
        "budgets": budgets,
    }
    asked_for = tuple(name for name, wanted in wishes.items() if wanted)
    suite.run(json, quick, dynamo, vidur, aisimulate, asked_for)
