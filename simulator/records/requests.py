"""Functions of a request's record: its arrival, its tokens, its next deadline (docs/simulation.md, "Words")."""

from typing import Any

import numpy as np

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.events import note
from servegym.simulator.records.types import REFUSED


def begin_requests(requests: Any) -> None:
    """Set deadlines from arrivals and SLOs, and all other fields to "nothing yet". requests: REQUEST[...] or one."""
    by_ttlt = np.isfinite(requests["ttlt_slo_s"])
    requests["first_deadline_s"] = requests["arrival_s"] + np.where(
        by_ttlt, requests["ttlt_slo_s"], requests["ttft_slo_s"]
    )
    requests["session_arrival_s"] = requests["arrival_s"]
    requests["session_deadline_s"] = requests["first_deadline_s"]
    requests["token_interval_s"] = np.where(by_ttlt, 0.0, requests["tpot_slo_s"])
    requests["first_token_s"] = np.nan
    for name in ("engine", "task", "session", "session_engine"):
        requests[name] = -1


@kernel
def arrive_now(request, outcome, now_s, response_s):
    """Set the arrival, minus the response latency, and the deadlines of a request whose time depended on another."""
    outcome.ready_s = now_s
    request.arrival_s = now_s - response_s
    slo_s = request.ttlt_slo_s if request.ttlt_slo_s < np.inf else request.ttft_slo_s
    request.first_deadline_s = request.arrival_s + slo_s
    if request.turn == 0:
        request.session_arrival_s, request.session_deadline_s = request.arrival_s, request.first_deadline_s


@kernel
def all_ended(run):
    """Return whether each request of the run has finished or been refused."""
    return run.status[0].finished + run.status[0].refused == run.requests.shape[0]


@kernel
def count_refused(run, r):
    """Record that request r is refused now."""
    status = run.status[0]
    run.outcomes[r].refused_s = status.now_s
    status.refused += 1
    if status.recording:
        note(run, REFUSED, -1, r, 0, 0.0)


@kernel
def cached_of(request):
    """Return the tokens whose KV exists, in the engine or in host memory."""
    return request.computed_tokens + request.offloaded_tokens


@kernel
def processed_of(request):
    """Return the tokens whose KV exists, without those that a running batch still computes."""
    return max(0, cached_of(request) - request.in_flight_tokens)


@kernel
def left_of(request):
    """Return the tokens left to compute before the next output token: context - tokens whose KV exists."""
    return request.prompt_tokens + request.num_output_tokens - cached_of(request)


@kernel
def is_decoding(request):
    """Return whether the only token left to compute is its latest output token."""
    return request.num_output_tokens > 0 and left_of(request) == 1


@kernel
def next_deadline_s(request):
    """Return the deadline of the next token, in s of the run."""
    return request.first_deadline_s + request.num_output_tokens * request.token_interval_s
