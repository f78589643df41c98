"""`servegym bench`: how fast the simulator is."""

from __future__ import annotations

from typing import Annotated

import typer

from servegym.cli import options
from servegym.cli.user_policies import load_policy_files

EXAMPLES = """\
[bold]Examples[/bold]

servegym bench --quick

servegym bench --json bench.json --dynamo dynamo-env/bin/python

servegym bench --schedulers
"""


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, coarser figures.")] = False,
    dynamo: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Python of an environment with ai-dynamo, to compare with."),
    ] = None,
    schedulers: Annotated[
        bool,
        typer.Option("--schedulers", help="Only this: an iteration's cost under each scheduler, beside sarathi-fcfs."),
    ] = False,
    load_policies: options.LoadPolicies = None,
    json: options.Json = None,
) -> None:
    """Measure the simulator's speed on this machine, each figure beside its bound."""
    from servegym.experiments.benchmarks import suite

    load_policy_files(load_policies)
    suite.run(json, dynamo, quick, schedulers)
