"""Agents that are written by hand, for environments in which no learned policy ships."""

from typing import Any

import numpy as np

from servegym.baselines.observations.queue import REQUEST_FIELDS
from servegym.baselines.observations.routing import ROUTED_FIELDS

ENGINE_NUMBERS = [field.name for field in ROUTED_FIELDS]
REQUEST_NUMBERS = [field.name for field in REQUEST_FIELDS]


class SoonestAndEmptiest:
    """The prefill engine with the least estimated time to the first token, the decode engine with most free memory."""

    def __init__(self, prefill: int):
        self.prefill = prefill

    def act(self, observation: dict[str, np.ndarray], info: dict[str, Any]) -> np.ndarray:
        soonest, free = (observation["engine"][:, ENGINE_NUMBERS.index(name)] for name in ("soonest", "free_kv"))
        prefills, decodes = info["action_mask"]
        soonest = np.where(prefills == 1, soonest[: self.prefill], -1.0)
        free = np.where(decodes[:-1] == 1, free[self.prefill :], -1.0)  # the last: decided when it has been prefilled
        return np.array([soonest.argmax(), free.argmax()])


class ShortestInTime:
    """The shortest of the prompts that can be in time; the base's choice if there is none."""

    def act(self, observation: dict[str, np.ndarray], info: dict[str, Any]) -> int:
        hopeless, work = (observation["request"][:, REQUEST_NUMBERS.index(name)] for name in ("hopeless", "work"))
        in_time = (info["action_mask"] == 1) & (hopeless == 0)
        return int(np.where(in_time, work, 2.0).argmin())


class OneEach:
    """Engine e is in tier e mod tiers, open; nothing is ever in the pool."""

    def __init__(self, engines: int, tiers: int):
        self.action = 2 * (np.arange(engines) % tiers + 1)

    def act(self, observation: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        return self.action
