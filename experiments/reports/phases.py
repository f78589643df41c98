"""What each request was doing when, in a recorded run: waiting, in prefill, decoding, on its way between engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from servegym.experiments.reports.iterations import timeline_lines
from servegym.simulator.results import Result
from servegym.simulator.types import ARRIVAL, DEPARTED, EVICTED, FINISH, RECEIVED, SCHEDULED, TOKEN

if TYPE_CHECKING:
    import pandas as pd

WAITING, PREFILL, DECODE, TRANSFER = PHASES = ("waiting", "prefill", "decode", "transfer")
PHASE_STARTED_BY = {
    ARRIVAL: WAITING, EVICTED: WAITING, SCHEDULED: PREFILL, TOKEN: DECODE, DEPARTED: TRANSFER, RECEIVED: DECODE,
}  # fmt: skip


def phases(result: Result) -> pd.DataFrame:
    """One row a phase, by request and then by time: request, engine, phase, start_s, end_s.

    waiting: without KV memory, from its arrival or an eviction until it is in a batch. prefill: from then until a token
    is out. decode: from then until it finishes or is evicted. A request runs in these two, also in iterations
    that leave it out. transfer: from when it leaves the engine that prefilled it until its KV has arrived where it is
    decoded (engine: that one), with the time it waits for the link or for memory there. Phases of no length (evicted
    and admitted at one instant) are left out; those that had not ended when the run stopped end there.
    """
    import pandas as pd

    lines = timeline_lines(result)
    lines = lines[lines["request"] >= 0]
    lines = lines[np.argsort(lines["request"], kind="stable")]
    # Later chunks and tokens change nothing, and neither does an eviction of what has run in no batch since the last.
    kind, before = lines["kind"], _kind_before(lines)
    waits = (before == ARRIVAL) | (before == EVICTED)
    lines = lines[np.where(kind == SCHEDULED, waits, ~((kind == EVICTED) & waits))]
    lines = lines[(lines["kind"] != TOKEN) | (_kind_before(lines) == SCHEDULED)]

    ends_s = np.r_[lines["time_s"][1:], 0.0][: len(lines)]
    engines = np.where(
        lines["kind"] == DEPARTED, result.arrays.outcomes["decode_engine"][lines["request"]], lines["engine"]
    )
    last = np.r_[lines["request"][1:] != lines["request"][:-1], True][: len(lines)]
    ends_s[last] = result.arrays.clock[0].now_s
    kept = (lines["kind"] != FINISH) & (ends_s > lines["time_s"])
    lines = lines[kept]
    return pd.DataFrame(
        {
            "request": lines["request"],
            "engine": engines[kept].astype("i4"),
            "phase": [PHASE_STARTED_BY[kind] for kind in lines["kind"].tolist()],
            "start_s": lines["time_s"],
            "end_s": ends_s[kept],
        }
    )


def _kind_before(lines: np.ndarray) -> np.ndarray:
    """Kind of the line before, of the same request; -1 at its first."""
    before = np.full(len(lines), -1, "i4")
    same = lines["request"][1:] == lines["request"][:-1]
    before[1:][same] = lines["kind"][:-1][same]
    return before
