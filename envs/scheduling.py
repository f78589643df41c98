"""Scheduling-v0: an agent changes all of a batch: ranks, time budget, requests to give up, chunk size and victims."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np

from servegym.baselines.learned.scheduling import CONTROLS, LAYOUTS, NAMES, REQUESTS, SESSIONS, first_of_action, steered
from servegym.baselines.observations.engine import estimate
from servegym.baselines.observations.scheduling import observe_scheduling
from servegym.baselines.observations.sessions import observe_scheduling_sessions
from servegym.baselines.registry import scheduler as find_scheduler
from servegym.envs.env import ServingEnv, Source
from servegym.envs.episodes import act, is_agents, observe
from servegym.envs.interface import Interface, agent_pools_of
from servegym.envs.request_ranking import ask_base, check_slots, requests_in_slots, scores_in_words
from servegym.envs.vector import ServingVectorEnv
from servegym.errors import EnvError
from servegym.scenarios.presets import EPISODES
from servegym.simulator.batching.ranking import decider_of, scheduler_context_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.statuses import AT_BATCHES
from servegym.simulator.runs.parking import restore_run
from servegym.simulator.runs.simulation import Simulation


@observe
def show_scheduling(episode, observation, mask, base):
    """Write the state of the engine whose batch is about to be formed, and its requests with a positive worth."""
    run, _, functions = restore_run(episode.address)
    if not is_agents(episode, run.engines[run.status[0].deciding_engine]):
        return False
    ask_base(run, functions, episode, CONTROLS + episode.slots)
    e, status = run.status[0].deciding_engine, run.status[0]
    context = scheduler_context_of(run, decider_of(run, functions, e).estimator, e, status.now_s)
    constant_s = estimate(context, run.ranks)
    if episode.shows_sessions == 1:
        episode.filled, _ = observe_scheduling_sessions(
            context, run.ranks, constant_s, run.order[0], episode.slots, observation
        )
    else:
        episode.filled, _ = observe_scheduling(context, run.ranks, constant_s, run.order[0], episode.slots, observation)
    for k in range(base.shape[0]):
        base[k] = 0.0
    return True


@act
def steer(episode, action):
    """Write the action where the scheduler reads it, without the scores of empty slots."""
    run, _, _ = restore_run(episode.address)
    numbers = run.parameters[run.status[0].deciding_engine, episode.offset :]
    for k in range(CONTROLS + episode.filled):
        numbers[k] = action[k]


class Scheduling(Interface):
    """The whole decision before a batch: four controls, and scores of requests."""

    stop_at = AT_BATCHES
    observe = show_scheduling
    act = steer

    def __init__(self, scheduler: str | Policy, slots: int, sees: str = REQUESTS):
        check_slots(slots, least=0)
        if sees not in LAYOUTS:
            raise EnvError(f"sees={sees!r}: it should be one of {', '.join(map(repr, LAYOUTS))}")
        self.sees = sees
        self.scheduler = find_scheduler(scheduler) if isinstance(scheduler, str) else scheduler
        self.slots = slots
        self.steered = steered(self.scheduler, slots)
        self.layout = LAYOUTS[sees](slots)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (CONTROLS + slots,), np.float32)

    def prepare(self, scenario: Scenario) -> Scenario:
        return dataclasses.replace(scenario, scheduler=self.steered)

    def begin(self, simulation: Simulation, episode: np.record) -> None:
        episode.agent_pools = agent_pools_of(simulation)
        episode.slots, episode.offset = self.slots, first_of_action(self.scheduler)
        episode.shows_sessions = self.sees == SESSIONS

    def in_words(self, action: np.ndarray, simulation: Simulation, filled: int) -> str:
        parts = [f"{name} {number:+.2f}" for name, number in zip(NAMES, action[:CONTROLS], strict=True) if number]
        scores = scores_in_words(action[CONTROLS:], self.slots_of(simulation, filled))
        return ", ".join([*parts, scores] if scores else parts) or "the base's decision"

    def slots_of(self, simulation: Simulation, filled: int) -> list[int]:
        return requests_in_slots(simulation, filled)


class SchedulingEnv(ServingEnv):
    """
    ## Description
    One engine (or several) serves a stream of requests. Before each batch the agent changes everything that a base
    scheduler decides about it: the order of the requests, the time that the batch may take, the requests to give up,
    the largest chunk of a prompt, and the requests to evict first.

    ## Action Space
    `Box(-1, 1, (4 + slots,), float32)`; all zeros is the base scheduler.

    | number | meaning |
    |---|---|
    | 0 | time budget b: the base's, times (7/6)^b above 0, (9/5)^b below; 0.9 TPOT SLOs become 0.5 to 1.05 |
    | 1 | giving up g, above 0: requests with a worth below g are left out while another has at least g |
    | 2 | chunk c, above 0: a prompt gets at most 2^(-4c) of the tokens that fit the time budget |
    | 3 | victims v, above 0: among victims that the base ranks alike, those with a worth below v are evicted first |
    | 4 to 3 + slots | scores: s moves a request forward by s x `slots` places in the base's order |

    The *worth* of a request is its expected gain as a share of the gain that it can still get
    (docs/systems/expected_gain.md). Numbers 1 to 3 change nothing at 0 and below.

    ## Observation Space
    `Box(float32)`: the engine, then a slot for each of the requests that the base ranks first and that have a positive
    worth, prefills before decodes; docs/observations.md, `observe_scheduling`. Times are relative to SLOs and to the
    constant part of a batch, so that one agent can serve all devices. With `observation="dict"`, a Dict of the same
    numbers.

    ## Rewards
    The gain since the previous decision, divided by the episode's ideal gain, so that the rewards sum to the TDG ratio.

    ## Starting State
    The first request has just arrived.

    ## Episode End
    Terminated when all requests are served; truncated at the scenario's `until_s`.

    ## Arguments
    - `scenario`: a Scenario or a source of them (a `ServingSpec`; by default episodes of one engine).
    - `scheduler="expected-gain:steps=ignore"`: the base. It is called twice for each decision, so it must keep no
      numbers between calls, or declare `repeatable`.
    - `sees="scheduling"`: which observation; `"scheduling-sessions"` adds the session of each request
      (`observe_scheduling_sessions`).
    - `slots=32`: number of requests shown and scored; with 0 the action is the first four numbers.
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
        scheduler: str | Policy = "expected-gain:steps=ignore",
        slots: int = 32,
        sees: str = REQUESTS,
        **options: Any,
    ):
        super().__init__(Scheduling(scheduler, slots, sees), scenario or EPISODES, **options)


class SchedulingVectorEnv(ServingVectorEnv):
    """`num_envs` environments `SchedulingEnv`, stepped together."""

    env_class = SchedulingEnv
