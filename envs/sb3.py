"""A vector of environments as the VecEnv of Stable-Baselines3, stepped in one compiled call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from servegym.envs.vector import ServingVectorEnv
from servegym.errors import EnvError
from servegym.scenarios.values import is_number

MASKS = "action_masks"


class Sb3VecEnv(VecEnv):
    """Wrap a `ServingVectorEnv` for Stable-Baselines3 and sb3-contrib.

    infos[i] is filled only when the episode of environment i has just ended (to fill 64 at each step takes a quarter of
    the step's time): `terminal_observation`; `TimeLimit.truncated`, whether the scenario's `until_s` cut the episode
    off; `episode`, as of a `Monitor`: sum of rewards r, steps l, seconds since the start t; `tdg_ratio`; and `summary`,
    figures of the whole episode.

    `seed(s)` and `set_options(...)` hold for the next `reset`, as everywhere in Stable-Baselines3.
    reward_scale: factor on the rewards; those in `episode` are not scaled. `durations_s`: float64[n], the simulated
    time of the last step of each environment; 0 where an episode ended. Raises EnvError for another kind of vector, and
    for a scale that is no number above 0.
    """

    def __init__(self, venv: ServingVectorEnv, reward_scale: float = 1.0):
        if not isinstance(getattr(venv, "unwrapped", None), ServingVectorEnv):
            raise EnvError(f"a {type(venv).__name__}; it should be a vector of servegym's environments")
        self.venv = venv.unwrapped
        if self.venv.autoreset_mode != AutoresetMode.SAME_STEP:
            raise EnvError(f"autoreset_mode {self.venv.autoreset_mode.value!r}: here it should be 'SameStep'")
        if not (is_number(reward_scale, False) and 0 < reward_scale < np.inf):
            raise EnvError(f"reward_scale is {reward_scale!r}; it should be a number above 0")
        self.reward_scale = reward_scale
        self.episodes = 0  # number of ended episodes
        super().__init__(venv.num_envs, self.venv.single_observation_space, self.venv.single_action_space)
        self.durations_s = np.zeros(self.num_envs)
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, int)
        self._begin_s = time.perf_counter()

    @property
    def rng_states(self) -> list[dict[str, Any]]:
        """State of the random generator of each environment, from which its next episode is drawn."""
        return [dict(rng.bit_generator.state) for rng in self.venv._rngs]

    @rng_states.setter
    def rng_states(self, states: Sequence[dict[str, Any]]) -> None:
        if len(states) != self.num_envs:
            raise EnvError(f"{len(states)} states of generators; there should be {self.num_envs}")
        self._reset_seeds()  # else a pending seed would replace these states at the next reset
        for rng, state in zip(self.venv._rngs, states, strict=True):
            rng.bit_generator.state = state

    def reset(self) -> np.ndarray:
        same = all(options is self._options[0] or options == self._options[0] for options in self._options)
        if same:
            observations, _ = self.venv.reset(seed=list(self._seeds), options=self._options[0])
        else:
            for i, options in enumerate(self._options):
                mask = np.arange(self.num_envs) == i
                observations, _ = self.venv.reset(seed=list(self._seeds), options={**options, "reset_mask": mask})
        self._reset_seeds()
        self._reset_options()
        self._returns[:], self._lengths[:] = 0.0, 0
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        before_s = self.venv.episode_batch.now_s.copy()
        observations, rewards, terminated, truncated, vector_infos = self.venv.step(self._actions)
        self._returns += rewards
        self._lengths += 1
        dones = terminated | truncated
        self.durations_s = np.where(dones, 0.0, self.venv.episode_batch.now_s - before_s)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if dones.any():
            self._fill_infos(np.flatnonzero(dones), truncated, vector_infos, infos)
        return observations, (self.reward_scale * rewards).astype(np.float32), dones, infos

    def _fill_infos(self, ended: np.ndarray, truncated: np.ndarray, vector_infos: dict, infos: list[dict]) -> None:
        """Fill the infos of the environments whose episode has ended."""
        seconds, final = round(time.perf_counter() - self._begin_s, 6), vector_infos["final_info"]
        for i in ended.tolist():
            infos[i] = {
                "terminal_observation": vector_infos["final_obs"][i],
                "TimeLimit.truncated": bool(truncated[i]),
                "episode": {"r": float(self._returns[i]), "l": int(self._lengths[i]), "t": seconds},
                "tdg_ratio": float(final["tdg_ratio"][i]),
                "summary": {name: float(final["summary"][name][i]) for name in final["summary"] if name[0] != "_"},
            }
        self._returns[ended], self._lengths[ended] = 0.0, 0
        self.episodes += len(ended)

    def late_rewards(self) -> np.ndarray | float:
        """Return float32[steps, n], rewards of a rollout's steps that are known only after it; here there are none."""
        return 0.0

    def close(self) -> None:
        self.venv.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the vector, once for each environment. Raises AttributeError for an unknown one."""
        if attr_name == MASKS and not self.venv.interface.choices:
            raise AttributeError("every action is legal here: there are no action masks")
        value = getattr(self.venv, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the vector. Raises EnvError if `indices` does not name all environments."""
        if len(list(self._get_indices(indices))) != self.num_envs:
            raise EnvError(f"{attr_name} belongs to all environments together; set it without indices")
        setattr(self.venv, attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Call `action_masks`, bool[choices] for each environment. Raises AttributeError for another method."""
        if method_name != MASKS or not self.has_attr(MASKS):
            raise AttributeError(f"no method {method_name!r} of single environments in a native vector of them")
        masks = self.venv.action_masks()
        return [masks[i] for i in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """True for `Monitor` alone, whose statistics are in the infos."""
        return [issubclass(Monitor, wrapper_class) for _ in self._get_indices(indices)]
