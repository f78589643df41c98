"""Logs of serving systems: Dynamo's request traces and OpenTelemetry's spans, as traces and as measured runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servegym.errors import WorkloadError
from servegym.evaluation.measured.own_requests import requests_of
from servegym.evaluation.recommend.recording import read_recording
from servegym.traces.readers import read_trace
from servegym.traces.reading import Reading

FIRST_MS, FIRST_NS = 1_760_000_000_123, 1_760_000_000_123_456_789


def request(after_ms: int = 0, **changes: Any) -> dict[str, Any]:
    """An event of Dynamo's: a request of 100 tokens in two blocks of 64."""
    of_request = {
        "request_received_ms": FIRST_MS + after_ms, "output_tokens": 20, "ttft_ms": 80.0, "total_time_ms": 900.0,
        "replay": {"input_length": 100, "trace_block_size": 64, "input_sequence_hashes": [2**64 - 1, 7]},
    }  # fmt: skip
    return {
        "schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": FIRST_MS + 900,
        "request": of_request | changes,
    }  # fmt: skip


TOOL = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "event_time_unix_ms": FIRST_MS, "tool": {}}


def span(after_ns: int = 0, *, begun: Any = None, **attributes: Any) -> dict[str, Any]:
    """An export of one span of vLLM's; an attribute's value as OTLP JSON has it."""
    said = {
        "gen_ai.usage.prompt_tokens": {"intValue": "100"}, "gen_ai.usage.completion_tokens": {"intValue": "20"},
        "gen_ai.latency.time_to_first_token": {"doubleValue": 0.08}, "gen_ai.latency.e2e": {"doubleValue": 0.9},
    } | {name.replace("__", "."): value for name, value in attributes.items()}  # fmt: skip
    one = {
        "name": "llm_request", "startTimeUnixNano": str(FIRST_NS + after_ns) if begun is None else begun,
        "endTimeUnixNano": str(FIRST_NS + after_ns + 950_000_000),
        "attributes": [{"key": key, "value": value} for key, value in said.items() if value is not None],
    }  # fmt: skip
    return {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "HTTP", "attributes": []}, one]}]}]}


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_shards_of_dynamo_are_one_trace(tmp_path):
    shards = [[request(1500), TOOL], [request(0, replay={"input_length": 50})]]
    path = tmp_path / "all.jsonl.gz"
    path.write_bytes(
        b"".join(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()) for rows in shards)
    )
    trace = read_trace(path)
    assert trace.arrival_s.tolist() == [0.0, 1.5]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([50, 100], [20, 20])
    assert np.diff(trace.prefix_blocks.offsets).tolist() == [0, 2] and trace.prefix_blocks.block_tokens == 64
    assert trace.prefix_blocks.ids.view("u8").tolist() == [2**64 - 1, 7]
    assert trace.provenance["format"] == "dynamo" and trace.provenance["notes"] == ["rows sorted by time"]


def test_dynamo_measured(tmp_path):
    path = written(tmp_path / "dynamo.jsonl", request(0), TOOL, request(250, ttft_ms=None))
    table, notes = requests_of(path, Reading())
    assert table["arrival_s"].tolist() == [0.0, 0.25] and table["failed"].tolist() == [False, True]
    assert table[["ttft_s", "e2e_s"]].iloc[0].tolist() == [0.08, 0.9] and notes == []


def test_a_recording_of_dynamo_has_what_prompts_share(tmp_path):
    recording = read_recording(str(written(tmp_path / "dynamo.jsonl", request(0), request(250))))
    assert recording.trace.prefix_blocks is not None and recording.run.prefixes is not None
    assert recording.run.requests["ttft_s"].tolist() == [0.08, 0.08]


def test_columns_of_a_recording_may_name_blocks(tmp_path):
    head = "at,isl,osl,first,all,hashes,size\n"
    (tmp_path / "log.csv").write_text(head + "0,100,20,0.1,0.9,1 2,64\n1,100,20,0.1,0.9,1 3,64\n")
    columns = "arrival=at,prompt=isl,output=osl,ttft=first,e2e=all,prefix_blocks=hashes,prefix_block_tokens=size"
    recording = read_recording(str(tmp_path / "log.csv"), reading=Reading(columns))
    assert recording.trace.prefix_blocks.ids.tolist() == [1, 2, 1, 3] and recording.run.prefixes is not None


def test_spans_as_a_trace_and_measured(tmp_path):
    later = span(2_000_000_001, **{"gen_ai.latency.e2e": None})
    path = written(tmp_path / "spans.jsonl", later, span())
    trace = read_trace(path)
    assert trace.arrival_s.tolist() == [0.0, 2.000000001]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([100, 100], [20, 20])
    table, _ = requests_of(path, Reading())
    assert table["arrival_s"].tolist() == [2.000000001, 0.0]
    assert table["e2e_s"].tolist() == [0.95, 0.9] and table["ttft_s"].tolist() == [0.08, 0.08]


def test_spans_by_the_names_of_the_conventions(tmp_path):
    names = dict.fromkeys(("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens"))
    usage = {"gen_ai.usage.input_tokens": {"intValue": 5}, "gen_ai.usage.output_tokens": {"intValue": 6}}
    path = written(tmp_path / "spans.jsonl", span(**names, **usage, **{"gen_ai.latency.time_to_first_token": None}))
    trace = read_trace(path)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([5], [6])
    with pytest.raises(WorkloadError, match="no request says when its first token came"):
        requests_of(path, Reading())


@pytest.mark.parametrize(("row", "said"), [
    (request() | {"schema": "v9"}, "row 1: schema is 'v9'; it should be dynamo.request.trace.v1"),
    (request() | {"request": None}, "row 1: request is None; a request_end event should have one"),
    (request(output_tokens=1.5), "row 1: request.output_tokens is 1.5; it should be a whole number, 0 to"),
    (request(request_received_ms=None), "row 1: request.request_received_ms is None"),
    (request(replay={"input_length": 9, "input_sequence_hashes": [-1], "trace_block_size": 16}), "whole numbers"),
    (request(replay={"input_length": 9, "input_sequence_hashes": [1]}), "trace_block_size is 0"),
    (TOOL | {"request": None}, "has no rows"),
    ({"resourceSpans": [{}]}, "row 1: it should be OTLP JSON: resourceSpans, scopeSpans, spans"),
    (span(begun="soon"), "row 1: startTimeUnixNano is 'soon'; it should be nanoseconds since 1970"),
    (span(**{"gen_ai.usage.prompt_tokens": {"stringValue": "x"}}), "prompt_tokens is 'x'; it should be a whole"),
    (span(**{"gen_ai.usage.prompt_tokens": {"intValue": "99999999999"}}), "it should be a whole number of tokens"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(tmp_path, row, said):
    with pytest.raises(WorkloadError) as caught:
        read_trace(written(tmp_path / "log.jsonl", row))
    assert said in str(caught.value)
