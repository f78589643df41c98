"""`servegym bench`: how fast the simulator is."""

from typing import Annotated, Any

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


def beside(package: str) -> Any:
    """Make an option that names an environment with another simulator."""
    return typer.Option(metavar="PATH", help=f"Environment with {package}, or its Python, to compare with.")


def only(name: str, what: str) -> Any:
    """Make a flag that measures one part alone."""
    return typer.Option(f"--{name}", help=f"Only this: {what}.")


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, coarser figures.")] = False,
    dynamo: Annotated[str | None, beside("ai-dynamo")] = None,
    vidur: Annotated[str | None, beside("vidur")] = None,
    aisimulate: Annotated[str | None, beside("aisimulate")] = None,
    schedulers: Annotated[
        bool, only("schedulers", "an iteration's cost under each scheduler, beside sarathi-fcfs")
    ] = False,
    routers: Annotated[bool, only("routers", "requests routed per second by each router, at several loads")] = False,
    tuning: Annotated[
        bool, only("tuning", "trials a minute of `servegym tune` as it is (needs servegym[tune])")
    ] = False,
    loops: Annotated[bool, only("loops", "the event loops side by side, and what each takes to compile")] = False,
    sessions: Annotated[bool, only("sessions", "537,600 requests of chat on 256 engines that cache prefixes")] = False,
    workers: Annotated[bool, only("workers", "what a second worker adds to a comparison and to a trial")] = False,
    budgets: Annotated[bool, only("budgets", "starts of processes, first resets, the wheel's size, lines")] = False,
    load_policies: options.LoadPolicies = None,
    check: options.Check = None,
    json: options.Json = None,
) -> None:
    """Measure the simulator's speed on this machine, each figure beside its bound."""
    from experiments.benchmarks import suite

    load_policy_files(load_policies, check)
    wishes = {
        "schedulers": schedulers, "routers": routers, "sessions": sessions, "tuning": tuning, "loops": loops,
        "workers": workers, "budgets": budgets,
    }  # fmt: skip
    asked_for = tuple(name for name, wanted in wishes.items() if wanted)
    suite.run(json, quick, dynamo, vidur, aisimulate, asked_for)
