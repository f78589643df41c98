"""RequestRanking-v0: requests that can still be in time, the shortest first, against the base scheduler's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from experiments.environments.measuring import compare, settings_from_command_line
from servegym.baselines.observations.queue import REQUEST_FIELDS
from servegym.envs.agents import Agent, BaseAgent, RandomAgent
from servegym.scenarios.presets import EPISODES

NAMES = [field.name for field in REQUEST_FIELDS]


@dataclass(frozen=True)
class Settings:
    scheduler: str = "slide-batching:steps=ignore"
    load: float = 1.2
    slots: int = 32
    episodes: int = 10
    first_seed: int = 0


class ShortestInTime:
    """Hopeless requests last; of the others, those that need least time first."""

    def act(self, observation: dict[str, np.ndarray], info: dict[str, Any]) -> np.ndarray:
        hopeless, work = (observation["request"][:, NAMES.index(name)] for name in ("hopeless", "work"))
        return np.where(hopeless == 1, -1.0, 1.0 - work).astype(np.float32)


def main(settings: Settings) -> None:
    env = gym.make(
        "servegym:RequestRanking-v0",
        scenario=EPISODES.replaced(load=settings.load),
        scheduler=settings.scheduler,
        slots=settings.slots,
        observation="dict",
    )
    agents: dict[str, Agent] = {
        settings.scheduler: BaseAgent(),
        "shortest in time": ShortestInTime(),
        "random": RandomAgent(env.action_space, seed=0),
    }
    compare(env, agents, settings.episodes, settings.first_seed)


if __name__ == "__main__":
    main(settings_from_command_line(Settings, __doc__))
