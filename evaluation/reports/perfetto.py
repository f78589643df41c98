"""A run's timeline in the Chrome trace event format, which Perfetto and chrome://tracing open.

An engine is a process. It has a thread of iterations, counters, and a track for each of its requests. A request has a
track at each engine that it visits; at the engine that receives its KV, the track begins with the transfer. Requests
that the router holds have a track in the router's process. Times are in microseconds. Events are written one by one.
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
import pandas as pd

from servegym.evaluation.reports.iterations import iterations, pieces
from servegym.evaluation.reports.memory import kv_blocks
from servegym.evaluation.reports.phases import AT_ROUTER, phases
from servegym.evaluation.reports.timeline_events import request_events, timeline_events
from servegym.simulator.records.types import (
    ARRIVAL,
    DEPARTED,
    DRAINED,
    EVICTED,
    FAILED,
    FINISH,
    HELD,
    LOADED,
    MOVED,
    OFF,
    POOL,
    RECALLED,
    RECEIVED,
    RETURNED,
    ROLE,
    ROLES,
    SENT,
    STARTED,
)
from servegym.simulator.runs.results import Result

ITERATIONS_THREAD = 1
REQUEST_CATEGORY = "request"  # category and id identify the track of an async event

Event = dict[str, Any]


def write_perfetto(result: Result, path: str | Path) -> Path:
    """Write the timeline of a run as JSON, compressed if the path ends in .gz, and return the path.

    Raises ExperimentError if no timeline was recorded.
    """
    timeline_events(result)  # raise before a file is created
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
    # mtime 0: the same run gives the same bytes.
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as compressed,
        io.TextIOWrapper(compressed, encoding="utf-8") as file,
    ):
        yield file


def events(result: Result) -> Iterator[Event]:
    """Yield every event of the trace, in order of time within each engine, thread or request."""
    yield from _names(result)
    yield from _iterations(result)
    yield from _kv_blocks(result)
    yield from _queue_lengths(result)
    yield from _requests(result)
    yield from _moments(result)
    yield from _incidents(result)


def _us(time_s: float) -> float:
    return round(time_s * 1e6, 3)


def _process(engine: int) -> int:
    """Return an engine's process. Process 0 is the idle process to Perfetto, so engine 0 is process 1."""
    return engine + 1


def _router(result: Result) -> int:
    """Return the router's process, the one after those of the engines."""
    return _process(result.scenario.deployment.engines)


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
    if (timeline_events(result)["kind"] == HELD).any() or (phases(result)["phase"] == AT_ROUTER).any():
        process = {"ph": "M", "pid": _router(result), "tid": ITERATIONS_THREAD, "ts": 0}
        yield {**process, "name": "process_name", "args": {"name": "router"}}
        yield {**process, "name": "process_sort_index", "args": {"sort_index": -1}}


def _iterations(result: Result) -> Iterator[Event]:
    """Yield a slice for each uninterrupted part of an iteration, and the counters that change with these."""
    ran = pieces(result)
    ran["then_idle"] = ran.groupby("engine")["start_s"].shift(-1) != ran["end_s"]
    of_iterations = list(iterations(result).itertuples(index=False))
    for piece in ran.itertuples(index=False):
        row = of_iterations[piece.iteration]
        process = {"pid": _process(piece.engine), "tid": ITERATIONS_THREAD}
        start_us, end_us = _us(piece.start_s), _us(piece.end_s)
        batch = {"prefill": row.prefill_requests, "decode": row.decode_requests}
        yield {
            **process,
            "ph": "X",
            "name": " + ".join(phase for phase, requests in batch.items() if requests),
            "cat": "iteration",
            "ts": start_us,
            "dur": round(end_us - start_us, 3),
            "args": {
                "iteration": piece.iteration,
                "estimated_s": row.estimated_s,
                "tokens": row.prefill_tokens + row.decode_tokens,
                "prefill_requests": row.prefill_requests,
                "prefill_tokens": row.prefill_tokens,
                "decode_requests": row.decode_requests,
                "queued": row.queued,
                "evicted": row.evicted,
                "kv_blocks": row.kv_blocks,
                "resumed": piece.start_s > row.start_s,
                "how": piece.how,
            },
        }
        counts = [(start_us, batch)]
        if piece.then_idle:
            counts.append((end_us, dict.fromkeys(batch, 0)))
        for time_us, requests in counts:
            yield {**process, "ph": "C", "name": "requests in batch", "ts": time_us, "args": requests}


def _kv_blocks(result: Result) -> Iterator[Event]:
    """Yield a counter of the KV blocks in use."""
    for engine, (time_s, blocks) in enumerate(kv_blocks(result)):
        for at_s, in_use in zip(time_s.tolist(), blocks.tolist(), strict=True):
            yield {
                "pid": _process(engine),
                "tid": ITERATIONS_THREAD,
                "ph": "C",
                "name": "KV blocks",
                "ts": _us(at_s),
                "args": {"in use": in_use},
            }


