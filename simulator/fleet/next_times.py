"""The time of a fleet's next instant, and whether a run without one is stuck."""

import numpy as np

from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.fleet.routing import could_take, is_taken
from servegym.simulator.records.requests import all_ended
from servegym.simulator.records.types import MOST_CHECKS


@inlined_kernel
def next_of_fleet_s(run, router_state, alone, known_s):
    """Return the time of the next instant; inf: none. known_s: the next event or arrival."""
    status, next_s = run.status[0], next_change_s(run, router_state, known_s)
    if alone:
        return next_s
    next_s = min(next_s, next_heard_s(run.status[0], router_state))
    if next_s < np.inf:
        return min(next_s, status.scaler.next_check_s)
    if status.router.held > 0 and status.router.final_retry == 0:  # ask the scaler and the router a last time
        status.router.final_retry, status.router.held_dirty, status.router.held_cursor = 1, 1, 0
        return max(status.now_s, status.scaler.next_check_s) if status.scaler.interval_s > 0.0 else status.now_s
    believed_s = latest_end_s(router_state.known.snapshots)
    if status.router.held > 0 and believed_s > status.now_s:  # the router may believe that an idle engine is busy
        status.router.held_dirty, status.router.held_cursor = 1, 0
        return min(believed_s, status.scaler.next_check_s)
    return np.inf


@inlined_kernel
def next_change_s(run, router_state, known_s):
    """Return the earliest of known_s, the next incident, and the next end of a start-up or role change."""
    status, next_s = run.status[0], known_s
    if not all_ended(run):
        next_s = min(next_s, status.scaler.next_ready_s)
        if status.next_incident < router_state.incidents.shape[0]:
            next_s = min(next_s, router_state.incidents[status.next_incident].time_s)
    return next_s


@inlined_kernel
def next_heard_s(status, router_state):
    """Return when the router next hears a signal while it holds requests; inf: never."""
    if status.router.held > 0 and status.signals.heard < status.signals.sent:
        return router_state.signals[status.signals.heard].time_s + status.signals.delay_s
    return np.inf


@kernel
def is_asked_too_often(run, router_state, known_s, next_s, until_s):
    """Return whether the scaler would be asked over MOST_CHECKS times before any other event, or its interval is lost
    in rounding. known_s: the next event or arrival. next_s: the next instant.
    """
    status = run.status[0]
    scaler = status.scaler
    if next_s != scaler.next_check_s:
        return False
    then_s = min(next_change_s(run, router_state, known_s), next_heard_s(status, router_state))
    if then_s == np.inf:  # the last two cases of next_of_fleet_s
        then_s = latest_end_s(router_state.known.snapshots)
    waits_s = min(then_s, until_s) - scaler.next_check_s
    lost = scaler.next_check_s + scaler.interval_s == scaler.next_check_s
    return waits_s > 0.0 and (lost or waits_s > MOST_CHECKS * scaler.interval_s)


@kernel
def latest_end_s(snapshots):
    """Return when all engines have ended their iterations, as far as the router knows."""
    last_s = -np.inf
    for e in range(snapshots.shape[0]):
        last_s = max(last_s, snapshots[e].busy_until_s)
    return last_s


@kernel
def is_stuck(run, router_state, scales):
    """Return whether the first request of a held queue could run on an engine.

    scales: engines count too that the scaler could open, start, or give another role.
    """
    tiers, snapshots = router_state.known.tiers, router_state.known.snapshots
    for held_queue in range(tiers.shape[0] - 1):
        if tiers[held_queue].waiting == 0:
            continue
        request = run.requests[tiers[held_queue].first]
        if is_taken(snapshots, request):
            return True
        for e in range(run.engines.shape[0]):
            engine = run.engines[e]
            can_change = snapshots[e].up == 1 and not np.isnan(engine.role_change_s)
            if scales and engine.drained == 0 and (can_change or could_take(snapshots[e], request)):
                return True
    return False
