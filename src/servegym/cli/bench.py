"""`servegym bench`: how fast the simulator is."""

from __future__ import annotations

from typing import Annotated

import typer

from servegym.cli import options

EXAMPLES = """\
[bold]Examples[/bold]

servegym bench --quick

servegym bench --json bench.json --dynamo dynamo-env/bin/python
"""


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, coarser figures.")] = False,
    dynamo: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Python of an environment with ai-dynamo, to compare with."),
    ] = None,
    json: options.Json = None,
) -> None:
    """Measure the simulator's speed on this machine, each figure beside its bound."""
    from servegym.experiments.benchmarks import suite

    suite.run(json, dynamo, quick)
