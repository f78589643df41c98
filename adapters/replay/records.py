"""Records of a replay: for each request, the times of its tokens and how it ended."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from servegym.adapters.replay.front import Limits

FINISHED = "finished"  # all requested tokens came
CUT_OFF = "cut off"  # the stream ended properly, with fewer tokens
REFUSED = "refused"  # the answer was an HTTP error
FAILED = "failed"  # no connection, an error inside the stream, or a stream that broke off
TIMED_OUT = "timed out"
INTERRUPTED = "interrupted"  # the replay was stopped while it was served
NOT_SENT = "not sent"  # the replay was stopped before it was due
STATUSES = (FINISHED, CUT_OFF, REFUSED, FAILED, TIMED_OUT, INTERRUPTED, NOT_SENT)


@dataclasses.dataclass
class Record:
    """The record of a request. Times are in seconds since the replay began; nan: it has not happened.

    due_s: when it should be sent. sent_s: when it was. token_s: when each token was received; tokens received together
    have the same time. prompt_tokens: as the server counts them (None: it did not report). came_s: when it would have
    been sent without limits. ended_s: when its answer ended or it was given up.
    """

    due_s: float = math.nan
    sent_s: float = math.nan
    token_s: list[float] = dataclasses.field(default_factory=list)
    status: str = NOT_SENT
    reason: str | None = None
    http_status: int | None = None
    prompt_tokens: int | None = None
    came_s: float = math.nan
    ended_s: float = math.nan

    @property
    def lateness_s(self) -> float:
        """sent_s - due_s; nan if it was not sent."""
        return self.sent_s - self.due_s

    def end(self, status: str, reason: str | None = None) -> None:
        self.status, self.reason = status, reason


@dataclasses.dataclass(frozen=True)
class Replayed:
    """A replay: its records in the order of the workload, and its duration in seconds.

    interrupted: whether it was stopped before its end. limits: on sessions and requests at once.
    """

    records: Sequence[Record]
    wall_s: float
    interrupted: bool = False
    limits: Limits = dataclasses.field(default_factory=Limits)

    def counts(self) -> dict[str, int]:
        """Count the requests by how they ended."""
        statuses = [record.status for record in self.records]
        return {status: statuses.count(status) for status in STATUSES}

    def reasons(self, most: int = 5) -> dict[str, int]:
        """Return the most common reasons for which requests did not finish, with the number of requests."""
        found: dict[str, int] = {}
        for record in self.records:
            if record.reason is not None:
                found[record.reason] = found.get(record.reason, 0) + 1
        return dict(sorted(found.items(), key=lambda item: -item[1])[:most])
