"""PrefillPreemption-v0: an agent says which prompt runs, at each arrival and completion."""

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
    """The requests of an engine that prefills; batches of others are not the agent's."""
    run, _, functions = restore_run(episode.address)
    engine = run.engines[run.status[0].deciding_engine]
    if engine.role == ROLE_DECODE or not is_agents(episode, engine):
        return False
    show_slots(run, functions, episode, observation)
    for k in range(episode.slots):
        mask[k] = k < max(1, episode.filled)
    base[0] = 0.0  # slots are in the base's order
    return True


@act
def put_first(episode, action):
    """The request of that slot goes before the others, which keep the base's order."""
    run, _, _ = restore_run(episode.address)
    k = int(action[0])
    if 0 <= k < episode.filled:
        run.parameters[run.status[0].deciding_engine, episode.offset + k] = 1.0


class PrefillPreemption(Slots):
    """The decision of a scheduling round, as the slot of a request."""

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
    An engine prefills prompts one batch after another, and a batch can be suspended at the end of an operator (a
    step of a layer). When a request arrives and when a batch is done (a *round*) the agent says which request goes
    first. If another batch is running, it is suspended at the end of its operator, and later goes on where it stopped.

    ## Action Space
    `Discrete(slots)`: the slot of the request that goes first. `info["action_mask"]` (and `action_masks()`) says
    which slots hold one; if the agent names an empty one, the base scheduler's choice stands. Slots are in the base's
    order: 0 is the base.

    ## Observation Space
    `Box(float32)`: the engine, then a slot for each of the requests that the base ranks first; docs/observations.md,
    `observe_queue`. With `observation="dict"` a Dict of the same.

    ## Rewards
    What all engines gained since the round before, as a share of the episode's ideal gain: they sum to the TDG ratio.

    ## Starting State
    The first request has just arrived.

    ## Episode End
    Terminated when all requests are served; truncated at the scenario's `until_s`.

    ## Arguments
    - `scenario`: a Scenario or a source of them; the default draws random ones with an engine that prefills and one
      that decodes.
    - `scheduler="flow-prefill"`: the base. `slots=16`: requests shown.
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
        scheduler: str | Policy = "flow-prefill",
        slots: int = 16,
        **options: Any,
    ):
        super().__init__(PrefillPreemption(scheduler, slots), scenario or random_prefills(), **options)


class PrefillPreemptionVectorEnv(ServingVectorEnv):
    """`num_envs` of `PrefillPreemptionEnv`."""

    def __init__(
        self,
        num_envs: int,
        scenario: Scenario | Source | None = None,
        *,
        scheduler: str | Policy = "flow-prefill",
        slots: int = 16,
        **options: Any,
    ):
        super().__init__(PrefillPreemption(scheduler, slots), scenario or random_prefills(), num_envs, **options)


def random_prefills() -> ServingSpec:
    return EPISODES.replaced(prefill=1, decode=1, router="min-load")
