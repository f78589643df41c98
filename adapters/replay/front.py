"""The client's side of a replay: which request may be sent, and when (the rules of docs/sessions.md)."""

from __future__ import annotations

import dataclasses
import heapq
from collections import deque

import numpy as np

from servegym.errors import ReplayError
from servegym.simulator.features.session_dependencies import NO_TURN
from servegym.simulator.inputs.workload import Workload


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on unfinished work. clients: most sessions at once (a request that follows none begins one).
    max_concurrency: most requests at once. None: no limit. Raises ReplayError for a number below 1.
    """

    clients: int | None = None
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        for name in ("clients", "max_concurrency"):
            most = getattr(self, name)
            if most is not None and most < 1:
                raise ReplayError(f"{name} is {most}; it should be 1 or more")


@dataclasses.dataclass(frozen=True)
class Turn:
    """A request that may be sent. came_s: when it arrived here; due_s: when the limits let it be sent."""

    request: int
    came_s: float
    due_s: float


class Front:
    """Chooses the request to send next, and its time; the caller reports what has been sent and what has ended.

    Times are seconds since the replay began. A caller may be late: a request is due when it had arrived and the limits
    had room for it, even if the caller asks later.
    """

    def __init__(self, workload: Workload, limits: Limits):
        requests, turns = len(workload), workload.turns
        self._arrival_s, self._known = workload.table["arrival_s"], workload.known
        self._begun = 0  # how many of the requests that follow none have been sent
        self._thinking: list[tuple[float, int]] = []  # (arrival_s, request) of requests whose turn before has ended
        self._session = np.arange(requests) if turns is None else turns.session
        self._unfinished = np.bincount(self._session, minlength=requests)  # requests of a session, at its first one
        self._followers: dict[int, list[tuple[float, int]]] = {}
        if turns is not None:
            for request in np.flatnonzero(turns.after != NO_TURN).tolist():
                follower = float(turns.think_s[request]), request
                self._followers.setdefault(int(turns.after[request]), []).append(follower)
        # Free places, by the time since which they are free: each unfinished session, and each request, takes one.
        self._for_sessions, self._for_requests = (
            deque([0.0] * (requests if most is None else min(most, requests)))
            for most in (limits.clients, limits.max_concurrency)
        )

    def next(self) -> Turn | None:
        """Return the request to send next unless another ends before; None: there is none."""
        if not self._for_requests:
            return None
        found: Turn | None = None
        free_s = self._for_requests[0]
        if self._begun < self._known and self._for_sessions:
            came_s = float(self._arrival_s[self._begun])
            found = Turn(self._begun, came_s, max(came_s, free_s, self._for_sessions[0]))
        if self._thinking and (found is None or self._thinking[0][0] < found.came_s):
            came_s, request = self._thinking[0]
            found = Turn(request, came_s, max(came_s, free_s))
        return found

    def send(self, turn: Turn) -> None:
        """Record that the turn given by `next` has been sent."""
        self._for_requests.popleft()
        if turn.request < self._known:
            self._begun += 1
            self._for_sessions.popleft()
        else:
            heapq.heappop(self._thinking)

    def end(self, request: int, now_s: float) -> None:
        """Record that a request has ended, successfully or not. now_s: not before the last recorded end."""
        self._for_requests.append(now_s)
        session = self._session[request]
        self._unfinished[session] -= 1
        if self._unfinished[session] == 0:
            self._for_sessions.append(now_s)
        for think_s, follower in self._followers.get(request, ()):
            heapq.heappush(self._thinking, (now_s + think_s, follower))
