"""The table of requests that a live router's policy reads; rows are used in turn, and used again."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from servegym.simulator.records.fields import zeros
from servegym.simulator.records.requests import begin_requests
from servegym.simulator.records.types import OUTCOME, REQUEST

MOST_SESSIONS = 65536  # sessions whose last engine is remembered


@dataclasses.dataclass(frozen=True)
class RequestTerms:
    """The terms of a request.

    prompt_tokens: counted or estimated. ttft_slo_s, tpot_slo_s: in s; ttlt_slo_s: inf if the other two apply. priority:
    lower is more important. weight: gain of a token; first_weight: gain of the first one relative to a later one.
    predicted_output_tokens: NaN if not known. session: number of its session; -1: none. adapter: number of its LoRA
    adapter; 0: the model itself.
    """

    prompt_tokens: int
    ttft_slo_s: float
    tpot_slo_s: float
    ttlt_slo_s: float = math.inf
    priority: int = 0
    weight: float = 1.0
    first_weight: float = 1.0
    predicted_output_tokens: float = math.nan
    session: int = -1
    adapter: int = 0


class Rows:
    """REQUEST[rows], and data of rows that a policy does not see.

    A request gets the first free row after the one used last, so that a row is used again as late as possible.
    """

    def __init__(self, rows: int):
        self._next = 0
        self._sendings = 0
        self._session_engines: dict[int, int] = {}  # by session, the one sent longest ago first
        self.used = 0
        self.table = np.zeros(0, REQUEST)
        self._make(max(1, rows))
        self.chunks = np.zeros(0, "i4")  # of the prompt that is being routed
        self._chunks: dict[int, np.ndarray] = {}

    def _make(self, rows: int) -> None:
        """Enlarge the arrays to `rows` rows."""
        old: np.ndarray | None = self.table if self.used else None
        private = ("taken", "outcomes", "held_queue", "sent_number")
        before = {name: getattr(self, name) for name in private} if self.used else {}
        self.table = zeros(rows, REQUEST)
        self.taken, self.outcomes = np.zeros(rows, "?"), zeros(rows, OUTCOME)
        self.held_queue, self.sent_number = np.full(rows, -1, "i8"), np.zeros(rows, "i8")
        if old is not None:
            self.table[: len(old)] = old
            for name, values in before.items():
                getattr(self, name)[: len(old)] = values
        self.emitted, self.prompt = self.table["num_output_tokens"], self.table["prompt_tokens"]
        self.engine, self.first_token_s = self.table["engine"], self.table["first_token_s"]
        # Chunks of one prompt at a time; those of row r are chunks[offsets[r]:offsets[r + 1]].
        self.offsets = np.zeros(rows + 1, "i8")

    def take(self, now_s: float, asked: RequestTerms, chunks: Sequence[int]) -> int:
        """Take a row for a request that arrives now."""
        rows = len(self.table)
        if self.used == rows:
            self._next = rows
            self._make(2 * rows)
            rows *= 2
        r = self._next % rows
        while self.taken[r]:
            r = (r + 1) % rows
        self._next = r + 1
        self.used += 1
        self.taken[r] = True
        self.held_queue[r], self.outcomes[r].sent_tokens = -1, 0
        row = self.table[r]
        row.arrival_s = now_s
        row.first_token_gain, row.decode_token_gain = asked.weight * asked.first_weight, asked.weight
        row.prompt_tokens, row.num_output_tokens = asked.prompt_tokens, 0
        row.weight, row.priority = asked.weight, asked.priority
        row.ttft_slo_s, row.tpot_slo_s, row.ttlt_slo_s = asked.ttft_slo_s, asked.tpot_slo_s, asked.ttlt_slo_s
        row.predicted_output_tokens = asked.predicted_output_tokens
        begin_requests(row)
        row.session, row.adapter = asked.session, asked.adapter
        if len(chunks):
            self._chunks[r] = np.array(chunks, "i4")
        return r

    def count_sending(self, r: int, e: int) -> None:
        """Record that row r is sent to engine e, with a number in the order of sending."""
        self._sendings += 1
        self.sent_number[r] = self._sendings
        session = int(self.table[r].session)
        if session >= 0:
            self._session_engines.pop(session, None)  # it becomes the latest
            self._session_engines[session] = e
            if len(self._session_engines) > MOST_SESSIONS:
                del self._session_engines[next(iter(self._session_engines))]

    def session_engine(self, r: int) -> int:
        """Return the engine of the last request in the session of row r; -1: none is remembered."""
        return self._session_engines.get(int(self.table[r].session), -1)

    def give_back(self, r: int) -> None:
        """Free row r, whose request is gone."""
        self.taken[r] = False
        self.used -= 1
        self._chunks.pop(r, None)

    @contextlib.contextmanager
    def chunks_of(self, r: int) -> Iterator[None]:
        """Set `chunks` and `offsets` to the chunks of row r's prompt inside the with block."""
        if r not in self._chunks:
            yield
            return
        self.chunks = self._chunks[r]
        self.offsets[r + 1] = len(self.chunks)
        try:
            yield
        finally:
            self.offsets[r + 1] = 0
