"""The phases of each request in a recorded run: waiting, prefill, decode, transfer, held at the router."""

from __future__ import annotations

import numpy as np
import pandas as pd

from servegym.evaluation.reports.timeline_events import request_events
from servegym.simulator.records.types import (
    ARRIVAL,
    DEPARTED,
    EVICTED,
    FINISH,
    HELD,
    RECALLED,
    RECEIVED,
    REFUSED,
    SCHEDULED,
    TOKEN,
)
from servegym.simulator.runs.results import Result

WAITING, PREFILL, DECODE, TRANSFER, AT_ROUTER = PHASES = ("waiting", "prefill", "decode", "transfer", "held")
PHASE_STARTED_BY = {
    ARRIVAL: WAITING, EVICTED: WAITING, SCHEDULED: PREFILL, TOKEN: DECODE, DEPARTED: TRANSFER, RECEIVED: DECODE,
    HELD: AT_ROUTER, RECALLED: AT_ROUTER,
}  # fmt: skip
ENDS = (FINISH, REFUSED)


def phases(result: Result) -> pd.DataFrame:
    """Return a row for each phase, by request and then by time: request, engine, phase, start_s, end_s.

    held: at the router (engine -1) until it is sent or refused. waiting: at an engine without KV memory, from its
    arrival or an eviction until it is in a batch. prefill: from then until a token is emitted. decode: from then until
    it finishes, is evicted or is taken back. Prefill and decode include iterations that leave the request out, and
    suspensions. transfer: from the end of its prefill until its KV has arrived at the decode engine (engine: that one),
    including waits for the router, the link and memory. Phases of no length (evicted and admitted at one instant) are
    left out; those that are under way when the run stops end there.
    """
    events, _ = request_events(result)
    only = result.scenario.deployment.engines == 1  # requests taken back from the only engine wait there
    events = events[np.isin(events["kind"], [*PHASE_STARTED_BY, *ENDS])]
    # A request held with its KV on an engine is in transfer; moving to another held queue changes nothing.
    events = events[(events["kind"] != HELD) | ~np.isin(_kind_before(events), (DEPARTED, HELD))]
    # Later chunks and tokens change nothing, nor does an eviction of a request that was in no batch since the last one.
    kind, before = events["kind"], _kind_before(events)
    waits = np.isin(before, (ARRIVAL, EVICTED, RECALLED) if only else (ARRIVAL, EVICTED))
    events = events[np.where(kind == SCHEDULED, waits, ~((kind == EVICTED) & waits))]
    events = events[(events["kind"] != TOKEN) | (_kind_before(events) == SCHEDULED)]

    ends_s = np.r_[events["time_s"][1:], 0.0][: len(events)]
    last = np.r_[events["request"][1:] != events["request"][:-1], True][: len(events)]
    ends_s[last] = result.arrays.status[0].now_s
    kept = ~np.isin(events["kind"], ENDS) & (ends_s > events["time_s"])
    started_by = PHASE_STARTED_BY | ({RECALLED: WAITING} if only else {})
    engines = _engines(result, events, last, only)
    return pd.DataFrame(
        {
            "request": events["request"][kept],
            "engine": engines[kept].astype("i4"),
            "phase": [started_by[kind] for kind in events["kind"][kept].tolist()],
            "start_s": events["time_s"][kept],
            "end_s": ends_s[kept],
        }
    )


def _engines(result: Result, events: np.ndarray, last: np.ndarray, only: bool) -> np.ndarray:
    """Return int[events]: the engine of each phase; of a transfer its destination, or its source if that is unknown."""
    engines = events["engine"].copy()
    following = np.r_[events["engine"][1:], -1][: len(events)]
    arrives = np.r_[events["kind"][1:] == RECEIVED, False][: len(events)] & ~last
    sent = result.arrays.requests["engine"][events["request"]]  # destinations of transfers under way
    goes = np.where(arrives, following, np.where(last & (sent >= 0), sent, engines))
    engines = np.where(events["kind"] == DEPARTED, goes, engines)
    if not only:
        engines = np.where(np.isin(events["kind"], (HELD, RECALLED)), -1, engines)
    return engines


def _kind_before(events: np.ndarray) -> np.ndarray:
    """Return int[events]: the kind of the request's previous event; -1 at its first."""
    before = np.full(len(events), -1, "i4")
    same = events["request"][1:] == events["request"][:-1]
    before[1:][same] = events["kind"][:-1][same]
    return before
