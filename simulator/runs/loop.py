"""The event loop: arrivals, iterations and their ends, in the order docs/simulation.md gives ("Time")."""

import numpy as np

from servegym.simulator.batching.iterations import end_batch, leave, start_engine
from servegym.simulator.compilation.kernels import compiled, inlined_kernel, kernel
from servegym.simulator.features.ahead import start_formed
from servegym.simulator.features.flags import HAS_AHEAD, HAS_CACHE, HAS_CLIENTS, HAS_CLUSTER, HAS_LOCKSTEP, HAS_TASKS
from servegym.simulator.features.front import end_request, next_to_send
from servegym.simulator.features.front_end import next_ready, take_in
from servegym.simulator.features.lockstep import end_together, make_group_due
from servegym.simulator.features.session_dependencies import NO_TURN
from servegym.simulator.features.suspended_batches import suspend
from servegym.simulator.fleet.arrivals import receive, route_one
from servegym.simulator.fleet.held_queues import NO_REQUEST, next_held_queue
from servegym.simulator.fleet.incidents import apply_incident, count_service
from servegym.simulator.fleet.routing import (
    catch_up,
    could_take,
    emit_signal,
    is_heard_now,
    is_taken,
    report,
    report_busy,
    signals_fit,
)
from servegym.simulator.fleet.scaling import are_legal, ask_scaler, make_moves
from servegym.simulator.fleet.startup import end_loading
from servegym.simulator.fleet.transfers import depart, start_transfer
from servegym.simulator.memory.kv_events import events_fit
from servegym.simulator.records.events import make_due, pop
from servegym.simulator.records.state import advance_signature
from servegym.simulator.records.statuses import (
    AT_CHECKS,
    BAD_MOVE,
    BAD_TIME,
    DECISION,
    DONE,
    FAILED,
    GOING_ON,
    IN_VAIN,
    NOT_STARTED,
    PAUSED,
    QUEUE_FULL,
    SIGNALS_FULL,
    STARTED,
    STUCK,
    TIMELINE_FULL,
    TOO_OFTEN,
    YIELDED,
)
from servegym.simulator.records.timeline import events_left
from servegym.simulator.records.types import (
    EVENT_DELIVERY,
    EVENT_KV_ARRIVAL,
    EVENT_SUSPENSION,
    FIRST_TOKEN,
    LAST_TOKEN,
    LATEST_S,
    MOST_CHECKS,
    MOST_STARTS,
    ROLE_DECODE,
    ROLE_PREFILL,
    VISITS_A_CALL,
    VISITS_AN_INSTANT,
)
from servegym.simulator.runs.parking import restore_run


@compiled(advance_signature)
def advance(address, stop_at, until_s):
    """Run on until there is nothing left to do or a reason to return to the caller (statuses.py).

    address: of a parked run (parking.py), so that sixty arrays are not handed over at each step. stop_at: where to
    stop for decisions. At a route the caller may change router_state.route[0], at a check router_state.moves.
    """
    run, router_state, functions = restore_run(address)
    status = run.status[0]
    alone, transfers = run.engines.shape[0] == 1, run.engines.shape[0]
    visits = 0
    while True:
        # Where the caller comes back in the middle of routing or starting engines, this instant's events are done with.
        while (
            status.router.routing == 0
            and status.starting == 0
            and status.events > 0
            and run.events[0].time_s <= status.now_s
        ):
            reason = handle_event(run, router_state, functions)
            if reason != GOING_ON:
                return reason
        if HAS_CLUSTER and status.router.routing == 0 and status.starting == 0:
            while status.next_incident < router_state.incidents.shape[0] and (
                router_state.incidents[status.next_incident].time_s <= status.now_s
            ):
                if status.recording and events_left(run) < 2 * run.requests.shape[0] + transfers + 2:
                    return TIMELINE_FULL
                apply_incident(run, router_state, status.now_s)
            if status.scaler.next_ready_s <= status.now_s:
                if status.recording and events_left(run) < transfers:
                    return TIMELINE_FULL
                end_loading(run, router_state, status.now_s)
            if status.scaler.next_check_s <= status.now_s:
                if status.recording and events_left(run) < 2 * run.requests.shape[0] + 3 * transfers:
                    return TIMELINE_FULL
                if status.deciding_check == 0:
                    ask_scaler(run, router_state, status.now_s)
                    if stop_at & AT_CHECKS:
                        status.deciding_check = 1
                        return DECISION
                status.deciding_check = 0
                if not are_legal(router_state):
                    return BAD_MOVE
                make_moves(run, router_state, status.now_s)
                if status.scaler.starts > MOST_STARTS and not stop_at & AT_CHECKS:
                    return IN_VAIN
                visits += transfers
        if HAS_CLUSTER and status.router.held > 0:
            catch_up(run, router_state, status.now_s)
        elif HAS_CLUSTER and status.signals.delay_s > 0.0 and is_heard_now(status, router_state.signals):
            status.router.held_dirty = 1  # for those that went to the router just now, if it holds them
        if HAS_CLIENTS and status.front_end.delays == 1:
            take_in(run, router_state)
        status.router.routing = 1
        while True:
            held_queue = next_held_queue(run, router_state, alone)
            if held_queue == NO_REQUEST:
                break
            reason = route_one(run, router_state, held_queue, alone, stop_at)
            if reason != GOING_ON:
                return reason
            if HAS_CLUSTER:
                visits += transfers
        status.router.routing = 0
        if status.starting == 0 and status.events > 0 and run.events[0].time_s <= status.now_s:
            continue  # KV that was sent just now over a link that takes no time
        while status.starting < status.due:
            e = run.due[status.starting]
            reason = start_engine(run, router_state, functions, e, stop_at)
            if reason != STARTED and reason != NOT_STARTED:
                return reason
            status.deciding_engine = -1
            visits += run.engines[e].queue_length
            if HAS_AHEAD and reason == STARTED and run.engines[e].ahead.on:
                continue  # it forms the next one now
            status.starting += 1
        if HAS_LOCKSTEP:
            end_together(run)
        status.starting = 0
        status.due = 0
        if status.failed:
            return FAILED
        next_s = next_time_s(run, router_state, alone)
        if next_s == np.inf and status.events == 0 and next_to_send(run, router_state)[0] == NO_TURN:
            scales = HAS_CLUSTER and status.scaler.interval_s > 0.0 and not stop_at & AT_CHECKS
            return STUCK if is_stuck(run, router_state, scales) else DONE
        if next_s > until_s:
            return PAUSED
        if next_s > LATEST_S:
            return BAD_TIME
        if HAS_CLUSTER and is_asked_too_often(run, router_state, next_s, until_s):
            return TOO_OFTEN
        status.now_s = next_s
        visits += VISITS_AN_INSTANT
        if visits > VISITS_A_CALL:
            return YIELDED


