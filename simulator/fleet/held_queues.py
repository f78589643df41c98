"""Requests at the router: ready ones, those that came back to it at this instant, and held ones.

A held queue is linked by OUTCOME.next_in_queue. known.tiers has a held queue for each tier, then one for best effort,
and last the unrouted queue: requests that came back and are routed at this instant.
"""

import numpy as np

from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.compilation.parked import loaded
from servegym.simulator.features.front_end import leave_front_end
from servegym.simulator.fleet.routing import catch_up, is_taken, may_decode, takes, would_take
from servegym.simulator.records.events import note
from servegym.simulator.records.signatures import RouterContext
from servegym.simulator.records.types import HELD, HOLD, REFUSE, STAY

READY, NO_REQUEST = -1, -2  # in place of a held queue: a request that is ready; no request to route


@kernel
def unrouted_queue(tiers):
    """Return the index of the queue of requests that came back to the router."""
    return tiers.shape[0] - 1


@kernel
def tier_of(request, tiers):
    """Return the last tier with a TPOT SLO not above the request's, or the first tier if there is none."""
    tier = 0
    for t in range(1, tiers.shape[0] - 2):
        if tiers[t].tpot_slo_s <= request.tpot_slo_s:
            tier = t
    return tier


@kernel
def append(queue, outcomes, r):
    """Append request r to the queue."""
    outcomes[r].next_in_queue = -1
    if queue.waiting == 0:
        queue.first = r
    else:
        outcomes[queue.last].next_in_queue = r
    queue.last = r
    queue.waiting += 1


@kernel
def drop_first(queue, outcomes):
    """Remove the first request from the queue."""
    queue.first = outcomes[queue.first].next_in_queue
    queue.waiting -= 1


@kernel
def drop_from(queue, outcomes, r):
    """Remove request r from anywhere in the queue."""
    if queue.first == r:
        drop_first(queue, outcomes)
        return
    before = queue.first
    while outcomes[before].next_in_queue != r:
        before = outcomes[before].next_in_queue
    outcomes[before].next_in_queue = outcomes[r].next_in_queue
    if queue.last == r:
        queue.last = before
    queue.waiting -= 1


@inlined_kernel
def next_held_queue(run, router_state):
    """Return the held queue whose first request is routed next; NO_REQUEST: none."""
    status, tiers = run.status[0], router_state.known.tiers
    unrouted = unrouted_queue(tiers)
    if tiers[unrouted].waiting > 0:
        return unrouted
    if status.router.held_dirty == 1:
        while status.router.held > 0 and status.router.held_cursor < unrouted:
            if tiers[status.router.held_cursor].waiting > 0:
                return status.router.held_cursor
            status.router.held_cursor += 1
        status.router.held_dirty, status.router.held_cursor = 0, 0
    return NO_REQUEST


@kernel
def router_context_of(run, router_state, now_s):
    """Return the router's context."""
    return RouterContext(
        now_s, run.requests, loaded(router_state.known), router_state.state, router_state.parameters,
        loaded(router_state.estimates), run.scratch,
    )  # fmt: skip


@kernel
def route_request(run, router_state, r, held_queue, now_s):
    """Let the router write router_state.route for request r. Returns False if there was nothing to decide."""
    request, route, snapshots = run.requests[r], router_state.route[0], router_state.known.snapshots
    route.decode_engine, route.tier, route.held_queue = -1, STAY, tier_of(request, router_state.known.tiers)
    route.engine = run.outcomes[r].decode_engine  # as the router chose at the request's prefill
    if route.engine >= 0 and request.computed_tokens > 0 and takes(snapshots[route.engine], request):
        return False
    route.engine = HOLD
    catch_up(run, router_state, now_s)
    if not is_taken(snapshots, request):
        if 0 <= held_queue < unrouted_queue(router_state.known.tiers):
            route.held_queue = held_queue
        return False
    router_state.router(router_context_of(run, router_state, now_s), r, route)
    return True


@kernel
def is_legal(run, router_state, r):
    """Return whether the router's decision for request r is valid."""
    route, tiers, engines = router_state.route[0], router_state.known.tiers, run.engines.shape[0]
    if route.engine == REFUSE:  # a request with a token cannot be refused
        return np.isnan(run.requests[r].first_token_s) and route.tier == STAY
    if route.engine == HOLD:
        return 0 <= route.held_queue < tiers.shape[0] - 1
    if route.tier != STAY and run.status[0].router.moving == 0:
        return False
    if not 0 <= route.engine < engines:
        return False
    snapshot, request = router_state.known.snapshots[route.engine], run.requests[r]
    if not takes(snapshot, request) and (route.tier == STAY or not would_take(snapshot, request)):
        return False
    if not -1 <= route.tier < tiers.shape[0] - 2:
        return False
    return route.decode_engine == HOLD or (
        0 <= route.decode_engine < engines and may_decode(router_state.known.snapshots[route.decode_engine])
    )


@kernel
def keep_waiting(run, router_state, held_queue, r):
    """Hold request r: keep it in its held queue, or move it to the one that the router chose."""
    status, tiers, to = run.status[0], router_state.known.tiers, router_state.route[0].held_queue
    if held_queue == to:
        status.router.held_cursor += 1
        return
    take_from(run, router_state, held_queue, r)
    append(tiers[to], run.outcomes, r)
    status.router.held += 1
    if status.recording:
        note(run, HELD, -1, r, to, 0.0)


@kernel
def take_from(run, router_state, held_queue, r):
    """Remove request r from where it was routed from: the front of a held queue, or the front end."""
    status, tiers = run.status[0], router_state.known.tiers
    if held_queue == READY:
        leave_front_end(run, router_state, r)
        return
    drop_first(tiers[held_queue], run.outcomes)
    if held_queue != unrouted_queue(tiers):
        status.router.held -= 1


@kernel
def to_router(run, router_state, r):
    """Append request r to the unrouted queue, to be routed at this instant."""
    append(router_state.known.tiers[unrouted_queue(router_state.known.tiers)], run.outcomes, r)
