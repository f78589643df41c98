"""Router and schedulers together (PettingZoo): random agents one at a time beside the base policies of the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.environments.measuring import settings_from_command_line
from servegym.envs.parallel import ROUTER, ServingParallelEnv
from servegym.evaluation.intervals import student_interval


@dataclass(frozen=True)
class Settings:
    engines: int = 3
    episodes: int = 5
    first_seed: int = 0


def play(env: ServingParallelEnv, random: str, seed: int) -> float:
    """One episode in which the agents whose names begin so act at random; the TDG ratio."""
    _, infos = env.reset(seed=seed)
    for agent in env.possible_agents:
        env.action_space(agent).seed(seed)
    while env.agents:
        actions = {}
        if decider := env.decider:
            mask = infos[decider].get("action_mask")
            space = env.action_space(decider)
            if random and decider.startswith(random):
                actions[decider] = space.sample() if mask is None else space.sample(mask)
            else:
                actions[decider] = infos[decider]["base_action"]
        _, _, _, _, infos = env.step(actions)
    return infos[ROUTER]["tdg_ratio"]


def main(settings: Settings) -> None:
    env = ServingParallelEnv(engines=settings.engines)
    seeds = range(settings.first_seed, settings.first_seed + settings.episodes)
    table = Table("random", "TDG ratio, mean", title=f"router and {settings.engines} schedulers, {len(seeds)} episodes")
    for name, random in (("nobody", ""), ("engine_0", "engine_0"), ("all engines", "engine_"), ("router", ROUTER)):
        ratios = student_interval(np.array([play(env, random, seed) for seed in seeds]))
        table.add_row(name, f"{ratios.mean:.4f} ({ratios.low:.4f} to {ratios.high:.4f})")
    Console().print(table)


if __name__ == "__main__":
    main(settings_from_command_line(Settings, __doc__))
