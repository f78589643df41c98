"""ClusterRouting-v0: an agent chooses the engine for each request."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from servegym.baselines.learned.routing import CACHES, LAYOUTS, QUEUES, SESSIONS, may_refuse, measure_of
from servegym.baselines.observations.caching import observe_caching, write_refusing
from servegym.baselines.observations.routing import observe_routing
from servegym.baselines.observations.sessions import observe_caching_sessions
from servegym.envs.env import ServingEnv, Source
from servegym.envs.episodes import act, observe
from servegym.envs.interface import Interface
from servegym.envs.vector import ServingVectorEnv
from servegym.errors import EnvError
from servegym.scenarios.presets import EPISODES
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.fleet.held_queues import router_context_of
from servegym.simulator.fleet.routing import takes
from servegym.simulator.inputs.cluster import cluster_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.statuses import AT_ROUTES
from servegym.simulator.records.types import HOLD, REFUSE, STAY
from servegym.simulator.runs.parking import restore_run
from servegym.simulator.runs.simulation import Simulation


@observe
def show_request(episode, observation, mask, base):
    """Write the request to be routed and the engines as the router knows them.

    Returns False, so that the agent is not asked, for a request that the base router holds, that is prefilled and has
    to be decoded elsewhere, or that the base refuses where the agent may not refuse.
    """
    run, router_state, _ = restore_run(episode.address)
    status, known, route = run.status[0], router_state.known, router_state.route[0]
    r = status.deciding_request
    refused = route.engine == REFUSE
    if route.engine == HOLD or (refused and episode.refuses == 0) or run.requests[r].computed_tokens > 0:
        return False
    context = router_context_of(run, router_state, status.now_s)
    if episode.shows_sessions == 1:
        observe_caching_sessions(context, r, route.engine, episode.slots, episode.offset, observation)
    elif episode.counts_cached == 1:
        observe_caching(context, r, route.engine, episode.slots, episode.offset, observation)
    else:
        observe_routing(context, r, route.engine, 0, episode.slots, observation)
    engines = episode.slots - episode.refuses
    for e in range(engines):
        mask[e] = e < known.snapshots.shape[0] and takes(known.snapshots[e], run.requests[r])
    if episode.refuses == 1:
        write_refusing(route.engine, episode.of_whole, episode.of_slot, engines, observation)
        mask[engines] = may_refuse(run.requests[r])
    base[0] = engines if refused else route.engine
    return True


@act
def route_request(episode, action):
    """Send the request to the engine of the action, or refuse it; an illegal action leaves the base router's choice."""
    run, router_state, _ = restore_run(episode.address)
    snapshots, route, e = router_state.known.snapshots, router_state.route[0], int(action[0])
    record = run.requests[run.status[0].deciding_request]
    if episode.refuses == 1 and e == episode.slots - 1:
        if may_refuse(record):
            route.engine, route.tier = REFUSE, STAY
    elif e != route.engine and 0 <= e < snapshots.shape[0] and takes(snapshots[e], record):
        route.engine, route.tier = e, STAY


class ClusterRouting(Interface):
    """The routing decision as the index of an engine; with `refuse`, one index more refuses the request."""

    stop_at = AT_ROUTES
    observe = show_request
    act = route_request

    def __init__(self, engines: int, sees: str = QUEUES, refuse: bool = False):
        if not (isinstance(engines, int) and 2 <= engines <= 4096):
            raise EnvError(f"engines={engines}: it should be a whole number, 2 to 4096")
        if sees not in LAYOUTS:
            raise EnvError(f"sees={sees!r}: it should be one of {', '.join(map(repr, LAYOUTS))}")
        if not isinstance(refuse, bool):
            raise EnvError(f"refuse={refuse!r}: it should be True or False")
        self.engines, self.choices = engines, engines + refuse
        self.sees, self.refuse = sees, refuse
        self.layout = LAYOUTS[sees](self.choices)
        self.action_space = gym.spaces.Discrete(self.choices)

    def prepare(self, scenario: Scenario) -> Scenario:
        engines = cluster_of(scenario.deployment).engines
        if not 2 <= engines <= self.engines:
            raise EnvError(f"a scenario of {engines} engines; this environment is made for 2 to {self.engines}")
        return scenario

    def begin(self, simulation: Simulation, episode: np.record) -> None:
        episode.slots, episode.counts_cached = self.choices, self.sees == CACHES
        episode.shows_sessions = self.sees == SESSIONS
        episode.refuses = self.refuse
        episode.of_whole, episode.of_slot = len(self.layout.whole_fields), len(self.layout.slot_fields)
        episode.offset = measure_of(simulation.settings.router)

    def in_words(self, action: np.ndarray, simulation: Simulation, filled: int) -> str:
        request = f"request {simulation.arrays.status[0].deciding_request}"
        return f"refuse {request}" if action[0] == self.engines else f"{request} to engine {action[0]:g}"


