"""`servegym dataset`: episodes of an environment as a Minari dataset, for offline learning."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from servegym.cli import options
from servegym.cli.options import option
from servegym.cli.output import console_for, new_table, number, write_json
from servegym.cli.progress import bar_of
from servegym.cli.runners import load_policy_files
from servegym.cli.spec_options import Words, spec_options
from servegym.cli.train import EXTRA
from servegym.errors import EnvError
from servegym.extras import needs

EXAMPLES = """\
[bold]Examples[/bold]

servegym dataset EngineBatching-v0 --preset overload --episodes 50

servegym dataset ClusterRouting-v0 --router gorouting --engines 4 --load 1.2 --agent random --out data

servegym dataset RequestRanking-v0 --scheduler qoserve --id me/ranking/qoserve-v0 --json -
"""


class Agent(StrEnum):
    base = "base"
    random = "random"


@spec_options(many=("trace", "device", "load", "slo"), without=("seed",), shown="the environment's")
def dataset(
    words: Words,
    environment: Annotated[str, typer.Argument(metavar="ENVIRONMENT", help="EngineBatching-v0 or another.")],
    preset: Annotated[
        str | None, option("NAME", "A preset of scenarios: overload, light, burst, ...", options.ON_WHAT)
    ] = None,
    agent: Annotated[
        Agent, option(None, "The base policy, or legal actions at random.", options.WHAT, "--agent", "--who")
    ] = Agent.base,
    load_policies: options.LoadPolicies = None,
    episodes: Annotated[int, option("N", "Number of episodes.", options.HOW_MUCH, min=1)] = 50,
    seed: Annotated[int, option("S", "Seed of the first episode; the others count up from it.", "How much", min=0)] = 0,
    name: Annotated[
        str | None,
        option(
            "ID",
            "Name of the dataset, in Minari's form.",
            options.OUTPUT,
            "--id",
            show_default="servegym/ENVIRONMENT/AGENT-v0",
        ),
    ] = None,
    out: Annotated[Path, option("DIR", "The folder of the datasets.", options.OUTPUT)] = Path("results/datasets"),
    json: options.Json = None,
) -> None:
    """Play episodes and keep them as a Minari dataset, with its card.

    A scheduler or router that you name is the base policy, whose decisions the dataset then has.
    """
    load_policy_files(load_policies)
    made = made_of(environment, words | ({} if preset is None else {"preset": preset}))
    with needs("datasets", EXTRA):
        from servegym.envs.agents import BaseAgent, RandomAgent
        from servegym.traces.workloads import workload_notes
        from servegym.tuners.datasets import CARD, export, returns_of

        playing = BaseAgent() if agent is Agent.base else RandomAgent(made.action_space, seed)
        words_of_name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", environment.removesuffix("-v0")).lower()
        wanted = name or f"servegym/{words_of_name}/{agent.value}-v0"
        with bar_of("episodes") as (_, progress):
            kept = export(made, playing, episodes, wanted, out, seed, agent.value, progress)
    ratios, steps = returns_of(kept)
    summary = {
        "id": kept.id,
        "folder": str(out),
        "card": str(out / kept.id / CARD),
        "episodes": len(ratios),
        "steps": int(steps.sum()),
        "tdg_ratio": float(ratios.mean()),
        "notes": workload_notes(made.unwrapped.source(np.random.default_rng(seed)).workload.provenance),
    }
    table = new_table("dataset", "episodes", "steps", "TDG ratio, mean")
    table.add_row(kept.id, str(len(ratios)), str(summary["steps"]), number(summary["tdg_ratio"], 4))
    console = console_for(json)
    console.print(table)
    for note in summary["notes"]:
        console.print(note)
    console.print(f"written: {summary['card']}", soft_wrap=True)
    write_json(summary, json)


def made_of(environment: str, words: Words) -> Any:
    """Make the environment with these overrides. Raises EnvError for an unknown one."""
    import gymnasium as gym

    from servegym.envs.registration import NAMES

    if environment not in NAMES:
        raise EnvError(f"unknown environment {environment!r}; there are {', '.join(NAMES)}")
    return gym.make(f"servegym:{environment}", disable_env_checker=True, **words)
