"""A vector of environments of one class, stepped in one compiled call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from servegym.envs.env import ServingEnv, Source, scenario_of
from servegym.envs.episode_batch import EpisodeBatch, EpisodeState
from servegym.envs.interface import NUMBERS
from servegym.envs.summaries import summary_of
from servegym.errors import ActionError, EnvError
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.statuses import DONE, PAUSED


class ServingVectorEnv(VectorEnv[Any, Any, Any]):
    """num_envs environments in one. Each gives the same bytes as a single environment with its seed.

    autoreset_mode: Gymnasium's `AutoresetMode`. "SameStep": the next episode begins in the step that ends the last one,
        whose last observation and info are in info["final_obs"] and info["final_info"]. "NextStep" (which some wrappers
        need): it begins in the next step, whose action is not used and whose reward is 0. "Disabled": it begins with
        `reset`, for the environments that options={"reset_mask": bool[n]} names.
    `reset(seed=s)` seeds environment i with s + i.

    Other arguments are those of the single environment, `env_class`, but for `observation` and `render_mode`: EnvError.
    """

    env_class: ClassVar[Callable[..., ServingEnv]]

    def __init__(
        self,
        num_envs: int,
        scenario: Scenario | Source | None = None,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        **arguments: Any,
    ):
        if of_one := sorted({"observation", "render_mode"} & set(arguments)):
            raise EnvError(f"{of_one[0]} is for a single environment; a vector has none")
        single = self.env_class(scenario, **arguments)
        self.num_envs = num_envs
        self.interface = interface = single.interface
        self.source = single.source
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        self.metadata: dict[str, Any] = {**ServingEnv.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = interface.observation_space
        self.single_action_space = interface.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.episode_batch = EpisodeBatch(interface, num_envs, **single.episode_options)
        self._actions = self.episode_batch.actions.reshape(self.action_space.shape or ())
        self._over = np.ones(num_envs, bool)
        self._has_begun = False  # each environment has an episode
        self._everywhere = np.ones(num_envs, bool)
        self._everywhere.flags.writeable = False  # all infos share this array
        self._rngs = [np.random.default_rng() for _ in range(num_envs)]

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        options = dict(options or {})
        mask = options.pop("reset_mask", np.ones(self.num_envs, bool))
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        for i in np.flatnonzero(mask).tolist():
            if seeds[i] is not None:
                self._rngs[i] = gym.utils.seeding.np_random(seeds[i])[0]
            self._start(i, scenario_of(self.source, options, self._rngs[i]))
        self._has_begun = None not in self.episode_batch.simulations
        return self.episode_batch.observations.copy(), self._infos()

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        batch = self.episode_batch
        if not self._has_begun:
            raise gym.error.ResetNeeded("not every environment has an episode: call reset()")
        numbers = np.asarray(actions)
        if numbers.shape != self._actions.shape:
            raise ActionError(f"actions of shape {numbers.shape}; it should be {self._actions.shape}")
        if numbers.dtype.kind not in NUMBERS:
            raise ActionError(f"actions {numbers.tolist()}: each should be in {self.single_action_space}")
        self._actions[...] = numbers
        over = self._leave_out_ended()
        stopped = batch.step()
        for i in over:
            self._start(i, self.source(self._rngs[i]))
        rewards, infos = batch.reward.copy(), self._infos()
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        if stopped:
            terminated, truncated = batch.status == DONE, batch.status == PAUSED
            terminated[over] = truncated[over] = False  # an episode just begun has a step, even without a decision
            self._over = terminated | truncated
            if self._over.any():
                summaries = self._summaries()
                if self.autoreset_mode == AutoresetMode.SAME_STEP:
                    self._autoreset(self._over.copy(), infos, summaries)
                else:
                    infos |= summaries
        return batch.observations.copy(), rewards, terminated, truncated, infos

    def _leave_out_ended(self) -> list[int]:
        """Exclude environments whose episode is over from the next step; returns them.

        Raises ResetNeeded if autoreset is DISABLED."""
        if not np.count_nonzero(self._over):  # any() takes ten times as long
            return []
        over = np.flatnonzero(self._over).tolist()
        if self.autoreset_mode == AutoresetMode.DISABLED:
            raise gym.error.ResetNeeded(f"episodes {over} are over, or have not begun: call reset()")
        self.episode_batch.episodes["stepping"][over] = 0
        self.episode_batch.actions[over] = 0.0  # unused actions need not be in the action space
        return over

    def _start(self, i: int, scenario: Scenario) -> None:
        self.episode_batch.start(i, scenario)
        self._over[i] = False

    def _summaries(self) -> dict[str, Any]:
        """Summaries of the episodes that are over, as arrays over all environments with Gymnasium's masks ("_name")."""
        over = self._over.copy()
        ended = [
            simulation for simulation, is_over in zip(self.episode_batch.simulations, over, strict=True) if is_over
        ]
        found = [summary_of(simulation) for simulation in ended if simulation is not None]
        summary: dict[str, np.ndarray] = {}
        for name in found[0]:
            summary[name] = np.full(self.num_envs, np.nan)
            summary[name][over] = [one[name] for one in found]
            summary[f"_{name}"] = over
        return {"summary": summary, "_summary": over}

    def _autoreset(self, over: np.ndarray, infos: dict[str, Any], summaries: dict[str, Any]) -> None:
        """Start the next episode where one is over; put the last observations and infos into `infos`."""
        final = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in infos.items()}
        final |= summaries
        observations = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(over).tolist():
            observations[i] = self.episode_batch.observations[i].copy()
            self._start(i, self.source(self._rngs[i]))
        infos.update(self._infos())
        infos["final_obs"], infos["_final_obs"] = observations, over
        infos["final_info"], infos["_final_info"] = final, over

    def _infos(self) -> dict[str, Any]:
        """The `info` of single environments as arrays over all environments with Gymnasium's masks ("_name")."""
        batch, everywhere = self.episode_batch, self._everywhere
        now_s, gain, tdg_ratio, gain_reward, shaping_reward, _ = batch.shown.copy(order="C")
        terms = {"gain": gain_reward, "shaping": shaping_reward, "_gain": everywhere, "_shaping": everywhere}
        infos: dict[str, Any] = {
            "now_s": now_s,
            "gain": gain,
            "tdg_ratio": tdg_ratio,
            "reward_terms": terms,
            "base_action": self.interface.as_actions(batch.bases),
        }
        if self.interface.choices:
            infos["action_mask"] = batch.masks.copy()
        return infos | {f"_{name}": everywhere for name in infos}

    def clone_state(self, i: int) -> EpisodeState:
        """Copy the episode of environment i at this decision. Raises EnvError before the first reset."""
        return self.episode_batch.clone_state(i)

    def restore_state(self, i: int, state: EpisodeState) -> None:
        """Continue in environment i from a state of an environment of the same class, single or in a vector.

        Raises EnvError for a state of another class.
        """
        self.episode_batch.restore_state(i, state)
        self._over[i] = self.episode_batch.is_over(i)
        self._has_begun = None not in self.episode_batch.simulations

    def action_masks(self) -> np.ndarray:
        """bool[n, choices]: which actions are legal now."""
        return self.episode_batch.masks.astype(bool)

    def close_extras(self, **kwargs: Any) -> None:
        """Free the episodes; `reset` begins new ones."""
        self.episode_batch.simulations[:] = [None] * self.num_envs
        self._has_begun = False


def as_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Convert a name such as "SameStep". Raises EnvError for an unknown one."""
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(one.value) for one in AutoresetMode)
        raise EnvError(f"autoreset_mode {mode!r}: it should be one of {known}") from None
