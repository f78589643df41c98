"""What became of each request that was sent: its tokens' times, and how it ended."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from servegym.adapters.replay.front import Limits

FINISHED = "finished"  # every token that was asked for came
CUT_OFF = "cut off"  # the stream ended in order, with fewer tokens
REFUSED = "refused"  # the answer was an HTTP error
FAILED = "failed"  # no connection, an error inside the stream, or a stream that broke off
TIMED_OUT = "timed out"
INTERRUPTED = "interrupted"  # the replay was stopped while it was served
NOT_SENT = "not sent"  # the replay was stopped before its time
STATUSES = (FINISHED, CUT_OFF, REFUSED, FAILED, TIMED_OUT, INTERRUPTED, NOT_SENT)


@dataclasses.dataclass
class Record:
    """One request. Times in seconds since the replay began; nan: it has not happened.

    due_s: when it should be sent. sent_s: when it was. token_s: of each token, as it was received; tokens that came
    together have the same time. prompt_tokens: as the server counts them (None: it did not say). came_s: when it could
    have been sent had nothing kept it. ended_s: when its answer was over, or it was given up.
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
        """How late it was sent (nan: never)."""
        return self.sent_s - self.due_s

    def end(self, status: str, reason: str | None = None) -> None:
        self.status, self.reason = status, reason


@dataclasses.dataclass(frozen=True)
class Replayed:
    """A replay: the records in the order of the workload, and how long it took in seconds.

    interrupted: whether it was stopped before its end. limits: to what was under way.
    """

    records: Sequence[Record]
    wall_s: float
    interrupted: bool = False
    limits: Limits = dataclasses.field(default_factory=Limits)

    def counts(self) -> dict[str, int]:
        """How many requests ended in each way."""
        statuses = [record.status for record in self.records]
        return {status: statuses.count(status) for status in STATUSES}

    def reasons(self, most: int = 5) -> dict[str, int]:
        """The commonest reasons of those that did not finish, and how many had them."""
        found: dict[str, int] = {}
        for record in self.records:
            if record.reason is not None:
                found[record.reason] = found.get(record.reason, 0) + 1
        return dict(sorted(found.items(), key=lambda item: -item[1])[:most])
