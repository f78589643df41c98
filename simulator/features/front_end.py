"""The front end: HTTP, tokenising and streaming between clients and engines. docs/feature_rules.md.

REQUEST.arrival_s and deadlines are earlier by the response latency (`way_back_s`). So a token is in time by the
client's deadline if it leaves by the deadline here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.features import HAS_CLIENTS
from servegym.simulator.features.front import arrive_at_front, end_request, leave_front, next_to_send
from servegym.simulator.features.session_dependencies import NO_TURN
from servegym.simulator.records.events import pop, push
from servegym.simulator.records.key_values import (
    NONE,
    YES_OR_NO,
    check_flag,
    check_keys,
    check_time,
    described,
    key_values,
)
from servegym.simulator.records.types import EVENT_DELIVERY, FRONT_END


@dataclasses.dataclass(frozen=True)
class FrontEnd:
    """Latencies between clients and engines. Raises DeploymentError for an invalid time."""

    request_s: float = described(0.0, "latency of each request before its engine gets it", "s")
    prompt_s_per_token: float = described(0.0, "the same for each token of its prompt", "s/token")
    streamed_s_per_token: float = described(0.0, "latency of each output token after its engine emits it", "s/token")
    back_s: float = described(0.0, "further latency until the client has the token; occupies no process", "s")
    one_process: bool = described(False, "one process does all of this but `back_s`, one thing at a time")

    def __post_init__(self) -> None:
        for name in TIMES:
            check_time("front end", name, getattr(self, name))
        check_flag("front end", "one_process", self.one_process)

    @property
    def label(self) -> str:
        """The settings as a text that `front_end_of` reads."""
        texts = [f"{name}={float(getattr(self, name))!r}" for name in TIMES if getattr(self, name) > 0]
        return ",".join(texts + ["one_process=yes"] * bool(self.one_process)) or NONE

    @property
    def takes_time(self) -> bool:
        return any(getattr(self, name) > 0 for name in TIMES)

    @property
    def way_back_s(self) -> float:
        """Response latency: from a token's leaving the front end to its arrival at the client, in s."""
        return self.streamed_s_per_token + self.back_s

    @property
    def is_one_process(self) -> bool:
        """Whether work may wait for its one process."""
        return bool(self.one_process and self.request_s + self.prompt_s_per_token + self.streamed_s_per_token > 0)

    @property
    def delays_requests(self) -> bool:
        """Whether a request may be ready later than it was sent."""
        return self.request_s + self.prompt_s_per_token > 0 or self.is_one_process

    def to_array(self) -> np.ndarray:
        """Return FRONT_END[1] at the start of a run."""
        row = np.zeros(1, FRONT_END)
        row["delays"], row["one_process"], row["way_back_s"] = (
            self.delays_requests,
            self.is_one_process,
            self.way_back_s,
        )
        for name in ("request_s", "prompt_s_per_token", "streamed_s_per_token"):
            row[name] = getattr(self, name)
        return row


FIELDS = tuple(field.name for field in dataclasses.fields(FrontEnd))
TIMES = tuple(name for name in FIELDS if name != "one_process")


def front_end_of(given: str | Mapping[str, Any]) -> FrontEnd:
    """Read a front end from "key=value,key=value", "none", or a mapping. Raises DeploymentError."""
    if isinstance(given, Mapping):
        check_keys(given, "front end", FIELDS)
        return FrontEnd(**given)
    found: dict[str, Any] = {}
    pairs = filter(None, ("" if given == NONE else given).split(","))
    for key, value in key_values(pairs, f"front end {given!r}", FIELDS, DeploymentError, f" ({NONE}: there is none)"):
        try:
            found[key] = YES_OR_NO[value] if key == "one_process" else float(value)
        except (KeyError, ValueError):
            expected = "yes or no" if key == "one_process" else "a number"
            raise DeploymentError(f"front end {given!r}: {key} is {value!r}; it should be {expected}") from None
    return FrontEnd(**found)


NO_FRONT_END = FrontEnd()


@kernel
def enter_front_end(run, router_state):
    """Send the requests that have arrived into the front end, which computes when each is ready."""
    status = run.status[0]
    front_end = status.front_end
    r, at_s = next_to_send(run, router_state)
    while at_s <= status.now_s:
        leave_front(run, router_state, r)
        arrive_at_front(run, r)
        begin_s = status.now_s
        if front_end.one_process:
            begin_s = max(begin_s, front_end.free_s)
        ready_s = begin_s + (front_end.request_s + run.requests[r].prompt_tokens * front_end.prompt_s_per_token)
        front_end.free_s = ready_s
        run.outcomes[r].ready_s = ready_s
        push(router_state.entering, front_end, ready_s, front_end.sent, r)
        front_end.sent += 1
        r, at_s = next_to_send(run, router_state)


@kernel
def next_ready(run, router_state):
    """Return the request that is ready next if no other ends before, and when; NO_TURN, inf: none."""
    front_end, entering = run.status[0].front_end, router_state.entering
    if not HAS_CLIENTS or front_end.delays == 0:
        return next_to_send(run, router_state)
    if front_end.events > 0:
        return entering[0].index, entering[0].time_s
    return NO_TURN, np.inf


@kernel
def leave_front_end(run, router_state, r):
    """Remove request r, the next that is ready, from the front end; it goes to an engine."""
    if HAS_CLIENTS and run.status[0].front_end.delays == 1:
        pop(router_state.entering, run.status[0].front_end)
    else:
        leave_front(run, router_state, r)


@kernel
def stream_started(front_end, now_s):
    """Return when a token that an engine emits now leaves for the client."""
    if not HAS_CLIENTS or front_end.one_process == 0:
        return now_s
    at_s = max(now_s, front_end.free_s)
    front_end.free_s = at_s + front_end.streamed_s_per_token
    return at_s


@kernel
def deliver_last(run, router_state, r, at_s):
    """End request r when the client has its last token, which leaves at at_s."""
    status = run.status[0]
    at_s += status.front_end.way_back_s
    if HAS_CLIENTS and status.front.depends == 1 and at_s > status.now_s:
        push(run.events, status, at_s, EVENT_DELIVERY, r)
    else:
        end_request(run, router_state, r, at_s)


@kernel
def deliver_next(run, router_state):
    """Handle the first event, a delivery: a client has the last token of a request."""
    r = run.events[0].index
    pop(run.events, run.status[0])
    end_request(run, router_state, r, run.status[0].now_s)


@kernel
def deliver_all(run, router_state):
    """Handle all remaining deliveries, after all requests have finished."""
    status = run.status[0]
    while status.events > 0:
        deliver_next(run, router_state)
