"""A PettingZoo environment in which the router of a cluster and the schedulers of its engines act together."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from pettingzoo import ParallelEnv

from servegym.baselines.observations.engine import engine_layout
from servegym.baselines.observations.fields import Layout
from servegym.envs.cluster_routing import ClusterRouting, random_clusters, route_request, show_request
from servegym.envs.engine_batching import EngineBatching, set_controls, show_engine
from servegym.envs.env import ServingEnv, Source, as_source, check_options, scenario_of
from servegym.envs.episode_batch import EpisodeBatch
from servegym.envs.episodes import act, observe
from servegym.envs.interface import NUMBERS, Interface
from servegym.envs.summaries import summary_of
from servegym.errors import ActionError, EnvError
from servegym.simulator.compilation.kernels import kernel, specialised
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.statuses import AT_BATCHES, AT_ROUTES, DECISION, DONE, PAUSED
from servegym.simulator.runs.parking import restore_run
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation

ROUTER = "router"
ENGINE_NUMBERS = engine_layout().size  # an observation begins with the engine's numbers; the router's follow


@kernel
def show_route(episode, observation, mask, base):
    """Placeholder for the router's `observe`."""


@kernel
def show_batch(episode, observation, mask, base):
    """Placeholder for the scheduler's `observe`."""


@kernel
def set_route(episode, action):
    """Placeholder for the router's `act`."""


@kernel
def set_batch(episode, action):
    """Placeholder for the scheduler's `act`."""


@observe
def show_decider(episode, observation, mask, base):
    """Write what the router, or the engine that decides, sees: its part of the observation and of the base action."""
    run, _, _ = restore_run(episode.address)
    if run.status[0].deciding_request >= 0:
        return show_route(episode, observation[ENGINE_NUMBERS:], mask, base[:1])
    return show_batch(episode, observation[:ENGINE_NUMBERS], mask, base[1:])


@act
def act_for_decider(episode, action):
    """Apply the router's part of an action, or the engine's, whichever decides."""
    run, _, _ = restore_run(episode.address)
    if run.status[0].deciding_request >= 0:
        set_route(episode, action[:1])
    else:
        set_batch(episode, action[1:])


class Together(Interface):
    """Decisions of the router and decisions before batches in one episode."""

    stop_at = AT_ROUTES | AT_BATCHES
    observe = specialised(show_decider, show_route=show_request, show_batch=show_engine)
    act = specialised(act_for_decider, set_route=route_request, set_batch=set_controls)

    def __init__(self, routing: ClusterRouting, batching: EngineBatching):
        self.routing, self.batching = routing, batching
        self.choices = routing.choices
        fields = tuple(field for part in (batching, routing) for _, field in part.layout)
        self.layout = Layout("decider", fields)
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (1 + batching.action_numbers,), np.float64)

    @property
    def action_bounds(self) -> np.ndarray:
        return np.concatenate([self.routing.action_bounds, self.batching.action_bounds])

    def prepare(self, scenario: Scenario) -> Scenario:
        return self.batching.prepare(self.routing.prepare(scenario))

    def begin(self, simulation: Simulation, episode: np.record) -> None:
        self.routing.begin(simulation, episode)
        self.batching.begin(simulation, episode)


