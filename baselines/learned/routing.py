"""Routing: a network scores the engines for a request, and may score refusing it; the base router's choice wins ties.

The decode engine of a request, and whether and where it is held, remain the base's decision; without a score for it,
whether it is refused too.
"""

from __future__ import annotations

import numpy as np

from servegym.baselines.learned.derived import LearnedPolicy, check_base, check_network, derived, half
from servegym.baselines.learned.forward import SLOT, SLOTS, WHOLE, forward
from servegym.baselines.learned.memory import split, split_network
from servegym.baselines.learned.network import Network
from servegym.baselines.observations.caching import caching_layout, observe_caching, write_refusing
from servegym.baselines.observations.routing import observe_routing, routing_layout
from servegym.baselines.observations.sessions import caching_sessions_layout, observe_caching_sessions
from servegym.errors import PolicyError
from servegym.policy import REFUSE, STAY, Policy, kernel, router, specialised, takes

QUEUES, CACHES, SESSIONS = "routing", "caching", "caching-sessions"
# What a learned router can see.
LAYOUTS = {QUEUES: routing_layout, CACHES: caching_layout, SESSIONS: caching_sessions_layout}

REFUSES = "refuse"  # among the controls of a learned router that may refuse requests


@kernel
def may_refuse(record):
    """Return whether a request may be refused: it has emitted no token."""
    return np.isnan(record.first_token_s)


@kernel
def best_engine(snapshots, record, chosen, scores):
    """Return the engine with the highest score among those that take the request; ties: `chosen`, then the first."""
    best = chosen
    for e in range(min(snapshots.shape[0], scores.shape[0])):
        if takes(snapshots[e], record) and scores[e] > scores[best]:
            best = e
    return best


@kernel
def best_or_refuse(snapshots, record, chosen, scores):
    """Return the engine as `best_engine` does, or REFUSE if the last score is higher."""
    place = scores.shape[0] - 1
    best = place if chosen == REFUSE else chosen
    for e in range(min(snapshots.shape[0], place)):
        if takes(snapshots[e], record) and scores[e] > scores[best]:
            best = e
    if may_refuse(record) and scores[place] > scores[best]:
        best = place
    return REFUSE if best == place else best


@router
def base(context, request, route):
    """Placeholder for the base router."""


PARAMETERS = 0  # placeholder: number of the base's parameters
MEASURE = -1  # placeholder: the number of its state per engine that the base compares; -1: none
MAY_REFUSE = False  # placeholder: whether the last slot is that of refusing the request


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
    engines = slots - 1 if MAY_REFUSE else slots
    # The base's decision stands if it chose an engine without slot, held the request, or refused it where the network
    # cannot, or if the request goes to its decode engine.
    is_open = 0 <= chosen < engines or (MAY_REFUSE and chosen == REFUSE)
    if not is_open or requests[request].computed_tokens > 0:
        return
    scores, seen = split(rest, slots)
    observation = seen.view(np.float32)
    observe(context, request, chosen, slots, MEASURE, observation)
    if MAY_REFUSE:
        write_refusing(chosen, int(network[WHOLE]), int(network[SLOT]), engines, observation)
        forward(network, observation, slots, scores)
        route.engine = best_or_refuse(known.snapshots, requests[request], chosen, scores)
    else:
        forward(network, observation, min(slots, known.snapshots.shape[0]), scores)
        route.engine = best_engine(known.snapshots, requests[request], chosen, scores)
    if route.engine != chosen:
        route.tier = STAY  # the base's tier was meant for its own engine


def routed(
    base: Policy,
    network: Network,
    slots: int | None = None,
    name: str = "",
    sees: str = QUEUES,
    refuse: bool = False,
) -> LearnedPolicy:
    """Return the base router with engines scored by a shared network, one output for each engine.

    slots: None: as many as the network has; further engines get only what the base sends there. sees: the observation,
    a key of `LAYOUTS`. refuse: the last slot scores refusing the request, which has emitted no token
    (`write_refusing`). With all weights 0 it decides as the base does. Raises PolicyError if base and network
    do not match.
    """
    check_base(base, "router")
    layout = LAYOUTS[sees](network.shape.slots if slots is None else slots)
    check_network(network, layout, 1, f"a routing on {base.name}", "shared")
    if refuse and layout.slots < 2:
        raise PolicyError(f"a routing on {base.name} that refuses: 1 slot; it should be 2 or more, the last to refuse")
    seen = {QUEUES: observe, CACHES: observe_caching, SESSIONS: observe_caching_sessions}[sees]
    constants = {"PARAMETERS": len(base.parameters), "MEASURE": measure_of(base), "MAY_REFUSE": refuse}
    function = specialised(routed_router, base=base.function, observe=seen, **constants)
    memory = network.shape.room + layout.slots + half(layout.size)
    controls = (REFUSES,) if refuse else ()
    return derived(
        "routing", base, name, function, network.numbers, memory, network=network, layout=layout, controls=controls
    )


def measure_of(base: Policy) -> int:
    """Return the index of the number of its state per engine that a router compares (routers/ties.py); -1: none."""
    return base.state.engine.index("measure") if "measure" in base.state.engine else -1
