"""The base class of the environments: a Gymnasium environment over a simulation that stops at each decision."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from servegym.envs.episode_batch import EpisodeBatch, EpisodeState
from servegym.envs.interface import NUMBERS, Interface
from servegym.envs.registration import headroom_of, registered_name
from servegym.envs.summaries import summary_of
from servegym.errors import ActionError, EnvError, SpecError, unknown_name
from servegym.scenarios.presets import check_preset, spelled_out
from servegym.scenarios.spec import LEAVES, PARTS, ServingSpec
from servegym.scenarios.values import is_number
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.statuses import DECISION, DONE, PAUSED
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation

Source = Callable[[np.random.Generator], Scenario]


class ServingEnv(gym.Env[Any, Any]):
    """Base class of all servegym environments.

    A step goes from one decision to the next. Its reward is the gain between the two, divided by the episode's ideal
    gain (that of all requests that arrive), so an episode's rewards sum to its TDG ratio; `shaping` adds a
    potential-based term. An episode is terminated when every request is finished, and its last observation is all
    zeros; it is truncated at the scenario's `until_s`, and its last observation is that of the last decision.

    info: now_s; gain; tdg_ratio (so far); reward_terms {gain, shaping}; base_action, which leaves the base policy's
    decision as it is; action_mask, for discrete actions, as `action_space.sample` takes it.

    scenario: a `Scenario` (every episode is the same), or a source of scenarios, called with the environment's random
        generator. `reset(options={"scenario": ...})` takes either for one episode.
    overrides: fields to change in a source that is a `ServingSpec` (load=0.9, trace="azure-code", ...; see
        `ServingSpec.with_overrides`); preset="overload", or another of `scenarios.presets`, stands for several fields.
    observation: "flat", or "dict" for a Dict with one entry for each part of the observation.
    shaping: weight of the potential (see docs/environments.md). discount: the learner's discount, which shaping needs.

    `simulation` and `result()` give access to the simulation. Raises EnvError for arguments or scenarios that do not
    suit the environment, ActionError for an action outside the action space.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (as Gymnasium declares it)
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 20,
    }

    def __init__(
        self,
        interface: Interface,
        scenario: Scenario | Source,
        *,
        observation: str = "flat",
        repeat: int = 1,
        shaping: float = 0.0,
        discount: float = 1.0,
        render_mode: str | None = None,
        **overrides: Any,
    ):
        check_options(observation, repeat, shaping, discount)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise EnvError(f"render_mode {render_mode!r}: it should be None, 'ansi' or 'rgb_array'")
        self.interface = interface
        self.source = as_source(scenario, overrides, type(self))
        self.render_mode = render_mode
        self.observation_space = interface.dict_space if observation == "dict" else interface.observation_space
        self.action_space = interface.action_space
        self.episode_options: dict[str, Any] = {"repeat": repeat, "shaping": shaping, "discount": discount}
        self._as_dict = observation == "dict"
        self._shape = interface.action_space.shape
        self._episode_batch: EpisodeBatch | None = None
        self._last_action = ""  # in words, for pictures

    @property
    def simulation(self) -> Simulation:
        """The simulation of the episode. Raises EnvError before the first reset."""
        simulation = self._episode_batch.simulations[0] if self._episode_batch is not None else None
        if simulation is None:
            raise EnvError("there is no simulation before the first reset")
        return simulation

    def result(self) -> Result:
        """Tables and summary of the episode so far."""
        return self.simulation.result()

    @property
    def headroom(self) -> dict[str, dict[str, Any]]:
        """Measured TDG ratios of this environment by preset (see `headroom_of`); other scenarios were not measured."""
        return headroom_of(registered_name(type(self)))

    def action_masks(self) -> np.ndarray:
        """bool[choices]: which actions are legal now, as sb3-contrib asks for them."""
        assert self._episode_batch is not None
        return self._episode_batch.masks[0].astype(bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._episode_batch is None:
            self._episode_batch = EpisodeBatch(self.interface, 1, **self.episode_options)
        self._episode_batch.start(0, scenario_of(self.source, options, self.np_random))
        self._last_action = ""
        self._over = False  # an episode without decisions has one step, which gives the reward
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        batch = self._episode_batch
        if batch is None or self._over:
            raise gym.error.ResetNeeded("the episode is over, or has not begun: call reset()")
        numbers = np.asarray(action)
        if numbers.shape != self._shape:
            raise ActionError(f"an action of shape {numbers.shape}; it should be of shape {self._shape}")
        if numbers.dtype.kind not in NUMBERS:
            raise ActionError(f"action {numbers.tolist()}: it should be in {self.action_space}")
        batch.actions[0] = numbers if numbers.ndim == 1 else numbers.ravel()
        if self.render_mode is not None and batch.status.item(0) == DECISION:
            filled = batch.episodes["filled"].item(0)
            self._last_action = self.interface.in_words(batch.actions[0], self.simulation, filled)
        batch.step()
        status = batch.status.item(0)
        self._over = status in (DONE, PAUSED)
        return self._observation(), batch.reward.item(0), status == DONE, status == PAUSED, self._info()

    def clone_state(self) -> EpisodeState:
        """Copy the episode at this decision, for `restore_state`. Raises EnvError before the first reset."""
        if self._episode_batch is None:
            raise EnvError("there is no episode before the first reset")
        return self._episode_batch.clone_state(0)

    def restore_state(self, state: EpisodeState) -> tuple[Any, dict[str, Any]]:
        """Continue from a state of this environment or of another of the same class.

        Returns the observation and info of that decision. Raises EnvError for anything but a state of that class.
        """
        if self._episode_batch is None:
            self._episode_batch = EpisodeBatch(self.interface, 1, **self.episode_options)
        self._episode_batch.restore_state(0, state)
        self._over = self._episode_batch.is_over(0)
        return self._observation(), self._info()

    def _observation(self) -> Any:
        assert self._episode_batch is not None
        observation = self._episode_batch.observations[0].copy()
        return self.interface.layout.parts(observation) if self._as_dict else observation

    def _info(self) -> dict[str, Any]:
        batch = self._episode_batch
        assert batch is not None
        info = batch.info_of(0)
        info["base_action"] = self.interface.as_actions(batch.bases[0])
        if self.interface.choices:
            info["action_mask"] = self.interface.as_masks(batch.masks[0].copy())
        if self._over:
            info["summary"] = summary_of(self.simulation)
        return info

    def render(self) -> Any:
        if self.render_mode is None:
            raise EnvError("render_mode is None; make the environment with 'ansi' or 'rgb_array'")
        from servegym.envs import rendering

        return getattr(rendering, self.render_mode)(self.simulation, **self.shown())

    def shown(self) -> dict[str, Any]:
        """Arguments of the renderers beside the simulation: `action`, the last one in words (empty without a render
        mode), `slots`, the request in each slot of the next action, and `engine`, the engine that has them."""
        batch = self._episode_batch
        if batch is None or batch.status.item(0) != DECISION:
            return {"action": self._last_action}
        slots = self.interface.slots_of(self.simulation, batch.episodes["filled"].item(0))
        engine = self.simulation.arrays.status[0].deciding_engine if slots else None
        return {"action": self._last_action, "slots": slots, "engine": engine}

    def __deepcopy__(self, memo: dict[int, Any]) -> ServingEnv:
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        other.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        if self._episode_batch is not None:
            other.restore_state(self.clone_state())
        return other

    def __getstate__(self) -> dict[str, Any]:
        # An episode holds addresses of this process and is not pickled; a copy has to be reset.
        return {**self.__dict__, "_episode_batch": None}


def as_source(
    scenario: Scenario | Source, overrides: Mapping[str, Any] | None = None, kind: type | None = None
) -> Source:
    """Return a source of scenarios: one that always gives the same scenario, or the given source with overrides.

    A preset among the overrides stands for several fields; fields given beside it replace those of the preset. kind:
    the environment's class, whose arguments are among the names suggested for an unknown one. Raises EnvError for
    anything that is neither, and for overrides of a source that is not a `ServingSpec`; SpecError for unknown fields,
    and for a preset of another environment.
    """
    makers = (
        [inspect.signature(vars(one)["__init__"]) for one in kind.__mro__ if "__init__" in vars(one)] if kind else []
    )
    of_class = [name for one in makers for name, of in one.parameters.items() if of.kind == of.KEYWORD_ONLY]
    known = [*PARTS, *LEAVES, "preset", *of_class]
    if unknown := [name for name in overrides or () if name not in known]:
        raise SpecError(unknown_name("argument", unknown[0], known))
    if overrides and not isinstance(scenario, ServingSpec):
        raise EnvError(
            f"{', '.join(overrides)} with a scenario of type {type(scenario).__name__}; only fields of a ServingSpec "
            "can be changed"
        )
    if overrides and "preset" in overrides and kind is not None and (environment := registered_name(kind)):
        check_preset(overrides["preset"], environment)
    if isinstance(scenario, ServingSpec):
        return scenario.with_overrides(spelled_out(overrides)) if overrides else scenario
    if isinstance(scenario, Scenario):
        return Always(scenario)
    if not callable(scenario):
        raise EnvError(
            f"a scenario of type {type(scenario).__name__}; it should be a Scenario, or a function of a Generator"
        )
    return scenario


class Always:
    """A source that always gives the same scenario."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario

    def __call__(self, rng: np.random.Generator) -> Scenario:
        return self.scenario


def scenario_of(source: Source, options: dict[str, Any] | None, rng: np.random.Generator) -> Scenario:
    """Draw the scenario of the next episode. Raises EnvError for an unknown reset option."""
    if options:
        unknown = sorted(set(options) - {"scenario"})
        if unknown:
            raise EnvError(f"reset option {unknown[0]!r}; there is only 'scenario'")
        source = as_source(options["scenario"])
    return source(rng)


def check_options(observation: str, repeat: int, shaping: float, discount: float) -> None:
    """Raise EnvError for an option out of range."""
    if observation not in ("flat", "dict"):
        raise EnvError(f"observation {observation!r}: it should be 'flat' or 'dict'")
    if not (isinstance(repeat, int | np.integer) and repeat >= 1):
        raise EnvError(f"{repeat} decisions a step: it should be a whole number of 1 or more")
    numbers = is_number(shaping, False) and is_number(discount, False)
    if not (numbers and 0 <= shaping < np.inf and 0 <= discount <= 1):
        raise EnvError(f"shaping {shaping!r} with discount {discount!r}: they should be 0 or more, and 0 to 1")
