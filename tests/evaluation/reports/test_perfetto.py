"""The trace is what the Chrome trace event format asks for, and says what happened."""

import gzip
import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servegym.baselines.registry import scheduler_names
from servegym.errors import ExperimentError
from servegym.evaluation.reports.perfetto import write_perfetto
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation
from tests.evaluation.reports.runs import by_hand, cramped
from tests.simulator.scenes import requests, scene

METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name"}


def trace_of(result: Result, tmp_path: Path) -> dict[str, Any]:
    return json.loads(write_perfetto(result, tmp_path / "trace.json").read_text(encoding="utf-8"))


def check_trace(document: dict[str, Any]) -> None:
    """What the format asks of every event, and of events together."""
    assert document["displayTimeUnit"] in ("ms", "ns")
    open_spans: dict[tuple, list[tuple[str, float]]] = defaultdict(list)
    by_track = defaultdict(list)
    for event in document["traceEvents"]:
        assert event["ph"] in "XCMbeni"
        assert type(event["pid"]) is int and type(event["tid"]) is int and event["pid"] > 0
        assert isinstance(event["ts"], int | float) and math.isfinite(event["ts"]) and event["ts"] >= 0
        assert isinstance(event["name"], str) and event["name"]
        if event["ph"] == "X":
            assert math.isfinite(event["dur"]) and event["dur"] >= 0
        elif event["ph"] == "C":
            assert event["args"] and all(type(value) in (int, float) for value in event["args"].values())
            assert all(value >= 0 for value in event["args"].values())
        elif event["ph"] == "i":
            assert event["s"] in "gpt"
        elif event["ph"] == "M":
            assert list(event["args"]) == [METADATA[event["name"]]]
        else:
            assert isinstance(event["id"], str) and event["cat"]
            by_track[event["pid"], event["cat"], event["id"]].append(event)
    for track, of_track in by_track.items():
        # As a reader does: by time, and at one time as they stand in the file.
        for event in sorted(of_track, key=lambda event: event["ts"]):
            if event["ph"] == "b":
                open_spans[track].append((event["name"], event["ts"]))
            elif event["ph"] == "e":
                name, began_us = open_spans[track].pop()
                assert name == event["name"] and began_us <= event["ts"]
        assert not open_spans[track]


@pytest.mark.slow
@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.parametrize("scheduler", scheduler_names())
def test_a_trace_is_valid_and_complete(scheduler: str, engines: int, tmp_path: Path) -> None:
    result = cramped(scheduler, engines)
    document = trace_of(result, tmp_path)
    check_trace(document)
    events, summary = document["traceEvents"], result.summary
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in events} == set(range(1, engines + 1))
    assert len(slices) == summary["iterations"]
    assert sum(event["args"]["tokens"] for event in slices) == result.engines["scheduled_tokens"].sum()
    assert sum(event["dur"] for event in slices) == pytest.approx(1e6 * result.engines["busy_s"].sum())
    instants = Counter(event["name"] for event in events if event["ph"] == "n")
    assert instants == Counter(
        {"first token": 40, "finished": 40, **({"evicted": summary["evictions"]} if summary["evictions"] else {})}
    )


def test_slices_of_an_engine_do_not_overlap(tmp_path: Path) -> None:
    slices = [event for event in trace_of(cramped(engines=3), tmp_path)["traceEvents"] if event["ph"] == "X"]
    for process in {event["pid"] for event in slices}:
        start, end = np.array(
            [(event["ts"], event["ts"] + event["dur"]) for event in slices if event["pid"] == process]
        ).T
        assert (start[1:] >= end[:-1] - 1e-3).all()


def test_there_are_evictions_in_these_runs() -> None:
    assert cramped("edf").summary["evictions"] > 0
    assert cramped("edf", 3).summary["evictions"] > 0


def test_a_run_that_stopped_in_the_middle_closes_everything(tmp_path: Path) -> None:
    result = cramped(until_s=2.0)
    assert result.summary["finished"] < result.summary["requests"]
    document = trace_of(result, tmp_path)
    check_trace(document)
    assert [event["args"]["how"] for event in document["traceEvents"] if event["ph"] == "X"].count("running") == 1


def test_one_request_by_hand(tmp_path: Path) -> None:
    events = trace_of(by_hand(), tmp_path)["traceEvents"]
    slices = [(event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert slices == [("prefill", 1e6, 5e6), ("decode", 6e6, 2e6), ("decode", 8e6, 2e6)]
    track = [(event["ph"], event["name"], event["ts"]) for event in events if event["ph"] in "ben"]
    assert track == [
        ("b", "request 0", 1e6),
        ("b", "prefill", 1e6), ("e", "prefill", 6e6), ("b", "decode", 6e6), ("e", "decode", 10e6),
        ("n", "first token", 6e6), ("n", "finished", 10e6), ("e", "request 0", 10e6),
    ]  # fmt: skip
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["name"]].append((event["ts"], *event["args"].values()))
    assert counters["KV blocks"] == [(1e6, 4), (6e6, 5), (8e6, 6), (10e6, 0)]
    assert counters["requests in batch"] == [(1e6, 1, 0), (6e6, 0, 1), (8e6, 0, 1), (10e6, 0, 0)]
    assert counters["queue"] == [(1e6, 1), (10e6, 0)]


def test_compressed_it_is_the_same_and_always_the_same_bytes(tmp_path: Path) -> None:
    plain = write_perfetto(cramped(), tmp_path / "trace.json").read_bytes()
    packed = write_perfetto(cramped(), tmp_path / "trace.json.gz").read_bytes()
    assert gzip.decompress(packed) == plain
    assert write_perfetto(cramped(), tmp_path / "again.json.gz").read_bytes() == packed


def test_a_run_without_timeline_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    result = Simulation(scene(requests(prompt_tokens=[4]))).run()
    with pytest.raises(ExperimentError, match="record_timeline"):
        write_perfetto(result, tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())
