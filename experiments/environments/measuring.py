"""What the scripts of this folder share: settings from the command line, and agents on the same episodes."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from servegym.envs.agents import Agent, play
from servegym.evaluation.intervals import student_interval

Settings = TypeVar("Settings")


def settings_from_command_line(kind: type[Settings], doc: str | None) -> Settings:
    """The settings' defaults, changed by options of their names."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=type(field.default), default=field.default, help=" ")
    return kind(**vars(parser.parse_args()))


def compare(env: Any, agents: Mapping[str, Agent], episodes: int, first_seed: int) -> dict[str, np.ndarray]:
    """Play the same episodes with each agent; print their TDG ratios. Returns them: float64[episodes] of each.

    The interval (95 %, Student) is of the mean difference to the first agent on the same episodes.
    """
    console = Console(stderr=True)
    seeds = range(first_seed, first_seed + episodes)
    ratios = {
        name: np.array([play(env, agent, seed) for seed in track(seeds, name, console=console, transient=True)])
        for name, agent in agents.items()
    }
    first = next(iter(ratios))
    table = Table("agent", "TDG ratio, mean", f"more than {first}", title=f"{env.spec.id}, {episodes} episodes")
    for name, values in ratios.items():
        more = student_interval(values - ratios[first])
        table.add_row(name, f"{values.mean():.4f}", more.in_words())
    Console().print(table)
    return ratios
