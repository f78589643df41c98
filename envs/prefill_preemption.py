"""PrefillPreemption-v0: an agent chooses which prompt runs, at each arrival and at each end of a batch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from servegym.envs.env import ServingEnv, Source
from servegym.envs.episodes import act, is_agents, observe
from servegym.envs.request_ranking import BASE_ORDER, Slots, show_slots
from servegym.envs.vector import ServingVectorEnv
from servegym.scenarios.presets import EPISODES
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.types import ROLE_DECODE
from servegym.simulator.runs.parking import restore_run
from servegym.simulator.runs.simulation import Simulation


@observe
def show_prompts(episode, observation, mask, base):
    """Write the requests of an engine that prefills. Returns False where the agent does not decide the batches."""
    run, _, functions = restore_run(episode.address)
    engine = run.engines[run.status[0].deciding_engine]
    if engine.role == ROLE_DECODE or not is_agents(episode, engine):
        return False
    show_slots(run, functions, episode, observation)
    for k in range(episode.slots):
        mask[k] = k < max(1, episode.filled)
    base[0] = 0.0  # slot 0 holds the request that the base ranks first
    return True


@act
def put_first(episode, action):
    """Rank the request of the chosen slot first; the others keep the base's order."""
    run, _, _ = restore_run(episode.address)
    k = int(action[0])
    if 0 <= k < episode.filled:
        run.parameters[run.status[0].deciding_engine, episode.offset + k] = 1.0


class PrefillPreemption(Slots):
    """The decision of a scheduling round as the slot of a request."""

    observe = show_prompts
    act = put_first

    def __init__(self, scheduler: str | Policy, slots: int):
        super().__init__(scheduler, slots)
        self.choices = slots
        self.action_space = gym.spaces.Discrete(slots)

    def in_words(self, action: np.ndarray, simulation: Simulation, filled: int) -> str:
        requests, k = self.slots_of(simulation, filled), int(action[0])
        return f"request {requests[k]} first" if k < filled else BASE_ORDER


class PrefillPreemptionEnv(ServingEnv):
    """
    ## Description
    An engine prefills prompts one batch after another, and a batch can be suspended at the end of an operator (a step
    of a layer). At each *round*, when a request arrives or a batch ends, the agent chooses the request that goes first.
    If the running batch does not have it, that batch is suspended at the end of its operator and resumed later.

    ## Action Space
    `Discrete(slots)`: the slot of the request that goes first. `info["action_mask"]` (and `action_masks()`) says which
    slots hold a request; if the agent chooses an empty slot, the base scheduler's choice stands. Slots are in the
    base's order, so 0 is the base's choice.

    ## Observation Space
    `Box(float32)`: the engine, then a slot for each of the requests that the base ranks first; docs/observations.md,
    `observe_queue`. With `observation="dict"`, a Dict of the same numbers.

    ## Rewards
    The gain of all engines since the previous round, divided by the episode's ideal gain, so that the rewards sum to
    the TDG ratio.

    ## Starting State
    The first request has just arrived.

    ## Episode End
    Terminated when all requests are served; truncated at the scenario's `until_s`.

    ## Arguments
    - `scenario`: a Scenario or a source of them; the default draws random ones with an engine that prefills and one
      that decodes.
    - `scheduler="flow-prefill"`: the base. `slots=16`: number of requests shown.
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
        scheduler: str | Policy = "flow-prefill",
        slots: int = 16,
        **options: Any,
    ):
        super().__init__(PrefillPreemption(scheduler, slots), scenario or random_prefills(), **options)


class PrefillPreemptionVectorEnv(ServingVectorEnv):
    """`num_envs` environments `PrefillPreemptionEnv`, stepped together."""

    env_class = PrefillPreemptionEnv


def random_prefills() -> ServingSpec:
    """Spec of random scenarios with one prefill engine and one decode engine."""
    return EPISODES.replaced(prefill=1, decode=1, router="min-load")
