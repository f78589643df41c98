"""EngineBatching-v0: more requests count as urgent the more of the queue is late, against fixed parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from experiments.environments.measuring import compare, settings_from_command_line
from servegym.baselines.observations.engine import ENGINE_FIELDS
from servegym.envs.agents import Agent, BaseAgent, RandomAgent
from servegym.scenarios.presets import EPISODES

NAMES = [field.name for field in ENGINE_FIELDS]


@dataclass(frozen=True)
class Settings:
    scheduler: str = "slide-batching:steps=ignore"
    load: float = 1.2
    slope: float = 0.5  # of gamma's action against the share of late requests
    episodes: int = 10
    first_seed: int = 0


class MoreUrgentWhenLate:
    """The action for gamma grows with the share of requests that are late; the other parameters keep their defaults."""

    def __init__(self, slope: float, controls: tuple[str, ...]):
        self.slope, self.controls = slope, controls

    def act(self, observation: dict[str, np.ndarray], info: dict[str, Any]) -> np.ndarray:
        late = observation["engine"][NAMES.index("late")]
        return np.array([self.slope * late if name == "gamma" else 0.0 for name in self.controls], np.float32)


def main(settings: Settings) -> None:
    scenario = EPISODES.replaced(load=settings.load)
    env = gym.make("servegym:EngineBatching-v0", scenario=scenario, scheduler=settings.scheduler, observation="dict")
    controls = env.get_wrapper_attr("interface").controls
    agents: dict[str, Agent] = {
        settings.scheduler: BaseAgent(),
        "more urgent when late": MoreUrgentWhenLate(settings.slope, controls),
        "random": RandomAgent(env.action_space, seed=0),
    }
    compare(env, agents, settings.episodes, settings.first_seed)


if __name__ == "__main__":
    main(settings_from_command_line(Settings, __doc__))
