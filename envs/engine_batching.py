"""EngineBatching-v0: an agent sets the parameters of an engine's scheduler before each batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np

from servegym.baselines.learned.controller import control_table, default_controls, set_parameters
from servegym.baselines.observations.engine import engine_layout, observe_engine
from servegym.baselines.registry import scheduler as find_scheduler
from servegym.envs.env import ServingEnv, Source
from servegym.envs.episodes import act, is_agents, observe
from servegym.envs.interface import Interface, agent_pools_of
from servegym.envs.vector import ServingVectorEnv
from servegym.errors import EnvError
from servegym.scenarios.presets import EPISODES
from servegym.simulator.batching.ranking import decider_of, scheduler_context_of
from servegym.simulator.compilation.rows import in_rows
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.statuses import AT_BATCHES
from servegym.simulator.runs.parking import restore_run
from servegym.simulator.runs.simulation import Simulation


@observe
def show_engine(episode, observation, mask, base):
    """Write the state of the engine whose batch is about to be formed."""
    run, _, functions = restore_run(episode.address)
    e, status = run.status[0].deciding_engine, run.status[0]
    if not is_agents(episode, run.engines[e]):
        return False
    context = scheduler_context_of(run, decider_of(run, functions, e).estimator, e, status.now_s)
    observe_engine(context, run.ranks, observation)
    for k in range(base.shape[0]):
        base[k] = 0.0
    return True


@act
def set_controls(episode, action):
    """Set the scheduler's parameters. An engine's row holds them, then their defaults, then the table of controls."""
    run, _, _ = restore_run(episode.address)
    row, b, k = run.parameters[run.status[0].deciding_engine], episode.offset, episode.controls
    set_parameters(row[b : 2 * b], in_rows(row[2 * b : 2 * b + 4 * k], 4), action, row[:b])


class EngineBatching(Interface):
    """The decision before a batch as the parameters of a base scheduler."""

    stop_at = AT_BATCHES
    observe = show_engine
    act = set_controls

    def __init__(self, scheduler: str | Policy, controls: str | tuple[str, ...] | None = None):
        self.scheduler = find_scheduler(scheduler) if isinstance(scheduler, str) else scheduler
        self.controls = default_controls(self.scheduler) if controls is None else names_of(controls)
        self.table = control_table(self.scheduler, self.controls)
        self.layout = engine_layout()
        self.action_space = gym.spaces.Box(-1.0, 1.0, (len(self.controls),), np.float32)

    def prepare(self, scenario: Scenario) -> Scenario:
        return dataclasses.replace(scenario, scheduler=self.scheduler)

    def begin(self, simulation: Simulation, episode: np.record) -> None:
        defaults = simulation.settings.parameters
        table = np.tile(self.table.ravel(), (len(defaults), 1))
        simulation.arrays = simulation.arrays._replace(parameters=np.hstack([defaults, defaults, table]))
        episode.agent_pools = agent_pools_of(simulation)
        episode.offset, episode.controls = defaults.shape[1], len(self.controls)

    def in_words(self, action: np.ndarray, simulation: Simulation, filled: int) -> str:
        return ", ".join(f"{name} {number:+.2f}" for name, number in zip(self.controls, action, strict=True))


def names_of(controls: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of parameters as a tuple, also of one. Raises EnvError for anything else."""
    names = (controls,) if isinstance(controls, str) else controls
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise EnvError(f"controls is {controls!r}; it should be the name of a parameter, or several")
    return tuple(names)


class EngineBatchingEnv(ServingEnv):
    """
    ## Description
    One engine (or several) serves a stream of requests under a base scheduler. Before each batch the agent sets the
    scheduler's parameters: for `slide-batching` how many requests count as urgent (gamma) and how long a batch may take
    (eta). The scheduler ranks the requests and the packer fills the batch, so no action leaves the engine idle.

    ## Action Space
    `Box(-1, 1, (controls,), float32)`. Number i sets parameter `controls[i]` of the engine that decides until its next
    decision: 0 is its default, 1 its high bound, -1 its low bound; between them it is interpolated geometrically for
    parameters with a logarithmic scale and linearly for others. All zeros is the base scheduler.

    ## Observation Space
    `Box(float32)`: the engine, its queue and its deadlines; docs/observations.md, `observe_engine`. With
    `observation="dict"`, a Dict of the same numbers.

    ## Rewards
    The gain since the previous decision, divided by the episode's ideal gain, so that the rewards sum to the TDG ratio.

    ## Starting State
    The first request has just arrived.

    ## Episode End
    Terminated when all requests are served; truncated at the scenario's `until_s`.

    ## Arguments
    - `scenario`: a Scenario or a source of them (a `ServingSpec`; by default episodes of one engine).
    - `scheduler="slide-batching:steps=ignore"`: the base, "name:key=value,...". `controls`: names of the parameters to
      set; None: all numbers that have two bounds.
    - `batches_per_step=1`: batches for which an action holds.
    - `observation`, `shaping`, `discount`, `render_mode`: as in every environment (docs/environments.md).
    - `trace`, `load`, `device`, `slo`, `requests`, ...: fields of `ServingSpec` (docs/spec.md) to change in the spec
      from which scenarios are drawn.

    ## Version History
    - v0: initial version.
    """

    def __init__(
        self,
        scenario: Scenario | Source | None = None,
        *,
        scheduler: str | Policy = "slide-batching:steps=ignore",
        controls: str | tuple[str, ...] | None = None,
        batches_per_step: int = 1,
        **options: Any,
    ):
        super().__init__(EngineBatching(scheduler, controls), scenario or EPISODES, repeat=batches_per_step, **options)


class EngineBatchingVectorEnv(ServingVectorEnv):
    """`num_envs` environments `EngineBatchingEnv`, stepped together."""

    env_class = EngineBatchingEnv