@inlined_kernel
def next_known_s(run, router_state):
    """When the next event, arrival or incident is, or an engine is ready; inf: never."""
    status, next_s = run.status[0], np.inf
    if status.events > 0:
        next_s = run.events[0].time_s
    next_s = min(next_s, next_to_send(run, router_state)[1])
    if HAS_CLIENTS and status.front_end.delays == 1:
        next_s = min(next_s, next_ready(run, router_state)[1])
    if not HAS_CLUSTER:
        return next_s
    if status.finished < run.requests.shape[0]:
        next_s = min(next_s, status.scaler.next_ready_s)
    if status.next_incident < router_state.incidents.shape[0] and status.finished < run.requests.shape[0]:
        next_s = min(next_s, router_state.incidents[status.next_incident].time_s)
    return next_s


@kernel
def is_asked_too_often(run, router_state, next_s, until_s):
    """Whether the scaler, if it is asked next, would be too many times up to what happens then, or its interval is lost
    in rounding."""
    scaler = run.status[0].scaler
    if next_s != scaler.next_check_s:
        return False
    known_s = next_known_or_heard_s(run, router_state)
    if known_s == np.inf:  # a last check, or the router takes an engine to be busy: see next_time_s
        known_s = latest_end_s(router_state.known.snapshots)
    waits_s = min(known_s, until_s) - scaler.next_check_s
    lost = scaler.next_check_s + scaler.interval_s == scaler.next_check_s
    return waits_s > 0.0 and (lost or waits_s > MOST_CHECKS * scaler.interval_s)


@inlined_kernel
def next_known_or_heard_s(run, router_state):
    """The same, or when the router, which holds requests, hears next of an engine; inf: never."""
    status, next_s = run.status[0], next_known_s(run, router_state)
    if status.router.held > 0 and status.signals.heard < status.signals.sent:
        next_s = min(next_s, router_state.signals[status.signals.heard].time_s + status.signals.delay_s)
    return next_s


@inlined_kernel
def next_time_s(run, router_state, alone):
    """When something happens next; inf: never."""
    if not HAS_CLUSTER or alone:
        return next_known_s(run, router_state)
    status, next_s = run.status[0], next_known_or_heard_s(run, router_state)
    if next_s < np.inf:
        return min(next_s, status.scaler.next_check_s)
    if status.router.held > 0 and status.router.final_retry == 0:  # a last check, and they are asked about a last time
        status.router.final_retry, status.router.held_dirty, status.router.held_cursor = 1, 1, 0
        return max(status.now_s, status.scaler.next_check_s) if status.scaler.interval_s > 0.0 else status.now_s
    believed_s = latest_end_s(router_state.known.snapshots)
    if status.router.held > 0 and believed_s > status.now_s:  # the router may take an engine to be busy that is not
        status.router.held_dirty, status.router.held_cursor = 1, 0
        return min(believed_s, status.scaler.next_check_s)
    return np.inf