class ClusterRoutingEnv(ServingEnv):
    """
    ## Description
    Several engines serve a stream of requests. The agent chooses an engine for each request that arrives (or comes back
    from an engine that failed). It sees what a router knows: what it sent to which engine, and what the engines report,
    possibly with a delay.

    ## Action Space
    `Discrete(engines)`: the index of the engine. `info["action_mask"]` (and `action_masks()`) says which engines accept
    the request; if the agent chooses another, the base router's choice stands. With `refuse=True` it is
    `Discrete(engines + 1)`, and the last action refuses the request: neither it nor the later turns of its session are
    served. Refusing is masked once the request has its first token.

    ## Observation Space
    `Box(float32)`: the request, then a slot for each engine; docs/observations.md, `observe_caching` (v0:
    `observe_routing`, which counts all tokens of queued prompts, cached or not). The number `chosen` of a slot marks
    the base router's choice. With `refuse=True` the last slot is that of refusing. With `observation="dict"`, a Dict of
    the same numbers.

    ## Rewards
    The gain of all engines since the previous decision, divided by the episode's ideal gain, so that the rewards sum to
    the TDG ratio.

    ## Starting State
    The first request has just arrived.

    ## Episode End
    Terminated when all requests are served; truncated at the scenario's `until_s`.

    ## Arguments
    - `scenario`: a Scenario or a source of them; the default draws random ones on `engines` engines with the scheduler
      `vllm-v1`, under which the choice of the engine matters most, and the router `min-load`. The scenario's router is
      the base. The agent is not asked about a request that the base holds back.
    - `refuse=False`: whether the agent may refuse requests. If not, it is not asked about requests that the base
      refuses.
    - `sees="caching"`, in v0 `"routing"`: which observation; `"caching-sessions"` adds the session of the request
      (`observe_caching_sessions`).
    - `engines=4`: the most engines that a scenario may have; slots of engines that it lacks stay empty.
    - `observation`, `shaping`, `discount`, `render_mode`: as in every environment (docs/environments.md).
    - `trace`, `load`, `device`, `slo`, `requests`, ...: fields of `ServingSpec` (docs/spec.md) to change in the spec
      from which scenarios are drawn.

    ## Version History
    - v1: the observation counts the tokens that engines have cached, and shows their speed and what the base compared.
    - v0: initial version.
    """

    def __init__(
        self,
        scenario: Scenario | Source | None = None,
        *,
        engines: int = 4,
        sees: str = QUEUES,
        refuse: bool = False,
        **options: Any,
    ):
        super().__init__(ClusterRouting(engines, sees, refuse), scenario or random_clusters(engines), **options)


class ClusterRoutingVectorEnv(ServingVectorEnv):
    """`num_envs` environments `ClusterRoutingEnv`, stepped together."""

    env_class = ClusterRoutingEnv


def random_clusters(engines: int) -> ServingSpec:
    """Spec of random clusters with 100 requests an engine, as many as in an episode of one engine."""
    return EPISODES.replaced(engines=engines, router="min-load", scheduler="vllm-v1", requests=100.0 * engines)
