"""PrefillPreemption-v0: of the prompts that can be in time the shortest first, against FlowPrefill's order by slack."""

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
    scheduler: str = "flow-prefill"
    load: float = 1.0
    slots: int = 16
    episodes: int = 10
    first_seed: int = 0


class ShortestInTime:
    """The shortest of the prompts that can be in time; the base's choice if there is none."""

    def act(self, observation: dict[str, np.ndarray], info: dict[str, Any]) -> int:
        hopeless, work = (observation["request"][:, NAMES.index(name)] for name in ("hopeless", "work"))
        in_time = (info["action_mask"] == 1) & (hopeless == 0)
        return int(np.where(in_time, work, 2.0).argmin())


def main(settings: Settings) -> None:
    scenario = EPISODES.replaced(load=settings.load, prefill=1, decode=1, router="min-load")
    env = gym.make(
        "servegym:PrefillPreemption-v0",
        scenario=scenario,
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
