"""The iterations of a recorded run as a table: when each ran, what was in its batch, the KV memory it held."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from servegym.experiments.errors import ExperimentError
from servegym.simulator.cluster import Cluster
from servegym.simulator.results import Result
from servegym.simulator.types import BATCH_END, BATCH_START, DEPARTED, EVICTED, LOADED, RECEIVED, SCHEDULED, TOKEN

if TYPE_CHECKING:
    import pandas as pd


def timeline_lines(result: Result) -> np.ndarray:
    """The lines of the timeline (dtype TIMELINE). Raises ExperimentError where none was recorded."""
    clock = result.arrays.clock[0]
    if not clock.recording:
        raise ExperimentError("the run has no timeline; simulate it with record_timeline=True")
    return result.arrays.timeline[: clock.timeline_used]


def iterations(result: Result) -> pd.DataFrame:
    """One row an iteration, in the order they started.

    engine; start_s, end_s; ended (False: still running when the run stopped, and end_s is that time); estimated_s;
    queued (requests at the engine, the batch included); evicted (requests that gave up memory for this batch);
    prefill_requests, decode_requests, prefill_tokens, decode_tokens; kv_blocks (in use while it ran).

    Blocks are taken when a batch is formed and given back when it has ended, and an idle engine has no requests:
    so `kv_blocks` is the whole history of an engine's KV memory, but for that of requests on their way between
    engines (`blocks_on_their_way`) while an engine is idle.
    """
    import pandas as pd

    lines = timeline_lines(result)
    starts, ends = lines[lines["kind"] == BATCH_START], lines[lines["kind"] == BATCH_END]
    table = pd.DataFrame({"engine": starts["engine"], "start_s": starts["time_s"]})
    ended = pd.DataFrame({"engine": ends["engine"], "end_s": ends["time_s"], "kv_blocks": ends["tokens"]})
    for frame in (table, ended):  # iterations of an engine follow each other: its nth start has its nth end
        frame["nth"] = frame.groupby("engine").cumcount()
    table = table.merge(ended, "left", on=["engine", "nth"]).drop(columns="nth")
    table["ended"] = table["end_s"].notna()
    table["end_s"] = table["end_s"].fillna(float(result.arrays.clock[0].now_s))
    engines = result.arrays.engines
    held_now = (engines["total_blocks"] - engines["free_blocks"])[table["engine"]]
    table["kv_blocks"] = table["kv_blocks"].where(table["ended"], held_now).astype("i8")
    table["estimated_s"] = starts["value"]
    table["queued"] = starts["tokens"]

    # An iteration's evictions stand right before its start, its batch right after.
    started = np.cumsum(lines["kind"] == BATCH_START)
    table["evicted"] = np.bincount(started[lines["kind"] == EVICTED], minlength=len(table))
    scheduled = lines["kind"] == SCHEDULED
    decoding, tokens, iteration = (
        _decoding(result, lines)[scheduled],
        lines["tokens"][scheduled],
        started[scheduled] - 1,
    )
    for phase, of_phase in (("prefill", ~decoding), ("decode", decoding)):
        table[f"{phase}_requests"] = np.bincount(iteration[of_phase], minlength=len(table))
        table[f"{phase}_tokens"] = np.bincount(iteration[of_phase], tokens[of_phase], len(table)).astype("i8")
    return table


def _decoding(result: Result, lines: np.ndarray) -> np.ndarray:
    """bool[lines]: whether the line's request, at that moment, is decoding: a token is out and one is left to compute.

    Lines of a request are brought together; along them emitted and computed tokens are running sums, and the
    second starts anew at each eviction, with what is loaded from host memory.
    """
    order = np.argsort(lines["request"], kind="stable")
    kind, request = lines["kind"][order], lines["request"][order]
    first = np.r_[True, request[1:] != request[:-1]][: len(request)]

    def sum_before(values: np.ndarray, anew: np.ndarray) -> np.ndarray:
        before = np.cumsum(values) - values
        return before - np.maximum.accumulate(np.where(anew, before, 0))

    emitted = sum_before((kind == TOKEN).astype("i8"), first)
    computed = sum_before(
        np.where(np.isin(kind, (SCHEDULED, LOADED)), lines["tokens"][order], 0).astype("i8"),
        first | (kind == EVICTED),
    )
    prompt = result.scenario.workload.table["prompt_tokens"][request]  # of lines without a request it is not used
    decoding = np.empty(len(lines), bool)
    decoding[order] = (emitted > 0) & (prompt + emitted - computed == 1)
    return decoding


def blocks_on_their_way(result: Result, engine: int) -> tuple[np.ndarray, np.ndarray]:
    """(time_s, blocks): KV blocks of an engine that requests on their way from or to it hold, from each time on.

    Where a request was prefilled it holds its blocks until its KV has arrived elsewhere; there from when it is sent.
    """
    deployment = result.scenario.deployment
    if not isinstance(deployment, Cluster):
        return np.empty(0), np.empty(0, "i8")
    lines = timeline_lines(result)
    departed, received = lines[lines["kind"] == DEPARTED], lines[lines["kind"] == RECEIVED]
    link, prompts = deployment.link, result.scenario.workload.table["prompt_tokens"]
    sending_s = link.latency_s + prompts[received["request"]] * (link.bytes_per_token / link.bytes_per_s)
    here = departed[departed["engine"] == engine]
    released = received[np.isin(received["request"], here["request"])]
    blocks_of = dict(zip(here["request"].tolist(), here["tokens"].tolist(), strict=True))
    to_here = received["engine"] == engine
    time_s = np.concatenate([
        here["time_s"], released["time_s"], (received["time_s"] - sending_s)[to_here], received["time_s"][to_here],
    ])  # fmt: skip
    change = np.concatenate([
        here["tokens"], [-blocks_of[r] for r in released["request"].tolist()], received["tokens"][to_here],
        -received["tokens"][to_here],
    ]).astype("i8")  # fmt: skip
    order = np.argsort(time_s, kind="stable")
    return time_s[order], np.cumsum(change[order])
