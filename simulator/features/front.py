"""The front: arrived requests wait here until they may be sent. docs/sessions.md.

Requests with a given arrival wait in the order of the workload, from `status.next_arrival` on. Requests that follow
another wait in a heap of their arrivals.
"""

from __future__ import annotations

import numpy as np

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.features import HAS_CLIENTS
from servegym.simulator.features.session_dependencies import NO_TURN, SessionDependencies
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.events import pop, push
from servegym.simulator.records.requests import arrive_now
from servegym.simulator.records.state import SimulationState
from servegym.simulator.records.types import FRONT, NO_LIMIT


def front_of(
    requests: int, turns: SessionDependencies | None, clients: int | None, max_concurrency: int | None
) -> np.ndarray:
    """Return FRONT[1] at the start of a run."""
    front = np.zeros(1, FRONT)
    front["known"] = requests if turns is None else np.count_nonzero(turns.after < 0)
    front["most_sessions"] = NO_LIMIT if clients is None else clients
    front["most_requests"] = NO_LIMIT if max_concurrency is None else max_concurrency
    front["depends"] = turns is not None or clients is not None or max_concurrency is not None
    return front


def has_arrived(run: SimulationState) -> np.ndarray:
    """Return bool[requests]: which have been sent or, of those that follow another, are being routed."""
    status, at = run.status[0], np.arange(len(run.requests))
    return (at < status.next_arrival) | ((at >= status.front.known) & np.isfinite(run.requests["arrival_s"]))


def came_s(run: SimulationState, workload: Workload) -> np.ndarray:
    """Return float64[requests], s: when each arrived at the front; NaN: not yet."""
    if workload.turns is None:
        return workload.table["arrival_s"].copy()
    ended_s = run.outcomes["finish_s"][workload.turns.after] + run.status[0].front_end.way_back_s
    after_s = ended_s + workload.turns.think_s
    return np.where(workload.turns.after == NO_TURN, workload.table["arrival_s"], after_s)


@kernel
def next_to_send(run, router_state):
    """Return the request that is sent next if no other ends before, and when it arrives; NO_TURN, inf: none."""
    status, r, at_s = run.status[0], NO_TURN, np.inf
    front = status.front
    if HAS_CLIENTS and front.requests >= front.most_requests:
        return r, at_s
    if status.next_arrival < front.known and not (HAS_CLIENTS and front.sessions >= front.most_sessions):
        r, at_s = status.next_arrival, run.outcomes[status.next_arrival].ready_s
    if HAS_CLIENTS and front.events > 0 and router_state.thinking[0].time_s < at_s:
        r, at_s = router_state.thinking[0].index, router_state.thinking[0].time_s
    return r, at_s


@kernel
def arrive_at_front(run, r):
    """Set the arrival of request r to now, if arrivals depend on completions."""
    status = run.status[0]
    if HAS_CLIENTS and status.front.depends == 1:
        arrive_now(run.requests[r], run.outcomes[r], status.now_s, status.front_end.way_back_s)


@kernel
def leave_front(run, router_state, r):
    """Remove request r, the next to send, from the front."""
    status = run.status[0]
    status.front.requests += 1
    if not HAS_CLIENTS or r < status.front.known:
        status.next_arrival += 1
        status.front.sessions += 1
    else:
        pop(router_state.thinking, status.front)


@kernel
def end_in_engine(run, router_state, r, out_s):
    """Count that request r's last token leaves at out_s; return its session's gain if it was the session's last."""
    following = router_state.following
    if not HAS_CLIENTS or following.shape[0] == 0:
        return 0.0
    first = following[r].session
    session = following[first]
    session.in_engines -= 1
    if session.in_engines > 0 or out_s > run.requests[first].arrival_s + session.session_slo_s:
        return 0.0
    run.outcomes[first].gain += session.session_gain
    return session.session_gain


@kernel
def end_request(run, router_state, r, now_s):
    """End request r for its client: requests that follow it arrive after their think times."""
    front, following = run.status[0].front, router_state.following
    front.requests -= 1
    if not HAS_CLIENTS or following.shape[0] == 0:
        front.sessions -= 1
        return
    session = following[following[r].session]
    session.unfinished -= 1
    if session.unfinished == 0:
        front.sessions -= 1
    request, outcome, follower = run.requests[r], run.outcomes[r], following[r].first
    computed = request.prompt_tokens - outcome.cached_tokens + outcome.output_tokens
    while follower != NO_TURN:
        later = run.requests[follower]
        later.session_tokens = request.session_tokens + computed
        later.session_arrival_s = request.session_arrival_s
        later.session_deadline_s = request.session_arrival_s + following[follower].due_s
        push(router_state.thinking, front, now_s + following[follower].think_s, 0, follower)
        follower = following[follower].next
