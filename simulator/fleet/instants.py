"""Changes of a fleet at an instant: incidents, ends of start-ups, the scaler's moves, role changes."""

from servegym.simulator.compilation.kernels import inlined_kernel
from servegym.simulator.fleet.incidents import apply_incident
from servegym.simulator.fleet.roles import change_roles
from servegym.simulator.fleet.scaling import are_legal, ask_scaler, make_moves
from servegym.simulator.fleet.startup import end_loading
from servegym.simulator.records.events import events_left
from servegym.simulator.records.statuses import AT_CHECKS, BAD_MOVE, DECISION, GOING_ON, IN_VAIN, TIMELINE_FULL
from servegym.simulator.records.types import MOST_STARTS


@inlined_kernel
def apply_changes(run, router_state, stop_at):
    """Apply all changes that are due. Returns GOING_ON or why the loop stops, and how many engines it visited."""
    status, engines, looked_at = run.status[0], run.engines.shape[0], 0
    while status.next_incident < router_state.incidents.shape[0] and (
        router_state.incidents[status.next_incident].time_s <= status.now_s
    ):
        if status.recording and events_left(run) < 2 * run.requests.shape[0] + engines + 2:
            return TIMELINE_FULL, 0
        apply_incident(run, router_state, status.now_s)
    if status.scaler.next_ready_s <= status.now_s:
        if status.recording and events_left(run) < engines:
            return TIMELINE_FULL, 0
        end_loading(run, router_state, status.now_s)
    if status.scaler.next_check_s <= status.now_s:
        if status.recording and events_left(run) < 2 * run.requests.shape[0] + 3 * engines:
            return TIMELINE_FULL, 0
        if status.deciding_check == 0:
            ask_scaler(run, router_state, status.now_s)
            if stop_at & AT_CHECKS:
                status.deciding_check = 1
                return DECISION, 0
        status.deciding_check = 0
        if not are_legal(run, router_state):
            return BAD_MOVE, 0
        make_moves(run, router_state, status.now_s)
        if status.scaler.starts > MOST_STARTS and not stop_at & AT_CHECKS:
            return IN_VAIN, 0
        looked_at = engines
    if status.scaler.draining > 0:
        if status.recording and events_left(run) < engines:
            return TIMELINE_FULL, 0
        change_roles(run, router_state, status.now_s)
        looked_at = engines
    return GOING_ON, looked_at
