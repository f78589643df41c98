"""RequestRanking-v0: an agent scores the requests of an engine before each batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np

from servegym.baselines.learned.ranking import first_score, scored
from servegym.baselines.observations.queue import observe_queue, queue_layout
from servegym.baselines.registry import scheduler as find_scheduler
from servegym.envs.env import ServingEnv, Source
from servegym.envs.episodes import act, is_agents, observe
from servegym.envs.interface import Interface, agent_pools_of
from servegym.envs.vector import ServingVectorEnv
from servegym.errors import EnvError
from servegym.scenarios.presets import EPISODES
from servegym.simulator.batching.ranking import decider_of, rank_queue, scheduler_context_of
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.statuses import AT_BATCHES
from servegym.simulator.runs.parking import restore_run
from servegym.simulator.runs.simulation import Simulation


@kernel
def ask_base(run, functions, episode, count):
    """Rank the queue of the deciding engine with the base scheduler. count: numbers in an action."""
    e, status = run.status[0].deciding_engine, run.status[0]
    numbers = run.parameters[e, episode.offset :]
    for k in range(count):
        numbers[k] = 0.0  # all zeros: the base's own ranks
    numbers[count] = 1.0  # the policy leaves no request out while this is 1
    rank_queue(run, decider_of(run, functions, e), e, status.now_s)
    numbers[count] = 0.0


@kernel
def show_slots(run, functions, episode, observation):
    """Rank the queue of the deciding engine with the base scheduler, and write the first requests into slots."""
    ask_base(run, functions, episode, episode.slots)
    e, status = run.status[0].deciding_engine, run.status[0]
    context = scheduler_context_of(run, decider_of(run, functions, e).estimator, e, status.now_s)
    episode.filled = observe_queue(context, run.ranks, run.order[0], episode.slots, observation)


@observe
def show_queue(episode, observation, mask, base):
    """Write the state of the engine whose batch is about to be formed, and its requests."""
    run, _, functions = restore_run(episode.address)
    if not is_agents(episode, run.engines[run.status[0].deciding_engine]):
        return False
    show_slots(run, functions, episode, observation)
    for k in range(episode.slots):
        base[k] = 0.0
    return True


@act
def set_scores(episode, action):
    """Write the scores of the slots where the scheduler reads them: after the base's numbers."""
    run, _, _ = restore_run(episode.address)
    e = run.status[0].deciding_engine
    for k in range(episode.filled):
        run.parameters[e, episode.offset + k] = action[k]


def check_slots(slots: int, least: int = 1) -> None:
    """Raise EnvError unless `slots` is a whole number from `least` to 1024."""
    if not (isinstance(slots, int) and least <= slots <= 1024):
        raise EnvError(f"slots={slots}: it should be a whole number, {least} to 1024")


class Slots(Interface):
    """Base class of interfaces that show the requests of an engine in slots."""

    stop_at = AT_BATCHES

    def __init__(self, scheduler: str | Policy, slots: int):
        check_slots(slots)
        self.scheduler = find_scheduler(scheduler) if isinstance(scheduler, str) else scheduler
        self.slots = slots
        self.scored = scored(self.scheduler, slots)
        self.layout = queue_layout(slots)

    def prepare(self, scenario: Scenario) -> Scenario:
        return dataclasses.replace(scenario, scheduler=self.scored)

    def begin(self, simulation: Simulation, episode: np.record) -> None:
        episode.agent_pools = agent_pools_of(simulation)
        episode.slots, episode.offset = self.slots, first_score(self.scheduler)

    def slots_of(self, simulation: Simulation, filled: int) -> list[int]:
        return requests_in_slots(simulation, filled)


MOST_SCORES = 4  # that an action's description names
BASE_ORDER = "the base's order"


def requests_in_slots(simulation: Simulation, filled: int) -> list[int]:
    """The request in each filled slot at the current decision."""
    arrays = simulation.arrays
    return arrays.queues[arrays.status[0].deciding_engine][arrays.order[0][:filled]].tolist()


def scores_in_words(scores: np.ndarray, requests: list[int]) -> str:
    """Describe the highest nonzero scores with their requests; empty if all are 0."""
    given = scores[: len(requests)]
    best = [k for k in np.argsort(-given, kind="stable")[:MOST_SCORES].tolist() if given[k] != 0]
    return ", ".join(f"request {requests[k]} {given[k]:+.2f}" for k in best)


class RequestRanking(Slots):
    """The decision before a batch as scores of requests."""

    observe = show_queue
    act = set_scores

    def __init__(self, scheduler: str | Policy, slots: int):
        super().__init__(scheduler, slots)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (slots,), np.float32)

    def in_words(self, action: np.ndarray, simulation: Simulation, filled: int) -> str:
        return scores_in_words(action, self.slots_of(simulation, filled)) or BASE_ORDER


class RequestRankingEnv(ServingEnv):
    """
    ## Description
    One engine (or several) serves a stream of requests. Before each batch the agent scores the requests, and the packer
    fills the batch in the order of the scores, within the limits of the base scheduler and of the KV memory.

    ## Action Space
    `Box(-1, 1, (slots,), float32)`: a score for each slot; higher scores run first, equal scores in the base's order.
    The scores permute the ranks of the requests in slots; other requests keep theirs. Scores of empty slots are
    ignored. All zeros is the base scheduler.

    ## Observation Space
    `Box(float32)`: the engine, then a slot for each of the requests that the base ranks first, prefills before decodes;
    docs/observations.md, `observe_queue`. The first number of a slot, `present`, is 1 if it holds a request. With
    `observation="dict"`, a Dict of the same numbers.

    ## Rewards
    The gain since the previous decision, divided by the episode's ideal gain, so that the rewards sum to the TDG ratio.

    ## Starting State
    The first request has just arrived.

    ## Episode End
    Terminated when all requests are served; truncated at the scenario's `until_s`.

    ## Arguments
    - `scenario`: a Scenario or a source of them (a `ServingSpec`; by default episodes of one engine).
    - `scheduler="slide-batching:steps=ignore"`: the base, which sets the limits of batches and ranks victims. It is
      called twice for each decision, so it must keep no numbers between calls, or declare `repeatable`.
    - `slots=32`: number of requests shown.
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
        slots: int = 32,
        **options: Any,
    ):
        super().__init__(RequestRanking(scheduler, slots), scenario or EPISODES, **options)


class RequestRankingVectorEnv(ServingVectorEnv):
    """`num_envs` environments `RequestRankingEnv`, stepped together."""

    env_class = RequestRankingEnv
