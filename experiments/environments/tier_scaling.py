"""TierScaling-v0: engines that stay in the tiers they start in, against PolyServe's scaler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from experiments.environments.measuring import compare, settings_from_command_line
from servegym.envs.agents import Agent, BaseAgent, RandomAgent


@dataclass(frozen=True)
class Settings:
    engines: int = 4
    tiers: int = 4
    episodes: int = 10
    first_seed: int = 0


class OneEach:
    """Engine e is in tier e mod tiers, open; nothing is ever in the pool."""

    def __init__(self, engines: int, tiers: int):
        self.action = 2 * (np.arange(engines) % tiers + 1)

    def act(self, observation: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        return self.action


def main(settings: Settings) -> None:
    env = gym.make("servegym:TierScaling-v0", engines=settings.engines, tiers=settings.tiers)
    agents: dict[str, Agent] = {
        "polyserve": BaseAgent(),
        "one each": OneEach(settings.engines, settings.tiers),
        "random": RandomAgent(env.action_space, seed=0),
    }
    compare(env, agents, settings.episodes, settings.first_seed)


if __name__ == "__main__":
    main(settings_from_command_line(Settings, __doc__))
