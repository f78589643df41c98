"""ClusterRouting-v0: the engine where the request would be done soonest, against a router that counts requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from experiments.environments.measuring import compare, settings_from_command_line
from servegym.baselines.observations.routing import ROUTED_FIELDS
from servegym.envs.agents import Agent, BaseAgent, RandomAgent
from servegym.scenarios.presets import EPISODES

NAMES = [field.name for field in ROUTED_FIELDS]


@dataclass(frozen=True)
class Settings:
    router: str = "min-load"
    engines: int = 4
    load: float = 1.0
    episodes: int = 10
    first_seed: int = 0


class Soonest:
    """Of the engines that take the request, that with the least estimated time to its first token."""

    def act(self, observation: dict[str, np.ndarray], info: dict[str, Any]) -> int:
        soonest = observation["engine"][:, NAMES.index("soonest")]
        return int(np.where(info["action_mask"] == 1, soonest, -1.0).argmax())


def main(settings: Settings) -> None:
    scenario = EPISODES.replaced(
        load=settings.load, engines=settings.engines, router=settings.router, requests=100.0 * settings.engines
    )
    env = gym.make("servegym:ClusterRouting-v0", scenario=scenario, engines=settings.engines, observation="dict")
    agents: dict[str, Agent] = {
        settings.router: BaseAgent(),
        "soonest": Soonest(),
        "random": RandomAgent(env.action_space, seed=0),
    }
    compare(env, agents, settings.episodes, settings.first_seed)


if __name__ == "__main__":
    main(settings_from_command_line(Settings, __doc__))
