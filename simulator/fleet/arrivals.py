"""How requests join an engine's queue: routed on arrival or from a held queue, or with their KV over a link."""

import numpy as np

from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.features.fleet_hooks import after_refusal, before_joining, decides_at_once
from servegym.simulator.features.front import arrive_at_front
from servegym.simulator.features.front_end import leave_front_end, next_ready
from servegym.simulator.fleet.held_queues import READY, is_legal, keep_waiting, route_request, take_from
from servegym.simulator.fleet.incidents import close, count_service, move
from servegym.simulator.fleet.routing import queue_has_space, send
from servegym.simulator.fleet.transfers import leave_source, next_transfer, queue_transfer
from servegym.simulator.records.events import events_left, make_due, note, pop
from servegym.simulator.records.requests import count_refused
from servegym.simulator.records.statistics import clear_state, count_queued
from servegym.simulator.records.statuses import AT_ROUTES, BAD_ROUTE, DECISION, GOING_ON, QUEUE_FULL, TIMELINE_FULL
from servegym.simulator.records.types import ARRIVAL, HOLD, RECEIVED, REFUSE, STAY


@kernel
def request_to_route(run, router_state, held_queue):
    """Return the first request of a held queue, or the next one that is ready."""
    decided = run.status[0].router.decided
    if held_queue != READY:
        return np.int64(router_state.known.tiers[held_queue].first)
    # If a caller stopped the loop at this request's route, the request has left the front end: it is not next_ready.
    return np.int64(decided) if decided >= 0 else np.int64(next_ready(run, router_state)[0])


@inlined_kernel
def route_to_only_engine(run, router_state):
    """Send the next ready request to the only engine. Returns GOING_ON, or which array is too short."""
    status = run.status[0]
    if run.engines[0].queue_length == run.queues.shape[1]:
        return QUEUE_FULL
    if status.recording and events_left(run) < 1:
        return TIMELINE_FULL
    r = next_ready(run, router_state)[0]
    leave_front_end(run, router_state, r)
    if status.front_end.delays == 0:
        arrive_at_front(run, r)
    arrive(run, router_state, 0, r)
    return GOING_ON


@inlined_kernel
def route_by_router(run, router_state, held_queue, stop_at):
    """Route the first request of a held queue, or the next ready one. Returns GOING_ON, or why the loop stops."""
    status, route, now_s = run.status[0], router_state.route[0], run.status[0].now_s
    r = request_to_route(run, router_state, held_queue)
    request = run.requests[r]
    if status.router.decided != r:
        if held_queue == READY and status.front_end.delays == 0:
            arrive_at_front(run, r)
        if request.session >= 0:
            request.session_engine = run.requests[request.session].session_engine
        undecided = route_request(run, router_state, r, held_queue, now_s)
        status.router.decided = r
        if undecided and stop_at & AT_ROUTES:
            status.deciding_request = r
            return DECISION
    status.deciding_request = -1
    if not is_legal(run, router_state, r):
        return BAD_ROUTE
    e = route.engine
    few = route.tier == STAY and e != REFUSE
    most_lines = 3 if few else 2 * run.requests.shape[0] + run.engines.shape[0] + 3
    if status.recording and events_left(run) < most_lines:
        return TIMELINE_FULL
    if e >= 0 and not queue_has_space(run, router_state, e):
        return QUEUE_FULL
    status.router.decided = -1
    if e == HOLD:
        keep_waiting(run, router_state, held_queue, r)
        return GOING_ON
    status.router.final_retry = 0
    if e == REFUSE:
        take_from(run, router_state, held_queue, r)
        count_refused(run, r)
        after_refusal(run, router_state, r)
        return GOING_ON
    if route.tier != STAY:
        move(run, router_state, e, route.tier, now_s)
        close(run, router_state, e, 0)
    take_from(run, router_state, held_queue, r)
    send(router_state.known, e, r, request, run.outcomes[r], now_s)
    if request.session >= 0:
        run.requests[request.session].session_engine = e
    if request.computed_tokens > 0:
        queue_transfer(run, router_state, e, r, now_s)
    else:
        run.outcomes[r].decode_engine = route.decode_engine
        arrive(run, router_state, e, r)
    return GOING_ON


@inlined_kernel
def arrive(run, router_state, e, r):
    """Append request r, which has no computed tokens, to the queue of engine e."""
    run.requests[r].engine = e
    before_joining(run, router_state, e, r)
    join(run, e, r)
    if run.status[0].recording:
        note(run, ARRIVAL, e, r, 0, 0.0)


@kernel
def receive_next(run, router_state):
    """Handle the first event, an arrival of KV. Returns GOING_ON, or which array is too short."""
    status, r = run.status[0], run.events[0].index
    if run.engines[run.requests[r].engine].queue_length == run.queues.shape[1]:
        return QUEUE_FULL
    if status.recording and events_left(run) < 2 + run.engines.shape[0]:
        return TIMELINE_FULL
    pop(run.events, status)
    receive(run, router_state, r, status.now_s)
    return GOING_ON


@kernel
def receive(run, router_state, r, now_s):
    """Append request r, whose KV has arrived, to the queue of its decode engine, where it is running."""
    status, request = run.status[0], run.requests[r]
    e, source = request.engine, run.engines[leave_source(run, r, now_s)]
    run.engines[e].transfers.coming_blocks -= request.blocks
    run.engines[e].decode_tokens += request.prompt_tokens + request.num_output_tokens
    status.admissions += 1
    request.admitted = status.admissions
    clear_state(run.state, r)
    join(run, e, r)
    if status.recording:
        note(run, RECEIVED, e, r, request.blocks, 0.0)
    if source.batch_length == 0 and source.queue_length > 0:
        make_due(run, source.index)
    if source.drained == 1:
        count_service(status, router_state, source, now_s)
    next_transfer(run, router_state, e, now_s)


@kernel
def join(run, e, r):
    """Append request r to the queue of engine e, and make the engine due if it may decide now."""
    engine = run.engines[e]
    run.queues[e][engine.queue_length], run.previous_order[e][engine.queue_length] = r, 0
    engine.queue_length += 1
    count_queued(run.state, e, run.requests[r])
    if decides_at_once(engine):
        make_due(run, e)
