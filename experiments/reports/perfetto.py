"""A run's timeline as a trace of the Chrome trace event format, which Perfetto and chrome://tracing open.

An engine is a process. It has a thread of iterations, counters, and a track for each of its requests; one that is
prefilled on one engine and decoded on another has a track at both, and the second begins with its transfer. Times are
microseconds. Events are written one by one, as they are made.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from servegym.experiments.reports.iterations import blocks_on_their_way, iterations, timeline_lines
from servegym.experiments.reports.phases import phases
from servegym.simulator.results import Result
from servegym.simulator.types import ARRIVAL, DEPARTED, EVICTED, FINISH, LOADED, RECEIVED, ROLES

ITERATIONS_THREAD = 1
REQUEST_CATEGORY = "request"  # async events are told apart by category and id

Event = dict[str, Any]


def write_perfetto(result: Result, path: str | Path) -> Path:
    """Write the timeline of a run as JSON, compressed where the path ends in .gz. Returns the path.

    Raises ExperimentError where no timeline was recorded.
    """
    timeline_lines(result)  # before there is a file
    with _opened(Path(path)) as file:
        header = {
            "displayTimeUnit": "ms",
            "otherData": {
                "scheduler": result.scenario.scheduler.label,
                "deployment": result.scenario.deployment.name,
                "workload": result.scenario.workload.name,
                "workload_digest": result.scenario.workload.digest,
            },
        }
        file.write(json.dumps(header)[:-1] + ', "traceEvents": [')
        separator = "\n"
        for event in events(result):
            file.write(separator + json.dumps(event, separators=(",", ":"), allow_nan=False))
            separator = ",\n"
        file.write("\n]}\n")
    return Path(path)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    if path.suffix != ".gz":
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    # No time of writing in the file: the same run gives the same bytes.
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as compressed,
        io.TextIOWrapper(compressed, encoding="utf-8") as file,
    ):
        yield file


def events(result: Result) -> Iterator[Event]:
    """Every event of the trace. They are not in order of time: those of one engine, thread or request are."""
    yield from _names(result)
    yield from _iterations(result)
    yield from _kv_blocks(result)
    yield from _queue_lengths(result)
    yield from _requests(result)
    yield from _evictions(result)


def _us(time_s: float) -> float:
    return round(time_s * 1e6, 3)


def _process(engine: int) -> int:
    """Process 0 has a meaning of its own to Perfetto (the idle process), so engine 0 is process 1."""
    return engine + 1


def _names(result: Result) -> Iterator[Event]:
    deployment = result.scenario.deployment
    for engine, role in enumerate(result.arrays.engines["role"].tolist()):
        name = f"engine {engine} ({deployment.name})"
        if ROLES[role] != "both":
            name = f"{ROLES[role]} engine {engine} ({deployment.name})"
        process = {"ph": "M", "pid": _process(engine), "tid": ITERATIONS_THREAD, "ts": 0}
        yield {**process, "name": "process_name", "args": {"name": name}}
        yield {**process, "name": "process_sort_index", "args": {"sort_index": engine}}
        yield {**process, "name": "thread_name", "args": {"name": "iterations"}}


def _iterations(result: Result) -> Iterator[Event]:
    """A slice an iteration, and the counters that change with iterations."""
    table = iterations(result)
    table["then_idle"] = table.groupby("engine")["start_s"].shift(-1) != table["end_s"]
    for row in table.itertuples(index=False):
        process = {"pid": _process(row.engine), "tid": ITERATIONS_THREAD}
        start_us, end_us = _us(row.start_s), _us(row.end_s)
        batch = {"prefill": row.prefill_requests, "decode": row.decode_requests}
        yield {
            **process,
            "ph": "X",
            "name": " + ".join(phase for phase, requests in batch.items() if requests),
            "cat": "iteration",
            "ts": start_us,
            "dur": round(end_us - start_us, 3),
            "args": {
                "estimated_s": row.estimated_s,
                "tokens": row.prefill_tokens + row.decode_tokens,
                "prefill_requests": row.prefill_requests,
                "prefill_tokens": row.prefill_tokens,
                "decode_requests": row.decode_requests,
                "queued": row.queued,
                "evicted": row.evicted,
                "kv_blocks": row.kv_blocks,
                "ended": row.ended,
            },
        }
        counts = [(start_us, batch)]
        if row.then_idle:
            counts.append((end_us, dict.fromkeys(batch, 0)))
        for time_us, requests in counts:
            yield {**process, "ph": "C", "name": "requests in batch", "ts": time_us, "args": requests}


def _kv_blocks(result: Result) -> Iterator[Event]:
    """A counter of the KV blocks in use: of an iteration while it runs, between two those on their way elsewhere."""
    table = iterations(result)
    for engine in range(result.scenario.deployment.engines):
        mine = table[table["engine"] == engine]
        start_s, end_s = mine["start_s"].to_numpy(), mine["end_s"].to_numpy()
        moved_s, moving = blocks_on_their_way(result, engine)
        rest_s = end_s[np.r_[start_s[1:] != end_s[:-1], True][: len(end_s)]]  # idle from then on
        running = np.searchsorted(start_s, moved_s, "right") > np.searchsorted(end_s, moved_s, "right")
        idle_s = np.unique(np.r_[rest_s, moved_s[~running]])
        in_use = np.r_[0, moving][np.searchsorted(moved_s, idle_s, "right")]
        times_s, blocks = np.r_[start_s, idle_s], np.r_[mine["kv_blocks"].to_numpy(), in_use]
        for place in np.argsort(times_s, kind="stable"):
            yield {
                "pid": _process(engine),
                "tid": ITERATIONS_THREAD,
                "ph": "C",
                "name": "KV blocks",
                "ts": _us(float(times_s[place])),
                "args": {"in use": int(blocks[place])},
            }


def _queue_lengths(result: Result) -> Iterator[Event]:
    """A counter of the requests that have come to an engine and have neither finished nor gone on elsewhere."""
    change = {ARRIVAL: 1, RECEIVED: 1, FINISH: -1, DEPARTED: -1}
    length = [0] * result.scenario.deployment.engines
    lines = timeline_lines(result)
    for line in lines[np.isin(lines["kind"], list(change))]:
        engine = int(line["engine"])
        length[engine] += change[int(line["kind"])]
        yield {
            "pid": _process(engine),
            "tid": ITERATIONS_THREAD,
            "ph": "C",
            "name": "queue",
            "ts": _us(float(line["time_s"])),
            "args": {"requests": length[engine]},
        }


def _requests(result: Result) -> Iterator[Event]:
    """A track a request: a slice from arrival to finish, its phases in it, first token and finish as instants.

    Where it is decoded on another engine, that slice ends with its first token, and another begins there."""
    table, of_phases = result.requests, phases(result)
    bounds = np.searchsorted(of_phases["request"], np.arange(len(table) + 1))
    end_of_run_s = float(result.arrays.clock[0].now_s)
    lines = timeline_lines(result)
    left = {int(line["request"]): line for line in lines[lines["kind"] == DEPARTED]}
    for row in table.itertuples():
        departed = left.get(row.Index)
        first = _track(row.engine if departed is None else int(departed["engine"]), row.Index)
        finished = np.isfinite(row.finish_s)
        end_s = row.finish_s if finished else end_of_run_s
        name = f"request {row.Index}"
        facts = {"prompt_tokens": row.prompt_tokens, "output_tokens": row.output_tokens, "priority": row.priority}
        parts = [(first, row.arrival_s, end_s)]
        if departed is not None:
            last = _track(row.engine, row.Index)
            parts = [(first, row.arrival_s, float(departed["time_s"])), (last, float(departed["time_s"]), end_s)]
        of_request = of_phases.iloc[bounds[row.Index] : bounds[row.Index + 1]]
        for track, start_s, until_s in parts:
            yield {**track, "ph": "b", "name": name, "ts": _us(start_s), "args": facts}
            for phase in of_request[of_request["engine"] == track["pid"] - 1].itertuples(index=False):
                yield {**track, "ph": "b", "name": phase.phase, "ts": _us(phase.start_s)}
                yield {**track, "ph": "e", "name": phase.phase, "ts": _us(phase.end_s)}
            if track is first and np.isfinite(row.first_token_s):
                yield {
                    **track,
                    "ph": "n",
                    "name": "first token",
                    "ts": _us(row.first_token_s),
                    "args": {"ttft_s": row.ttft_s},
                }
            if track is parts[-1][0] and finished:
                attained = {"attained": row.attained, "gain": row.gain, "ideal_gain": row.ideal_gain}
                yield {**track, "ph": "n", "name": "finished", "ts": _us(end_s), "args": attained}
            yield {**track, "ph": "e", "name": name, "ts": _us(until_s)}


def _evictions(result: Result) -> Iterator[Event]:
    """An instant an eviction and a return from host memory, on its request's track."""
    lines = timeline_lines(result)
    for kind, name, tokens in ((EVICTED, "evicted", "kept_tokens"), (LOADED, "loaded", "tokens")):
        for line in lines[lines["kind"] == kind]:
            track = _track(int(line["engine"]), int(line["request"]))
            args = {tokens: int(line["tokens"])}
            yield {**track, "ph": "n", "name": name, "ts": _us(float(line["time_s"])), "args": args}


def _track(engine: int, request: int) -> Event:
    return {"pid": _process(engine), "tid": ITERATIONS_THREAD, "cat": REQUEST_CATEGORY, "id": str(request)}
