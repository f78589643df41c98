"""Hooks of the event loop (runs/loop.py), in the order of an instant.

The loop, the start and the end of an iteration, and the packer name no feature: they call hooks, here and in the other
*_hooks.py. A hook says what each feature does at its point and in which order, guarded by the feature's flag
(__init__.py): loops compiled without the feature have none of its code. A new feature is a file with its kernels, a
flag, and lines in hooks. docs/life_of_a_request.md goes through the hooks in the order in which a request meets them.
"""

from servegym.simulator.compilation.kernels import hook
from servegym.simulator.compilation.prefetching import prefetch_next
from servegym.simulator.features import (
    HAS_AHEAD,
    HAS_CACHE,
    HAS_CLIENTS,
    HAS_CLUSTER,
    HAS_DRAFTS,
    HAS_LOCKSTEP,
    HAS_TASKS,
)
from servegym.simulator.features.ahead import start_formed
from servegym.simulator.features.front import next_to_send
from servegym.simulator.features.front_end import deliver_next, enter_front_end, next_ready
from servegym.simulator.features.iteration_hooks import running_entries
from servegym.simulator.features.lockstep import end_together, make_group_due
from servegym.simulator.features.session_dependencies import NO_TURN
from servegym.simulator.features.suspended_batches import suspend_next
from servegym.simulator.fleet.arrivals import receive_next, route_by_router, route_to_only_engine
from servegym.simulator.fleet.held_queues import NO_REQUEST, READY, next_held_queue
from servegym.simulator.fleet.incidents import count_service
from servegym.simulator.fleet.instants import apply_changes
from servegym.simulator.fleet.news import tell_router
from servegym.simulator.fleet.next_times import is_asked_too_often, is_stuck, next_of_fleet_s
from servegym.simulator.fleet.routing import listen, signals_fit
from servegym.simulator.memory.kv_events import events_fit
from servegym.simulator.records.events import events_left
from servegym.simulator.records.statuses import (
    AT_CHECKS,
    DONE,
    GOING_ON,
    SIGNALS_FULL,
    STARTED,
    STUCK,
    TIMELINE_FULL,
    TOO_OFTEN,
)
from servegym.simulator.records.types import EVENT_DELIVERY, EVENT_KV_ARRIVAL, EVENT_SUSPENSION


@hook
def at_event(run, router_state):
    """Handle the first event, which is not the end of an iteration. Returns GOING_ON, or why the loop stops."""
    kind = run.events[0].kind
    if HAS_CLUSTER and kind == EVENT_KV_ARRIVAL:
        return receive_next(run, router_state)
    if HAS_TASKS and kind == EVENT_SUSPENSION:
        return suspend_next(run, router_state)
    if HAS_CLIENTS and kind == EVENT_DELIVERY:
        deliver_next(run, router_state)
    return GOING_ON


@hook
def before_end(run, router_state, e):
    """Called before the iteration of engine e ends. Returns GOING_ON, or which array may be too short for it."""
    engine = run.engines[e]
    if run.status[0].recording:
        lines = 3 * engine.batch_length + 1 + run.engines.shape[0]
        if HAS_DRAFTS:
            lines += engine.speculation.k * engine.batch_length
        if HAS_AHEAD:
            lines += engine.ahead.length + 1
        if events_left(run) < lines:
            return TIMELINE_FULL
    if HAS_CLUSTER and not signals_fit(run, router_state, engine.batch_length):
        return SIGNALS_FULL
    if HAS_CACHE and not events_fit(run, router_state, e):
        return SIGNALS_FULL
    return GOING_ON


@hook
def while_ending(run):
    """Called before an iteration ends: prefetch the memory that the next ends read."""
    if HAS_CLUSTER and run.engines.shape[0] > 1:
        prefetch_next(run)


@hook
def after_end(run, router_state, e, length, news, emitted):
    """Called after an iteration of engine e with `length` requests. Returns GOING_ON, or the error that ends the run.

    news: number of first and last tokens. emitted: number of tokens.
    """
    engine = run.engines[e]
    if HAS_CLUSTER:
        tell_router(run, router_state, e, running_entries(run, router_state, e), length, news, emitted)
    if HAS_LOCKSTEP and engine.lockstep.ranks > 1:
        make_group_due(run, engine)
    elif HAS_AHEAD and engine.ahead.length > 0:
        reason = start_formed(run, router_state, e, run.status[0].now_s)
        if reason != STARTED:
            return reason
    return GOING_ON


@hook
def after_events(run, router_state, stop_at):
    """Called after the events of an instant. Returns GOING_ON or why the loop stops, and the engines visited."""
    if HAS_CLUSTER:
        return apply_changes(run, router_state, stop_at)
    return GOING_ON, 0


@hook
def before_routing(run, router_state):
    """Called before requests are routed."""
    if HAS_CLUSTER:
        listen(run, router_state)
    if HAS_CLIENTS and run.status[0].front_end.delays == 1:
        enter_front_end(run, router_state)


@hook
def next_to_route(run, router_state, alone):
    """Return the held queue whose first request is routed next; READY: the next ready request; NO_REQUEST: none."""
    held_queue = NO_REQUEST
    if HAS_CLUSTER and not alone:
        held_queue = next_held_queue(run, router_state)
    if held_queue == NO_REQUEST and next_ready(run, router_state)[1] <= run.status[0].now_s:
        held_queue = READY
    return held_queue


@hook
def route_one(run, router_state, held_queue, alone, stop_at):
    """Route the first request of a held queue, or the next ready one. Returns GOING_ON, or why the loop stops."""
    if HAS_CLUSTER and not alone:
        return route_by_router(run, router_state, held_queue, stop_at)
    reason = route_to_only_engine(run, router_state)
    if HAS_CLUSTER and reason == GOING_ON and run.engines[0].drained == 1:
        count_service(run.status[0], router_state, run.engines[0], run.status[0].now_s)
    return reason


@hook
def forms_another(engine, reason):
    """Return whether the engine forms another batch at once. reason: what its start returned."""
    return HAS_AHEAD and reason == STARTED and engine.ahead.on == 1


@hook
def after_starts(run):
    """Called after all engines that can start have started."""
    if HAS_LOCKSTEP:
        end_together(run)


@hook
def next_arrival_s(run, router_state):
    """Return when the next request arrives at the front end or is ready; inf: never, unless another ends before."""
    next_s = next_to_send(run, router_state)[1]
    if HAS_CLIENTS and run.status[0].front_end.delays == 1:
        next_s = min(next_s, next_ready(run, router_state)[1])
    return next_s


@hook
def next_time_s(run, router_state, alone, known_s):
    """Return the time of the next instant; inf: none. known_s: the next event or arrival."""
    if HAS_CLUSTER:
        return next_of_fleet_s(run, router_state, alone, known_s)
    return known_s


@hook
def is_one_to_send(run, router_state):
    """Return whether any request is left to send."""
    return next_to_send(run, router_state)[0] != NO_TURN


@hook
def at_last(run, router_state, stop_at):
    """Called when there is no next instant. Returns DONE or STUCK."""
    if HAS_CLUSTER:
        scales = run.status[0].scaler.interval_s > 0.0 and not stop_at & AT_CHECKS
        return STUCK if is_stuck(run, router_state, scales) else DONE
    return DONE


@hook
def before_instant(run, router_state, known_s, next_s, until_s):
    """Called before the time is set to next_s. Returns GOING_ON, or why the loop stops."""
    if HAS_CLUSTER and is_asked_too_often(run, router_state, known_s, next_s, until_s):
        return TOO_OFTEN
    return GOING_ON
