"""Scheduling-v0: an agent says everything about a batch: ranks, time budget, what to give up, chunks and victims."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np

from servegym.baselines.learned.scheduling import (
    CONTROLS,
    LAYOUTS,
    NAMES,
    REQUESTS,
    SESSIONS,
    first_of_action,
    steered,
)
from servegym.baselines.observations.engine import estimate
from servegym.baselines.observations.scheduling import observe_scheduling
from servegym.baselines.observations.sessions import observe_scheduling_sessions
from servegym.baselines.registry import scheduler as find_scheduler
from servegym.envs.env import ServingEnv, Source
from servegym.envs.episodes import act, is_agents, observe
from servegym.envs.interface import Interface, kinds_of
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
    """The engine whose batch is about to be formed, and its requests that are worth something."""
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
    """Where the scheduler looks for the action; scores of empty slots are none."""
    run, _, _ = restore_run(episode.address)
    numbers = run.parameters[run.status[0].deciding_engine, episode.offset :]
    for k in range(CONTROLS + episode.filled):
        numbers[k] = action[k]


class Scheduling(Interface):
    """The decision before a batch, all of it."""

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
        episode.kinds = kinds_of(simulation)
        episode.slots, episode.offset = self.slots, first_of_action(self.scheduler)
        episode.shows_sessions = self.sees == SESSIONS

    def in_words(self, action: np.ndarray, simulation: Simulation, filled: int) -> str:
        said = [f"{name} {number:+.2f}" for name, number in zip(NAMES, action[:CONTROLS], strict=True) if number]
        scores = scores_in_words(action[CONTROLS:], self.slots_of(simulation, filled))
        return ", ".join([*said, scores] if scores else said) or "as the base says"

    def slots_of(self, simulation: Simulation, filled: int) -> list[int]:
        return requests_in_slots(simulation, filled)


class SchedulingEnv(ServingEnv):
    """
    ## Description
    One engine (or several) serves a stream of requests. Before each batch the agent changes all that a base
    scheduler decides about it: the order of the requests, how long the batch may take, which requests are given up, how
    much of one prompt goes into it, and which requests lose their memory first.

    ## Action Space
    `Box(-1, 1, (4 + slots,), float32)`; all zeros is the base scheduler.

    | number | says |
    |---|---|
    | 0 | time budget b: the base's, times (7/6)^b above 0, (9/5)^b below; 0.9 TPOT SLOs become 0.5 to 1.05 |
    | 1 | giving up g, above 0: requests worth less than g are left out while another is worth at least g |
    | 2 | chunk c, above 0: a prompt gets at most 2^(-4c) of the tokens that fit the time budget |
    | 3 | victims v, above 0: of those that the base would evict alike, requests worth less than v go first |
    | 4 to 3 + slots | scores: s moves a request forward by s x `slots` places in the base's order |

    What a request is *worth* is the share of what it could still gain that can be expected in time
    (docs/systems/expected_gain.md). At 0 and below numbers 1 to 3 change nothing.

    ## Observation Space
    `Box(float32)`: the engine, then a slot for each of the requests that the base ranks first and that are worth
    something, prefills before decodes; docs/observations.md, `observe_scheduling`. Times are
    relative to SLOs and to the constant part of a batch, so that one agent can serve all devices. With
    `observation="dict"` a Dict of the same.

    ## Rewards
    What the batch before gained, as a share of the episode's ideal gain: they sum to the TDG ratio.

    ## Starting State
    The first request has just arrived.

    ## Episode End
    Terminated when all requests are served; truncated at the scenario's `until_s`.

    ## Arguments
    - `scenario`: a Scenario or a source of them (a `ServingSpec`; by default episodes of one engine).
    - `scheduler="expected-gain:steps=ignore"`: the base. It is asked twice in a decision, so it must keep no numbers
      of its own, or declare `repeatable`.
    - `sees="scheduling"`: which observation; `"scheduling-sessions"` shows the session of each request too
      (`observe_scheduling_sessions`).
    - `slots=32`: requests shown and scored; 0: none, and the action is the four numbers of the whole.
    - `observation`, `shaping`, `discount`, `render_mode`: as in every environment (docs/environments.md).
    - `trace`, `load`, `device`, `slo`, `requests`, ...: what random scenarios are to draw instead, the fields of
      `ServingSpec` (docs/spec.md).

    ## Version History
    - v0: the first.
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
    """`num_envs` of `SchedulingEnv`."""

    def __init__(
        self,
        num_envs: int,
        scenario: Scenario | Source | None = None,
        *,
        scheduler: str | Policy = "expected-gain:steps=ignore",
        slots: int = 32,
        sees: str = REQUESTS,
        **options: Any,
    ):
        super().__init__(Scheduling(scheduler, slots, sees), scenario or EPISODES, num_envs, **options)
