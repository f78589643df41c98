"""The front end: HTTP, tokenising and streaming between clients and engines. docs/feature_rules.md.

REQUEST.arrival_s and the deadlines are set back by the way back of a token: times at which it sets out are compared
with them as those at which the client has it would be with the client's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.features import HAS_CLIENTS
from servegym.simulator.features.front import appear, end_request, leave_front, next_to_send
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
    """What a client sees beside the engine. Raises DeploymentError for what is no time, or too long."""

    request_s: float = described(0.0, "of each request, before an engine sees it", "s")
    prompt_s_per_token: float = described(0.0, "and of each token of its prompt", "s/token")
    streamed_s_per_token: float = described(0.0, "of each token, after it has come out of an engine", "s/token")
    back_s: float = described(0.0, "and until the client has it, for which nothing waits", "s")
    one_process: bool = described(False, "does all this but `back_s`, one thing after another")

    def __post_init__(self) -> None:
        for name in TIMES:
            check_time("front end", name, getattr(self, name))
        check_flag("front end", "one_process", self.one_process)

    @property
    def label(self) -> str:
        """As a text, which `front_end_of` reads."""
        said = [f"{name}={float(getattr(self, name))!r}" for name in TIMES if getattr(self, name) > 0]
        return ",".join(said + ["one_process=yes"] * bool(self.one_process)) or NONE

    @property
    def takes_time(self) -> bool:
        return any(getattr(self, name) > 0 for name in TIMES)

    @property
    def way_back_s(self) -> float:
        """From a token's setting out to the client's having it."""
        return self.streamed_s_per_token + self.back_s

    @property
    def is_one_process(self) -> bool:
        """Whether anything can wait for its one process."""
        return bool(self.one_process and self.request_s + self.prompt_s_per_token + self.streamed_s_per_token > 0)

    @property
    def delays_requests(self) -> bool:
        """Whether a request may be ready later than it is sent."""
        return self.request_s + self.prompt_s_per_token > 0 or self.is_one_process

    def to_array(self) -> np.ndarray:
        """FRONT_END[1], before anything has come."""
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
    """A front end from "key=value,key=value", "none", or a mapping. Raises DeploymentError."""
    if isinstance(given, Mapping):
        check_keys(given, "front end", FIELDS)
        return FrontEnd(**given)
    found: dict[str, Any] = {}
    pairs = filter(None, ("" if given == NONE else given).split(","))
    for key, value in key_values(pairs, f"front end {given!r}", FIELDS, DeploymentError, f" ({NONE}: there is none)"):
        try:
            found[key] = YES_OR_NO[value] if key == "one_process" else float(value)
        except (KeyError, ValueError):
            right = "yes or no" if key == "one_process" else "a number"
            raise DeploymentError(f"front end {given!r}: {key} is {value!r}; it should be {right}") from None
    return FrontEnd(**found)


NO_FRONT_END = FrontEnd()


@kernel
def take_in(run, router_state):
    """What is sent now is worked on, and will be ready when that is done."""
    status = run.status[0]
    front_end = status.front_end
    r, at_s = next_to_send(run, router_state)
    while at_s <= status.now_s:
        leave_front(run, router_state, r)
        appear(run, r)
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
    """The request that is ready next if nothing ends before, and when; NO_TURN, inf: there is none."""
    front_end, entering = run.status[0].front_end, router_state.entering
    if not HAS_CLIENTS or front_end.delays == 0:
        return next_to_send(run, router_state)
    if front_end.events > 0:
        return entering[0].index, entering[0].time_s
    return NO_TURN, np.inf


@kernel
def leave_front_end(run, router_state, r):
    """Request r, the next that is ready, goes to an engine."""
    if HAS_CLIENTS and run.status[0].front_end.delays == 1:
        pop(router_state.entering, run.status[0].front_end)
    else:
        leave_front(run, router_state, r)


@kernel
def stream_started(front_end, now_s):
    """When a token sets out that comes out of an engine now."""
    if not HAS_CLIENTS or front_end.one_process == 0:
        return now_s
    at_s = max(now_s, front_end.free_s)
    front_end.free_s = at_s + front_end.streamed_s_per_token
    return at_s


@kernel
def deliver_last(run, router_state, r, at_s):
    """The last token of request r sets out at a time: when the client has it, the request has ended."""
    status = run.status[0]
    at_s += status.front_end.way_back_s
    if HAS_CLIENTS and status.front.depends == 1 and at_s > status.now_s:
        push(run.events, status, at_s, EVENT_DELIVERY, r)
    else:
        end_request(run, router_state, r, at_s)


@kernel
def deliver_next(run, router_state):
    """The first event happens: a client has a last token."""
    r = run.events[0].index
    pop(run.events, run.status[0])
    end_request(run, router_state, r, run.status[0].now_s)


@kernel
def deliver_all(run, router_state):
    """All requests have finished: nothing happens any more, the last tokens arrive."""
    status = run.status[0]
    while status.events > 0:
        deliver_next(run, router_state)