def _queue_lengths(result: Result) -> Iterator[Event]:
    """Yield counters of the requests at each engine, and of those that the router holds."""
    change = {ARRIVAL: 1, RECEIVED: 1, FINISH: -1, DEPARTED: -1, RECALLED: -1}
    length = [0] * result.scenario.deployment.engines
    departed: set[int] = set()  # requests that are in no queue
    held: set[int] = set()
    timeline = timeline_events(result)
    for row in timeline[np.isin(timeline["kind"], [*change, HELD])]:
        engine, request, kind = int(row["engine"]), int(row["request"]), int(row["kind"])
        counter = {"tid": ITERATIONS_THREAD, "ph": "C", "ts": _us(float(row["time_s"]))}
        if (request in held) != (kind == HELD):
            (held.remove if request in held else held.add)(request)
            yield {**counter, "pid": _router(result), "name": "held", "args": {"requests": len(held)}}
        if kind == HELD or (kind == RECALLED and request in departed):
            departed -= {request} if kind == RECALLED else set()
            continue
        length[engine] += change[kind]
        (departed.add if kind == DEPARTED else departed.discard)(request)
        yield {**counter, "pid": _process(engine), "name": "queue", "args": {"requests": length[engine]}}


def _requests(result: Result) -> Iterator[Event]:
    """Yield a track for each visit of a request to an engine or the router: a slice with its phases, and its first
    token and end as instants."""
    table, of_phases = result.requests, phases(result)
    bounds = np.searchsorted(of_phases["request"], np.arange(len(table) + 1))
    end_of_run_s = float(result.arrays.status[0].now_s)
    for row in table.itertuples():
        finished = np.isfinite(row.finish_s)
        refused = np.isfinite(getattr(row, "refused_s", np.nan))
        end_s = row.finish_s if finished else row.refused_s if refused else end_of_run_s
        facts = {"prompt_tokens": row.prompt_tokens, "output_tokens": row.output_tokens, "priority": row.priority}
        visits = _visits(of_phases.iloc[bounds[row.Index] : bounds[row.Index + 1]]) or [(row.engine, end_s, [])]
        starts_s = [row.arrival_s, *(start_s for _, start_s, _ in visits[1:])]
        ends_s = [*starts_s[1:], end_s]
        with_token = next((k for k, until_s in enumerate(ends_s) if row.first_token_s <= until_s), -1)
        for k, (engine, _, of_visit) in enumerate(visits):
            track = {**_track(engine, row.Index), "pid": _process(engine) if engine >= 0 else _router(result)}
            name = f"request {row.Index}"
            yield {**track, "ph": "b", "name": name, "ts": _us(starts_s[k]), "args": facts}
            for phase in of_visit:
                yield {**track, "ph": "b", "name": phase.phase, "ts": _us(phase.start_s)}
                yield {**track, "ph": "e", "name": phase.phase, "ts": _us(phase.end_s)}
            if k == with_token:
                args = {"ttft_s": row.ttft_s}
                yield {**track, "ph": "n", "name": "first token", "ts": _us(row.first_token_s), "args": args}
            if k == len(visits) - 1 and finished:
                attained = {"attained": row.attained, "gain": row.gain, "ideal_gain": row.ideal_gain}
                yield {**track, "ph": "n", "name": "finished", "ts": _us(end_s), "args": attained}
            if k == len(visits) - 1 and refused:
                yield {**track, "ph": "n", "name": "refused", "ts": _us(end_s)}
            yield {**track, "ph": "e", "name": name, "ts": _us(ends_s[k])}


def _visits(of_request: pd.DataFrame) -> list[tuple[int, float, list[Any]]]:
    """Return (engine, start_s, phases) of each visit of a request, in order; engine -1: the router."""
    visits: list[tuple[int, float, list[Any]]] = []
    for phase in of_request.itertuples(index=False):
        if not visits or visits[-1][0] != phase.engine:
            visits.append((phase.engine, phase.start_s, []))
        visits[-1][2].append(phase)
    return visits


def _moments(result: Result) -> Iterator[Event]:
    """Yield an instant on its request's track for each eviction, load from host memory, return to the router, and start
    of a transfer."""
    timeline, _ = request_events(result)
    for kind, name, tokens in (
        (EVICTED, "evicted", "offloaded_tokens"), (LOADED, "loaded", "tokens"), (RECALLED, "taken back", ""),
        (SENT, "sent", "kv_blocks"),
    ):  # fmt: skip
        for row in timeline[timeline["kind"] == kind]:
            track = _track(int(row["engine"]), int(row["request"]))
            args = {tokens: int(row["tokens"])} if tokens else {}
            yield {**track, "ph": "n", "name": name, "ts": _us(float(row["time_s"])), "args": args}


def _incidents(result: Result) -> Iterator[Event]:
    """Yield an instant when an engine fails, returns, is drained, changes its tier or role, is off or has started."""
    timeline = timeline_events(result)
    for row in timeline[np.isin(timeline["kind"], (FAILED, RETURNED, DRAINED, MOVED, OFF, STARTED, ROLE))]:
        kind, tokens = int(row["kind"]), int(row["tokens"])
        words = {FAILED: "failed", RETURNED: "returned", DRAINED: "drained", OFF: "off", STARTED: "started"}
        to = "to the common pool" if tokens == POOL else f"to tier {tokens}"
        if kind == ROLE:
            to = f"becomes a {ROLES[tokens]} engine"
        yield {
            "pid": _process(int(row["engine"])),
            "tid": ITERATIONS_THREAD,
            "ph": "i",
            "s": "p",
            "name": words.get(kind, to),
            "cat": "incident",
            "ts": _us(float(row["time_s"])),
            "args": {"tier": tokens} if kind == MOVED else {"requests": tokens},
        }


def _track(engine: int, request: int) -> Event:
    """Return the fields of all events of a request's track."""
    return {"pid": _process(engine), "tid": ITERATIONS_THREAD, "cat": REQUEST_CATEGORY, "id": str(request)}
