"""The iterations of a recorded run as a table: their times, batches and KV memory."""

from __future__ import annotations

import numpy as np
import pandas as pd

from servegym.evaluation.reports.memory import kv_blocks
from servegym.evaluation.reports.timeline_events import (
    computed_tokens,
    num_output_tokens,
    request_events,
    timeline_events,
)
from servegym.simulator.records.types import (
    BATCH_END,
    BATCH_START,
    EVICTED,
    FAILED,
    MOVED,
    OFF,
    POOL,
    RESUMED,
    RETURNED,
    SCHEDULED,
    SUSPENDED,
)
from servegym.simulator.runs.results import Result

ENDED, SUSPENSION, LOST, RUNNING = "ended", "suspended", "lost", "running"


def iterations(result: Result) -> pd.DataFrame:
    """Return a row for each iteration, in order of their starts.

    engine; start_s, end_s; ended (False: lost with its engine's requests, or running or suspended when the run stopped;
    end_s is then when it last ran); ran_s (end_s - start_s without suspensions); suspensions; estimated_s; queued
    (requests at the engine, including the batch); evicted (requests evicted for this batch); prefill_requests,
    decode_requests, prefill_tokens, decode_tokens; kv_blocks (in use when it started, including its own).
    """
    events = timeline_events(result)
    starts = events[events["kind"] == BATCH_START]
    table = pd.DataFrame({"engine": starts["engine"], "start_s": starts["time_s"]})
    ran = pieces(result)
    of = ran.groupby("iteration")
    table["end_s"] = of["end_s"].max()
    table["ended"] = of["how"].last() == ENDED
    table["ran_s"] = (ran["end_s"] - ran["start_s"]).groupby(ran["iteration"]).sum()
    table["suspensions"] = (ran["how"] == SUSPENSION).groupby(ran["iteration"]).sum()
    table["kv_blocks"] = _blocks_when_started(result, events)
    table["estimated_s"] = starts["value"]
    table["queued"] = starts["tokens"]
    table["evicted"] = _evicted_before(events)

    scheduled = events["kind"] == SCHEDULED  # these events follow the start of their iteration
    iteration = np.cumsum(events["kind"] == BATCH_START)[scheduled] - 1
    decoding, tokens = _decoding(result)[scheduled], events["tokens"][scheduled]
    for phase, of_phase in (("prefill", ~decoding), ("decode", decoding)):
        table[f"{phase}_requests"] = np.bincount(iteration[of_phase], minlength=len(table))
        table[f"{phase}_tokens"] = np.bincount(iteration[of_phase], tokens[of_phase], len(table)).astype("i8")
    return table


def pieces(result: Result) -> pd.DataFrame:
    """Return a row for each uninterrupted part of an iteration, in order of their starts.

    iteration (its row in `iterations`), engine, start_s, end_s, how it ended: "ended", "suspended", "lost" (its
    requests were taken back), "running" (the run stopped).
    """
    events = timeline_events(result)
    events = events[np.isin(events["kind"], (BATCH_START, BATCH_END, SUSPENDED, RESUMED, FAILED, RETURNED, MOVED, OFF))]
    engines = [pool for pool in result.scenario.deployment.pools for _ in range(pool.engines)]
    tier = [POOL if pool.tier is None else pool.tier for pool in engines]
    stops = [pool.startup is not None and result.scenario.check_interval_s > 0 for pool in engines]
    up = [True] * len(engines)
    running: dict[int, int] = {}  # row, by engine
    suspended: dict[tuple[int, int], int] = {}  # iteration, by engine and slot
    rows: list[list] = []
    started = 0

    def stop(engine: int, time_s: float, how: str) -> None:
        if engine in running:
            rows[running.pop(engine)][3:] = time_s, how

    for time_s, kind, engine, tokens in zip(
        *(events[field].tolist() for field in ("time_s", "kind", "engine", "tokens")), strict=True
    ):
        if kind == BATCH_START:
            running[engine] = len(rows)
            rows.append([started, engine, time_s, np.nan, RUNNING])
            started += 1
        elif kind == BATCH_END:
            stop(engine, time_s, ENDED)
        elif kind == SUSPENDED:
            suspended[engine, tokens] = rows[running[engine]][0]
            stop(engine, time_s, SUSPENSION)
        elif kind == RESUMED:
            running[engine] = len(rows)
            rows.append([suspended.pop((engine, tokens)), engine, time_s, np.nan, RUNNING])
        else:
            gives_way = kind == MOVED and tier[engine] == POOL and up[engine] and not stops[engine]
            if kind in (FAILED, OFF) or gives_way:
                stop(engine, time_s, LOST)
                suspended = {key: value for key, value in suspended.items() if key[0] != engine}
            if kind == MOVED:
                tier[engine] = tokens
            elif kind != OFF:
                up[engine] = kind == RETURNED
    for row in rows:
        if row[4] == RUNNING:
            row[3] = float(result.arrays.status[0].now_s)
    return pd.DataFrame(rows, columns=["iteration", "engine", "start_s", "end_s", "how"]).astype(
        {"iteration": "i8", "engine": "i8", "start_s": "f8", "end_s": "f8", "how": "object"}
    )


def _evicted_before(events: np.ndarray) -> np.ndarray:
    """Return int64[iterations]: evictions at the engine since the start of its previous iteration."""
    starts = np.flatnonzero(events["kind"] == BATCH_START)
    counts = np.zeros(len(starts), "i8")
    for engine in np.unique(events["engine"][events["kind"] == EVICTED]):
        mine = np.flatnonzero(events["engine"][starts] == engine)
        at = np.flatnonzero((events["kind"] == EVICTED) & (events["engine"] == engine))
        following = np.searchsorted(starts[mine], at)
        np.add.at(counts, mine[following[following < len(mine)]], 1)
    return counts


def _blocks_when_started(result: Result, events: np.ndarray) -> np.ndarray:
    """Return int64[iterations]: KV blocks in use at the engine, including those of the batch."""
    starts = events[events["kind"] == BATCH_START]
    blocks = np.zeros(len(starts), "i8")
    for engine, (time_s, in_use) in enumerate(kv_blocks(result)):
        mine = starts["engine"] == engine
        # Memory is freed before batches are formed, so the last step of an instant includes the batches.
        blocks[mine] = np.r_[0, in_use][np.searchsorted(time_s, starts["time_s"][mine], "right")]
    return blocks


def _decoding(result: Result) -> np.ndarray:
    """Return bool[events]: whether the event's request decodes: it has a token, and one is left to compute."""
    events, position = request_events(result)
    prompt = result.scenario.workload.table["prompt_tokens"][events["request"]]
    emitted = num_output_tokens(events)
    decoding = np.zeros(result.arrays.status[0].timeline_used, bool)
    here = position >= 0
    decoding[position[here]] = ((emitted > 0) & (prompt + emitted - computed_tokens(events) == 1))[here]
    return decoding
