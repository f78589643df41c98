"""Role changes of engines between prefill and decode: they finish their requests first.

docs/cluster_rules.md, "Changing roles".
"""

import numpy as np

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.fleet.incidents import has_no_work
from servegym.simulator.fleet.routing import apply_signal, catch_up, clear_snapshot
from servegym.simulator.fleet.startup import first_ready_s, show_state
from servegym.simulator.records.events import note
from servegym.simulator.records.types import ROLE, ROLE_DECODE, ROLE_PREFILL


@kernel
def may_have(engine, role):
    """Return whether a scaler may give an engine this role: the same, or prefill or decode if roles can change."""
    if role == engine.next_role:
        return True
    return not np.isnan(engine.role_change_s) and ROLE_PREFILL <= role <= ROLE_DECODE


@kernel
def give_role(run, router_state, e, role):
    """Begin a role change of engine e, which takes no requests until it is over; its present role cancels one."""
    engine, status = run.engines[e], run.status[0]
    if role == engine.next_role:
        return
    engine.next_role = role
    engine.role_ready_s = 0.0 if role == engine.role else np.inf
    status.scaler.draining += 1 if role != engine.role else -1
    status.scaler.next_ready_s = first_ready_s(run.engines)
    show_state(engine, router_state.known.snapshots[e])
    status.router.held_dirty, status.router.held_cursor = 1, 0


@kernel
def change_roles(run, router_state, now_s):
    """Change the roles of engines that have a role change begun and no requests left, by index."""
    for e in range(run.engines.shape[0]):
        engine = run.engines[e]
        if engine.role != engine.next_role and has_no_work(router_state, engine):
            change_role(run, router_state, e, now_s)
    run.status[0].scaler.next_ready_s = first_ready_s(run.engines)


@kernel
def change_role(run, router_state, e, now_s):
    """Give engine e, which is empty, its new role; it takes requests after role_change_s."""
    engine, status, snapshot = run.engines[e], run.status[0], router_state.known.snapshots[e]
    hear_all(run, router_state, e, now_s)
    clear_snapshot(run, router_state, e, now_s)
    engine.role = snapshot.role = engine.next_role
    ready_s = now_s + engine.role_change_s
    engine.role_ready_s = ready_s if ready_s > now_s else 0.0
    engine.totals.role_changes += 1
    show_state(engine, snapshot)
    status.scaler.draining -= 1
    status.scaler.starts += 1
    status.router.held_dirty, status.router.held_cursor, status.router.final_retry = 1, 0, 0
    if status.recording:
        note(run, ROLE, e, -1, engine.role, 0.0)


@kernel
def hear_all(run, router_state, e, now_s):
    """Apply all signals of engine e at once, also those that the router has not heard of yet."""
    signals = run.status[0].signals
    catch_up(run, router_state, now_s)
    for k in range(signals.heard, signals.sent):
        signal = router_state.signals[k]
        if signal.engine == e:
            prompt_tokens = run.requests[signal.request].prompt_tokens
            apply_signal(router_state.known, e, signal.request, prompt_tokens, signal.tokens, signal.kind, now_s)
