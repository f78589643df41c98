"""What each request was doing when, in a recorded run: waiting, in prefill, decoding, on its way between engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from servegym.experiments.reports.told import told
from servegym.simulator.results import Result
from servegym.simulator.types import ARRIVAL, DEPARTED, EVICTED, FINISH, HELD, RECALLED, RECEIVED, SCHEDULED, TOKEN

if TYPE_CHECKING:
    import pandas as pd

WAITING, PREFILL, DECODE, TRANSFER, AT_ROUTER = PHASES = ("waiting", "prefill", "decode", "transfer", "held")
PHASE_STARTED_BY = {
    ARRIVAL: WAITING, EVICTED: WAITING, SCHEDULED: PREFILL, TOKEN: DECODE, DEPARTED: TRANSFER, RECEIVED: DECODE,
    HELD: AT_ROUTER, RECALLED: AT_ROUTER,
}  # fmt: skip


def phases(result: Result) -> pd.DataFrame:
    """One row a phase, by request and then by time: request, engine, phase, start_s, end_s.

    held: at the router, which sends it nowhere yet (engine -1). waiting: at an engine without KV memory, from its
    arrival or an eviction until it is in a batch. prefill: from then until a token is out. decode: from then until it
    finishes, is evicted or is taken back. A request runs in these two, also in iterations that leave it out and while
    its batch is suspended. transfer: from when it leaves the engine that prefilled it until its KV has arrived where
    it is decoded (engine: that one), with the time it waits for the router, for the link or for memory there. Phases
    of no length (evicted and admitted at one instant) are left out; those that had not ended when the run stopped end
    there.
    """
    import pandas as pd

    lines, _ = told(result)
    only = result.scenario.deployment.engines == 1  # what is taken back from the only engine waits there
    lines = lines[np.isin(lines["kind"], [*PHASE_STARTED_BY, FINISH])]
    # Held with its KV on an engine, a request is on its way; in another line, it is held as before.
    lines = lines[(lines["kind"] != HELD) | ~np.isin(_kind_before(lines), (DEPARTED, HELD))]
    # Later chunks and tokens change nothing, and neither does an eviction of what has run in no batch since the last.
    kind, before = lines["kind"], _kind_before(lines)
    waits = np.isin(before, (ARRIVAL, EVICTED, RECALLED) if only else (ARRIVAL, EVICTED))
    lines = lines[np.where(kind == SCHEDULED, waits, ~((kind == EVICTED) & waits))]
    lines = lines[(lines["kind"] != TOKEN) | (_kind_before(lines) == SCHEDULED)]

    ends_s = np.r_[lines["time_s"][1:], 0.0][: len(lines)]
    last = np.r_[lines["request"][1:] != lines["request"][:-1], True][: len(lines)]
    ends_s[last] = result.arrays.clock[0].now_s
    kept = (lines["kind"] != FINISH) & (ends_s > lines["time_s"])
    started_by = PHASE_STARTED_BY | ({RECALLED: WAITING} if only else {})
    engines = _engines(result, lines, last, only)
    return pd.DataFrame(
        {
            "request": lines["request"][kept],
            "engine": engines[kept].astype("i4"),
            "phase": [started_by[kind] for kind in lines["kind"][kept].tolist()],
            "start_s": lines["time_s"][kept],
            "end_s": ends_s[kept],
        }
    )


def _engines(result: Result, lines: np.ndarray, last: np.ndarray, only: bool) -> np.ndarray:
    """Where each phase is; of a transfer where it goes, or if that is not known where the KV is."""
    engines = lines["engine"].copy()
    following = np.r_[lines["engine"][1:], -1][: len(lines)]
    arrives = np.r_[lines["kind"][1:] == RECEIVED, False][: len(lines)] & ~last
    sent = result.arrays.requests["engine"][lines["request"]]  # of those who never arrived, where to
    goes = np.where(arrives, following, np.where(last & (sent >= 0), sent, engines))
    engines = np.where(lines["kind"] == DEPARTED, goes, engines)
    if not only:
        engines = np.where(np.isin(lines["kind"], (HELD, RECALLED)), -1, engines)
    return engines


def _kind_before(lines: np.ndarray) -> np.ndarray:
    """Kind of the line before, of the same request; -1 at its first."""
    before = np.full(len(lines), -1, "i4")
    same = lines["request"][1:] == lines["request"][:-1]
    before[1:][same] = lines["kind"][:-1][same]
    return before