class ServingParallelEnv(ParallelEnv):
    """
    ## Description
    Several engines serve a stream of requests. The agent `router` chooses the engine for each request, as in
    `ClusterRouting-v0`; the agents `engine_0`, `engine_1`, ... set the parameters of their engine's scheduler before
    each of its batches, as in `EngineBatching-v0`.

    ## Action Space
    `router`: `Discrete(engines)`, with a mask in its info. `engine_...`: `Box(-1, 1, (controls,), float32)`.
    A step goes to the next decision of any agent, so one agent decides at each step: the one whose info has `deciding`
    True. PettingZoo has all agents act at each step; actions of the others are not used and may be left out.

    ## Observation Space
    As in those two environments: docs/observations.md, `observe_routing` and `observe_engine`. An agent that does not
    decide gets the observation of its last decision again; before its first decision, zeros.

    ## Rewards
    The same for all agents: the gain of all engines since the previous decision, divided by the episode's ideal gain,
    so that the rewards sum to the TDG ratio.

    ## Starting State
    The first request has just arrived, and the router decides.

    ## Episode End
    Terminated, for all agents, when all requests are served; truncated at the scenario's `until_s`.

    ## Arguments
    - `scenario`: a Scenario or a source of them, as in `ClusterRouting-v0`; `reset(options={"scenario": ...})` sets it
      for one episode.
    - `engines=4`: the most engines that a scenario may have. Agents of engines that it lacks never decide.
    - `scheduler`, `controls`: as in `EngineBatching-v0`.
    - `shaping`, `discount`, `render_mode`: as in every environment (docs/environments.md).
    - `trace`, `load`, `device`, `slo`, `requests`, ...: fields of `ServingSpec` (docs/spec.md) to change in the spec
      from which scenarios are drawn.

    info of each agent: deciding; base_action, which leaves the base policy's decision as it is; action_mask of the
    router (all ones while it does not decide); now_s, gain, tdg_ratio and reward_terms as in every environment.

    ## Version History
    - v0: initial version.
    """

    metadata: ClassVar[dict[str, Any]] = {**ServingEnv.metadata, "name": "serving_v0"}

    def __init__(
        self,
        scenario: Scenario | Source | None = None,
        *,
        engines: int = 4,
        scheduler: str | Policy = "slide-batching:steps=ignore",
        controls: str | tuple[str, ...] | None = None,
        shaping: float = 0.0,
        discount: float = 1.0,
        render_mode: str | None = None,
        **overrides: Any,
    ):
        check_options("flat", 1, shaping, discount)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise EnvError(f"render_mode {render_mode!r}: it should be None, 'ansi' or 'rgb_array'")
        routing, batching = ClusterRouting(engines), EngineBatching(scheduler, controls)
        self.interface = Together(routing, batching)
        self.source = as_source(scenario or random_clusters(engines), overrides, type(self))
        self.render_mode = render_mode
        self.possible_agents = [ROUTER, *(f"engine_{e}" for e in range(engines))]
        self.agents: list[str] = []
        parts: dict[str, Interface] = {**dict.fromkeys(self.possible_agents, batching), ROUTER: routing}
        self.observation_spaces = {agent: part.observation_space for agent, part in parts.items()}
        # Each agent has its own copy of the space, so that seeding one does not seed the others.
        self.action_spaces = {agent: copy.deepcopy(part.action_space) for agent, part in parts.items()}
        self.episode_options: dict[str, Any] = {"shaping": shaping, "discount": discount}
        self._rng: np.random.Generator | None = None
        self._episode_batch: EpisodeBatch | None = None
        self._last_action = ""  # in words, for pictures

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

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

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Begin an episode. Options other than `scenario` are ignored."""
        if seed is not None or self._rng is None:
            self._rng = gym.utils.seeding.np_random(seed)[0]
        if self._episode_batch is None:
            self._episode_batch = EpisodeBatch(self.interface, 1, **self.episode_options)
        options = {"scenario": options["scenario"]} if options and "scenario" in options else None
        self._episode_batch.start(0, scenario_of(self.source, options, self._rng))
        self._last_action = ""
        self.agents = list(self.possible_agents)
        self._seen = {agent: np.zeros(space.shape, "f4") for agent, space in self.observation_spaces.items()}
        return self._observations(), self._infos()

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, np.ndarray], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
    ]:  # fmt: skip
        batch = self._episode_batch
        if batch is None or not self.agents:
            raise gym.error.ResetNeeded("the episode is over, or has not begun: call reset()")
        unknown = sorted(set(actions) - set(self.possible_agents))
        if unknown:
            raise ActionError(f"an action of {unknown[0]!r}; the agents are {', '.join(self.possible_agents)}")
        decider = self.decider
        if decider is not None:
            numbers, shape = np.asarray(actions.get(decider)), self.action_spaces[decider].shape
            if decider not in actions or numbers.shape != shape:
                found = f"an action of shape {numbers.shape}" if decider in actions else "no action"
                raise ActionError(f"{found} of {decider}, which decides; it should be of shape {shape}")
            part = self.interface.routing if decider == ROUTER else self.interface.batching
            if numbers.dtype.kind not in NUMBERS or not part.contains(np.atleast_1d(numbers)):
                raise ActionError(
                    f"action {actions[decider]!r} of {decider}: it should be in {self.action_spaces[decider]}"
                )
            batch.actions[0] = 0.0
            batch.actions[0, part_of(decider)] = numbers
            if self.render_mode is not None:
                self._last_action = f"{decider}: {part.in_words(np.atleast_1d(numbers), self.simulation, 0)}"
        batch.step()
        status = batch.status.item(0)
        observations, infos = self._observations(), self._infos()
        if status != DECISION:
            summary = summary_of(self.simulation)
            for info in infos.values():
                info["summary"] = summary
        rewards = dict.fromkeys(self.agents, batch.reward.item(0))
        terminated, truncated = (dict.fromkeys(self.agents, status == end) for end in (DONE, PAUSED))
        if status != DECISION:
            self.agents = []
        return observations, rewards, terminated, truncated, infos

    @property
    def decider(self) -> str | None:
        """The agent that decides now; None when the episode is over."""
        batch = self._episode_batch
        if batch is None or batch.status.item(0) != DECISION:
            return None
        status = self.simulation.arrays.status[0]
        return ROUTER if status.deciding_request >= 0 else f"engine_{status.deciding_engine}"

    def _observations(self) -> dict[str, np.ndarray]:
        assert self._episode_batch is not None
        numbers, decider = self._episode_batch.observations[0], self.decider
        if decider is not None:
            self._seen[decider] = (numbers[ENGINE_NUMBERS:] if decider == ROUTER else numbers[:ENGINE_NUMBERS]).copy()
        elif self._episode_batch.status.item(0) == DONE:
            self._seen = {agent: np.zeros_like(seen) for agent, seen in self._seen.items()}
        return {agent: seen.copy() for agent, seen in self._seen.items()}

    def _infos(self) -> dict[str, dict[str, Any]]:
        batch, decider = self._episode_batch, self.decider
        assert batch is not None
        infos: dict[str, dict[str, Any]] = {}
        for agent, space in self.action_spaces.items():
            infos[agent] = {
                "deciding": agent == decider,
                "base_action": np.zeros(space.shape, space.dtype),
                **batch.info_of(0),
            }
        infos[ROUTER]["action_mask"] = np.ones(self.interface.choices, "i1")
        if decider == ROUTER:
            infos[ROUTER]["base_action"] = self.interface.routing.as_actions(batch.bases[0, part_of(ROUTER)])
            infos[ROUTER]["action_mask"] = batch.masks[0].copy()
        return infos

    def render(self) -> Any:
        if self.render_mode is None:
            raise EnvError("render_mode is None; make the environment with 'ansi' or 'rgb_array'")
        from servegym.envs import rendering

        return getattr(rendering, self.render_mode)(self.simulation, action=self._last_action)

    def close(self) -> None:
        self.agents = []
        self._episode_batch = None

    def __getstate__(self) -> dict[str, Any]:
        # An episode holds addresses of this process and is not pickled; a copy has to be reset.
        return {**self.__dict__, "_episode_batch": None, "agents": []}


def part_of(agent: str) -> slice:
    """Slice of an agent's numbers in the joint action: the router's first, then those of the engine that decides."""
    return slice(0, 1) if agent == ROUTER else slice(1, None)
