"""DisaggregatedRouting-v0: the soonest prefill and the emptiest decode engine, against GoRouting."""

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
    router: str = "gorouting"
    prefill: int = 2
    decode: int = 2
    load: float = 1.0
    episodes: int = 10
    first_seed: int = 0


class SoonestAndEmptiest:
    """The prefill engine with the least estimated time to the first token, the decode engine with most free memory."""

    def __init__(self, prefill: int):
        self.prefill = prefill

    def act(self, observation: dict[str, np.ndarray], info: dict[str, Any]) -> np.ndarray:
        soonest, free = (observation["engine"][:, NAMES.index(name)] for name in ("soonest", "free_kv"))
        prefills, decodes = info["action_mask"]
        soonest = np.where(prefills == 1, soonest[: self.prefill], -1.0)
        free = np.where(decodes[:-1] == 1, free[self.prefill :], -1.0)  # the last: decided when it has been prefilled
        return np.array([soonest.argmax(), free.argmax()])


def main(settings: Settings) -> None:
    engines = settings.prefill + settings.decode
    scenario = EPISODES.replaced(
        load=settings.load,
        prefill=settings.prefill,
        decode=settings.decode,
        router=settings.router,
        requests=100.0 * engines,
    )
    env = gym.make(
        "servegym:DisaggregatedRouting-v0",
        scenario=scenario,
        prefill=settings.prefill,
        decode=settings.decode,
        observation="dict",
    )
    agents: dict[str, Agent] = {
        settings.router: BaseAgent(),
        "soonest and emptiest": SoonestAndEmptiest(settings.prefill),
        "random": RandomAgent(env.action_space, seed=0),
    }
    compare(env, agents, settings.episodes, settings.first_seed)


if __name__ == "__main__":
    main(settings_from_command_line(Settings, __doc__))