@kernel
def latest_end_s(snapshots):
    """When all engines have ended their iterations, as far as the router knows."""
    last_s = -np.inf
    for e in range(snapshots.shape[0]):
        last_s = max(last_s, snapshots[e].busy_until_s)
    return last_s


@kernel
def is_stuck(run, router_state, scales):
    """Whether requests are held though there are engines that take the first of a held queue; scales: or would, if the
    scaler opened or started them."""
    tiers, snapshots = router_state.known.tiers, router_state.known.snapshots
    for held_queue in range(tiers.shape[0] - 1):
        if tiers[held_queue].waiting == 0:
            continue
        request = run.requests[tiers[held_queue].first]
        if is_taken(snapshots, request):
            return True
        for e in range(run.engines.shape[0]):
            if scales and run.engines[e].drained == 0 and could_take(snapshots[e], request):
                return True
    return False


@inlined_kernel
def handle_event(run, router_state, functions):
    """The first event happens. Returns GOING_ON, or why it has not."""
    status, kind = run.status[0], run.events[0].kind
    if HAS_CLUSTER and kind == EVENT_KV_ARRIVAL:
        r = run.events[0].index
        if run.engines[run.requests[r].engine].queue_length == run.queues.shape[1]:
            return QUEUE_FULL
        if status.recording and events_left(run) < 2 + run.engines.shape[0]:
            return TIMELINE_FULL
        pop(run.events, status)
        receive(run, router_state, r, status.now_s)
        return GOING_ON
    if HAS_CLIENTS and kind == EVENT_DELIVERY:
        r = run.events[0].index
        pop(run.events, status)
        end_request(run, router_state, r, status.now_s)
        return GOING_ON
    e = run.events[0].index
    engine = run.engines[e]
    length = engine.batch_length
    if status.recording:
        most_lines = (3 + engine.speculation.k) * length + 1 + run.engines.shape[0]
        if HAS_AHEAD:
            most_lines += engine.ahead.length + 1
        if events_left(run) < most_lines:
            return TIMELINE_FULL
    if HAS_CLUSTER and not signals_fit(run, router_state, length):
        return SIGNALS_FULL
    if HAS_CACHE and not events_fit(run, router_state, e):
        return SIGNALS_FULL
    pop(run.events, status)
    if HAS_TASKS and kind == EVENT_SUSPENSION:
        suspend(run, router_state, e, status.now_s)
        if HAS_CLUSTER and run.engines.shape[0] > 1:
            report_busy(run, router_state, e, status.now_s, status.now_s)
    else:
        emitted = engine.totals.num_output_tokens
        news = end_batch(run, router_state, functions.gain, e, status.now_s)
        if HAS_CLUSTER and run.engines.shape[0] > 1:
            engine.decode_tokens += engine.totals.num_output_tokens - emitted
            if engine.totals.num_output_tokens > emitted:
                status.scaler.starts = 0
            if news > 0:
                tell_of_tokens(run, router_state, e, length, status.now_s)
            start_transfer(run, router_state, e, status.now_s)
            report(run, router_state, e, status.now_s)
        if HAS_CLUSTER and engine.drained == 1:
            count_service(status, router_state, engine, status.now_s)
        if HAS_LOCKSTEP and engine.lockstep.ranks > 1:
            make_group_due(run, engine)
        elif HAS_AHEAD and engine.ahead.length > 0:
            reason = start_formed(run, router_state, e, status.now_s)
            if reason != STARTED:
                return reason
    if engine.queue_length > 0:
        make_due(run, e)
    return GOING_ON


@kernel
def tell_of_tokens(run, router_state, e, length, now_s):
    """Tell the router of first and last tokens after an iteration of engine e with `length` requests, and send those
    that are prefilled elsewhere."""
    engine, entries, departed = run.engines[e], run.entries[e], 0
    if HAS_AHEAD and engine.ahead.on:
        entries = router_state.running[e]
    for k in range(length):
        if entries[k].emitted == 0:
            continue
        r = entries[k].request
        request, outcome = run.requests[r], run.outcomes[r]
        out = request.num_output_tokens - outcome.under_way
        if engine.role != ROLE_DECODE and out == outcome.sent_tokens + 1:
            engine.decode_tokens += request.prompt_tokens + outcome.sent_tokens
            emit_signal(run, router_state, e, r, FIRST_TOKEN, now_s)
        if out == outcome.output_tokens:
            engine.decode_tokens -= request.prompt_tokens + request.num_output_tokens
            emit_signal(run, router_state, e, r, LAST_TOKEN, now_s)
        elif engine.role == ROLE_PREFILL:
            departed += 1
            depart(run, router_state, e, r)
    if departed > 0:
        leave(engine, run.queues[e], run.previous_order[e], run.requests, run.outcomes)
