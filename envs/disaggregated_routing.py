"""DisaggregatedRouting-v0: an agent chooses the engine that prefills each request and the engine that decodes it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from servegym.baselines.observations.routing import observe_disaggregated, routing_layout
from servegym.envs.env import ServingEnv, Source
from servegym.envs.episodes import act, observe
from servegym.envs.interface import Interface
from servegym.envs.vector import ServingVectorEnv
from servegym.errors import EnvError
from servegym.scenarios.presets import EPISODES
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.fleet.held_queues import router_context_of
from servegym.simulator.fleet.routing import may_decode, takes
from servegym.simulator.inputs.cluster import cluster_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.statuses import AT_ROUTES
from servegym.simulator.records.types import STAY
from servegym.simulator.runs.parking import restore_run
from servegym.simulator.runs.simulation import Simulation


@observe
def show_request(episode, observation, mask, base):
    """Write the request to be prefilled and the engines as the router knows them.

    Returns False, so that the agent is not asked, for a request that is prefilled already, held or refused.
    """
    run, router_state, _ = restore_run(episode.address)
    status, known, route = run.status[0], router_state.known, router_state.route[0]
    r, prefill, decode = status.deciding_request, episode.offset, episode.slots - episode.offset
    if route.engine < 0 or run.requests[r].computed_tokens > 0:
        return False
    context = router_context_of(run, router_state, status.now_s)
    observe_disaggregated(context, r, route.engine, route.decode_engine, episode.slots, observation)
    for e in range(prefill):
        mask[e] = takes(known.snapshots[e], run.requests[r])
    for e in range(decode):
        mask[prefill + e] = may_decode(known.snapshots[prefill + e])
    mask[prefill + decode] = 1
    base[0] = route.engine
    base[1] = route.decode_engine - prefill if route.decode_engine >= 0 else decode
    return True


@act
def route_request(episode, action):
    """Set prefill and decode engine; if the agent's engine does not accept the request, the base's choice stands."""
    run, router_state, _ = restore_run(episode.address)
    snapshots, route = router_state.known.snapshots, router_state.route[0]
    prefill, decode = episode.offset, episode.slots - episode.offset
    e, d = int(action[0]), int(action[1])
    if e != route.engine and 0 <= e < prefill and takes(snapshots[e], run.requests[run.status[0].deciding_request]):
        route.engine, route.tier = e, STAY
    if d == decode:
        route.decode_engine = -1
    elif 0 <= d < decode and may_decode(snapshots[prefill + d]):
        route.decode_engine = prefill + d


class DisaggregatedRouting(Interface):
    """The routing decision as the index of a prefill engine and that of a decode engine."""

    stop_at = AT_ROUTES
    observe = show_request
    act = route_request

    def __init__(self, prefill: int, decode: int):
        for name, engines in (("prefill", prefill), ("decode", decode)):
            if not (isinstance(engines, int) and 1 <= engines <= 4096):
                raise EnvError(f"{name}={engines}: it should be a whole number of engines, 1 to 4096")
        self.prefill, self.decode = prefill, decode
        self.choices = prefill + decode + 1
        self.layout = routing_layout(prefill + decode)
        self.action_space = gym.spaces.MultiDiscrete([prefill, decode + 1])

    def prepare(self, scenario: Scenario) -> Scenario:
        pools = cluster_of(scenario.deployment).pools
        if any(pool.role_change_s is not None for pool in pools):
            raise EnvError("a scenario with role_change_s; this environment is made for engines that keep their roles")
        roles = [pool.role for pool in pools for _ in range(pool.engines)]
        if roles != ["prefill"] * self.prefill + ["decode"] * self.decode:
            raise EnvError(
                f"a scenario with engines {', '.join(roles)}; this environment is made for {self.prefill} prefill "
                f"engines and after them {self.decode} decode engines"
            )
        return scenario

    def begin(self, simulation: Simulation, episode: np.record) -> None:
        episode.slots, episode.offset = self.prefill + self.decode, self.prefill

    def in_words(self, action: np.ndarray, simulation: Simulation, filled: int) -> str:
        request, (e, d) = simulation.arrays.status[0].deciding_request, action.astype(int)
        then = f"then to {self.prefill + d}" if d < self.decode else "then where the base router says"
        return f"request {request} to engine {e}, {then}"


class DisaggregatedRoutingEnv(ServingEnv):
    """
    ## Description
    Some engines only prefill, others only decode; the KV of a request is transferred from one to the other. For each
    request that arrives (or comes back from an engine that failed) the agent chooses the engine that prefills it and
    the engine that decodes it.

    ## Action Space
    `MultiDiscrete([prefill, decode + 1])`: the prefill engine, and the decode engine counted from 0; the last choice
    leaves the decode engine to the base router, which is asked when the request has been prefilled.
    `info["action_mask"]` is a tuple of the two masks, as `action_space.sample(mask=...)` takes it; `action_masks()` and
    vectors concatenate them. If the agent chooses an engine that does not accept the request, the base router's choice
    stands.

    ## Observation Space
    `Box(float32)`: the request, then a slot for each engine, prefill engines first; docs/observations.md,
    `observe_routing`. For a decode engine `takes` and `chosen` refer to the decoding of the request. With
    `observation="dict"`, a Dict of the same numbers.

    ## Rewards
    The gain of all engines since the previous decision, divided by the episode's ideal gain, so that the rewards sum to
    the TDG ratio.

    ## Starting State
    The first request has just arrived.

    ## Episode End
    Terminated when all requests are served; truncated at the scenario's `until_s`.

    ## Arguments
    - `scenario`: a Scenario or a source of them; the default draws random ones with `vllm-v1` as scheduler under
      `gorouting`. Its router is the base.
    - `prefill=2`, `decode=2`: engines of each kind.
    - `observation`, `shaping`, `discount`, `render_mode`: as in every environment (docs/environments.md).
    - `trace`, `load`, `device`, `slo`, `requests`, ...: fields of `ServingSpec` (docs/spec.md) to change in the spec
      from which scenarios are drawn.

    ## Version History
    - v0: initial version.
    """

    def __init__(self, scenario: Scenario | Source | None = None, *, prefill: int = 2, decode: int = 2, **options: Any):
        super().__init__(DisaggregatedRouting(prefill, decode), scenario or random_clusters(prefill, decode), **options)


class DisaggregatedRoutingVectorEnv(ServingVectorEnv):
    """`num_envs` environments `DisaggregatedRoutingEnv`, stepped together."""

    env_class = DisaggregatedRoutingEnv


def random_clusters(prefill: int, decode: int) -> ServingSpec:
    """Spec of random clusters with 100 requests an engine."""
    return EPISODES.replaced(
        prefill=prefill, decode=decode, router="gorouting", scheduler="vllm-v1", requests=100.0 * (prefill + decode)
    )
