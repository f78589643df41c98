"""Environments that cost nothing: what a learner alone takes."""

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from servegym.envs.vector import ServingVectorEnv


class ZeroCostEnv(VecEnv):
    """Of the spaces and the number of a vector of environments; always the same observations, and no episode ends."""

    def __init__(self, like: ServingVectorEnv):
        super().__init__(like.num_envs, like.single_observation_space, like.single_action_space)
        observations, _ = like.reset(seed=0)
        self._answer = (observations, np.zeros(self.num_envs, "f4"), np.zeros(self.num_envs, bool))

    def reset(self) -> np.ndarray:
        return self._answer[0]

    def step_async(self, actions: np.ndarray) -> None:
        """Nothing comes of it."""

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        return *self._answer, [{} for _ in range(self.num_envs)]

    def close(self) -> None:
        """Nothing is open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name, None) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(attr_name)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]
