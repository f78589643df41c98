"""The event loop: arrivals, starts and ends of iterations, in the order of docs/simulation.md, "Time"."""

import numpy as np

from servegym.simulator.batching.ends import end_batch
from servegym.simulator.batching.starts import start_engine
from servegym.simulator.compilation.kernels import compiled, inlined_kernel
from servegym.simulator.features.loop_hooks import (
    after_end,
    after_events,
    after_starts,
    at_event,
    at_last,
    before_end,
    before_instant,
    before_routing,
    forms_another,
    is_one_to_send,
    next_arrival_s,
    next_time_s,
    next_to_route,
    route_one,
    while_ending,
)
from servegym.simulator.fleet.held_queues import NO_REQUEST
from servegym.simulator.records.events import make_due, pop
from servegym.simulator.records.state import advance_signature
from servegym.simulator.records.statuses import BAD_TIME, FAILED, GOING_ON, NOT_STARTED, PAUSED, STARTED, YIELDED
from servegym.simulator.records.types import EVENT_BATCH_END, LATEST_S, VISITS_A_CALL, VISITS_AN_INSTANT
from servegym.simulator.runs.parking import restore_run


@compiled(advance_signature)
def advance(address, stop_at, until_s):
    """Run until the end, or until there is another reason to return to the caller (statuses.py), which is returned.

    address: of a parked run (parking.py), as passing sixty arrays at each step takes long. stop_at: at which decisions
    to stop. At a route the caller may change router_state.route[0], at a scaler's decision router_state.moves.
    """
    run, router_state, functions = restore_run(address)
    status = run.status[0]
    engines, alone = run.engines.shape[0], run.engines.shape[0] == 1
    visits = 0
    while True:
        # If the caller returns during routing or starts, this instant's events have been handled.
        if status.router.routing == 0 and status.starting == 0:
            while is_event_now(run):
                reason = handle_event(run, router_state, functions)
                if reason != GOING_ON:
                    return reason
            reason, visited = after_events(run, router_state, stop_at)
            if reason != GOING_ON:
                return reason
            visits += visited
        before_routing(run, router_state)
        status.router.routing = 1
        while True:
            held_queue = next_to_route(run, router_state, alone)
            if held_queue == NO_REQUEST:
                break
            reason = route_one(run, router_state, held_queue, alone, stop_at)
            if reason != GOING_ON:
                return reason
            visits += engines
        status.router.routing = 0
        if status.starting == 0 and is_event_now(run):
            continue  # KV sent at this instant over a link that takes no time
        while status.starting < status.due:
            e = run.due[status.starting]
            reason = start_engine(run, router_state, functions, e, stop_at)
            if reason != STARTED and reason != NOT_STARTED:
                return reason
            status.deciding_engine = -1
            visits += run.engines[e].queue_length
            if not forms_another(run.engines[e], reason):
                status.starting += 1
        after_starts(run)
        status.starting = 0
        status.due = 0
        if status.failed:
            return FAILED
        known_s = next_known_s(run, router_state)
        next_s = next_time_s(run, router_state, alone, known_s)
        if next_s == np.inf and status.events == 0 and not is_one_to_send(run, router_state):
            return at_last(run, router_state, stop_at)
        if next_s > until_s:
            return PAUSED
        if next_s > LATEST_S:
            return BAD_TIME
        reason = before_instant(run, router_state, known_s, next_s, until_s)
        if reason != GOING_ON:
            return reason
        status.now_s = next_s
        visits += VISITS_AN_INSTANT
        if visits > VISITS_A_CALL:
            return YIELDED


@inlined_kernel
def is_event_now(run):
    """Return whether the first event is due."""
    status = run.status[0]
    return status.events > 0 and run.events[0].time_s <= status.now_s


@inlined_kernel
def next_known_s(run, router_state):
    """Return the time of the next event or arrival; inf: none."""
    next_s = next_arrival_s(run, router_state)
    if run.status[0].events > 0:
        next_s = min(next_s, run.events[0].time_s)
    return next_s


@inlined_kernel
def handle_event(run, router_state, functions):
    """Handle the first event. Returns GOING_ON, or why the loop stops."""
    if run.events[0].kind != EVENT_BATCH_END:
        return at_event(run, router_state)
    status, e = run.status[0], run.events[0].index
    engine = run.engines[e]
    reason = before_end(run, router_state, e)
    if reason != GOING_ON:
        return reason
    pop(run.events, status)
    while_ending(run)
    length = engine.batch_length
    news, emitted = end_batch(run, router_state, functions.gain, e, status.now_s)
    reason = after_end(run, router_state, e, length, news, emitted)
    if reason != GOING_ON:
        return reason
    if engine.queue_length > 0:
        make_due(run, e)
    return GOING_ON
