"""Scheduling-v0: giving up what is worth little the more, the more there is to do, against the base scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from experiments.environments.measuring import compare, settings_from_command_line
from servegym.baselines.learned.scheduling import GIVING_UP
from servegym.baselines.observations.scheduling import WORTHY_WORK
from servegym.envs.agents import Agent, BaseAgent, RandomAgent
from servegym.scenarios.presets import EPISODES


@dataclass(frozen=True)
class Settings:
    scheduler: str = "expected-gain:steps=ignore"
    load: float = 1.2
    slots: int = 16
    episodes: int = 10
    first_seed: int = 0


class GiveUpUnderLoad:
    """Leaves out what is worth less than half of how busy the engine is with what is worth something."""

    def act(self, observation: dict[str, np.ndarray], info: dict[str, Any]) -> np.ndarray:
        action = np.zeros_like(info["base_action"])
        action[GIVING_UP] = 0.5 * observation["engine"][WORTHY_WORK]
        return action


def main(settings: Settings) -> None:
    env = gym.make(
        "servegym:Scheduling-v0",
        scenario=EPISODES.replaced(load=settings.load),
        scheduler=settings.scheduler,
        slots=settings.slots,
        observation="dict",
    )
    agents: dict[str, Agent] = {
        settings.scheduler: BaseAgent(),
        "give up under load": GiveUpUnderLoad(),
        "random": RandomAgent(env.action_space, seed=0),
    }
    compare(env, agents, settings.episodes, settings.first_seed)


if __name__ == "__main__":
    main(settings_from_command_line(Settings, __doc__))
