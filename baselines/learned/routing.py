"""Routing: a network scores the engines for a request; the base router's choice wins ties.

The decode engine of a request, and whether and where it is held or refused, remain the base's decision.
"""

from __future__ import annotations

import numpy as np

from servegym.baselines.learned.derived import LearnedPolicy, check_base, check_network, derived, half
from servegym.baselines.learned.forward import SLOTS, forward
from servegym.baselines.learned.memory import split, split_network
from servegym.baselines.learned.network import Network
from servegym.baselines.observations.caching import caching_layout, observe_caching
from servegym.baselines.observations.routing import observe_routing, routing_layout
from servegym.baselines.observations.sessions import caching_sessions_layout, observe_caching_sessions
from servegym.policy import STAY, Policy, kernel, router, specialised, takes

QUEUES, CACHES, SESSIONS = "routing", "caching", "caching-sessions"
# What a learned router can see.
LAYOUTS = {QUEUES: routing_layout, CACHES: caching_layout, SESSIONS: caching_sessions_layout}


@kernel
def best_engine(snapshots, record, chosen, scores):
    """Return the engine with the highest score among those that take the request; ties: `chosen`, then the first."""
    best = chosen
    for e in range(min(snapshots.shape[0], scores.shape[0])):
        if takes(snapshots[e], record) and scores[e] > scores[best]:
            best = e
    return best


@router
def base(context, request, route):
    """Placeholder for the base router."""


PARAMETERS = 0  # placeholder: number of the base's parameters
MEASURE = -1  # placeholder: the number of its state per engine that the base compares; -1: none


@kernel
def observe(context, request, chosen, slots, measure, observation):
    """Write the observation of layout `QUEUES`; a placeholder for the others."""
    observe_routing(context, request, chosen, 0, slots, observation)


@router
def routed_router(context, request, route):
    """Replace the base's engine by the one with the highest score: a template.

    Its numbers: the base's parameters, the network. Memory: the network's room, the scores, the observation.
    """
    base(context, request, route)
    requests, known, parameters = context.requests, context.known, context.parameters
    network, rest = split_network(parameters[PARAMETERS:])
    slots, chosen = int(network[SLOTS]), route.engine
    # The base's decision stands if it chose an engine without slot, held or refused the request, or if the request goes
    # to its decode engine.
    if chosen < 0 or chosen >= slots or requests[request].computed_tokens > 0:
        return
    scores, seen = split(rest, slots)
    observation = seen.view(np.float32)
    observe(context, request, chosen, slots, MEASURE, observation)
    forward(network, observation, min(slots, known.snapshots.shape[0]), scores)
    route.engine = best_engine(known.snapshots, requests[request], chosen, scores)
    if route.engine != chosen:
        route.tier = STAY  # the base's tier was meant for its own engine


def routed(
    base: Policy, network: Network, slots: int | None = None, name: str = "", sees: str = QUEUES
) -> LearnedPolicy:
    """Return the base router with engines scored by a shared network, one output for each engine.

    slots: None: as many as the network has; further engines get only what the base sends there. sees: the observation,
    a key of `LAYOUTS`. With all weights 0 it decides as the base does. Raises PolicyError if base and network do not
    match.
    """
    check_base(base, "router")
    layout = LAYOUTS[sees](network.shape.slots if slots is None else slots)
    check_network(network, layout, 1, f"a routing on {base.name}", "shared")
    seen = {QUEUES: observe, CACHES: observe_caching, SESSIONS: observe_caching_sessions}[sees]
    constants = {"PARAMETERS": len(base.parameters), "MEASURE": measure_of(base)}
    function = specialised(routed_router, base=base.function, observe=seen, **constants)
    memory = network.shape.room + layout.slots + half(layout.size)
    return derived("routing", base, name, function, network.numbers, memory, network=network, layout=layout)


def measure_of(base: Policy) -> int:
    """Return the index of the number of its state per engine that a router compares (routers/ties.py); -1: none."""
    return base.state.engine.index("measure") if "measure" in base.state.engine else -1
