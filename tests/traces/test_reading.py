"""Files of other columns and units: named with `Reading`, refused where they would be misread."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from servegym.errors import SpecError, WorkloadError
from servegym.scenarios.spec import ServingSpec
from servegym.traces import Reading, build_workload, convert, read_trace
from servegym.traces.reading import looks_like_time, pairs_of
from servegym.traces.streamed import StreamedTrace

ISO = """\
timestamp,prompt_tokens,completion_tokens,model
2026-10-01T10:00:00Z,120,30,m
2026-10-01T12:00:01.5+02:00,300,20,m
"""
NAMED = "arrival=timestamp,prompt=prompt_tokens,output=completion_tokens"


def file_of(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def refused(path: Path, reading: Reading | None = None) -> str:
    with pytest.raises(WorkloadError) as caught:
        read_trace(path, None, reading)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_columns_of_a_log_are_named(tmp_path):
    path = file_of(tmp_path, "own.csv", ISO)
    assert f"--columns {NAMED}" in refused(path)
    trace = read_trace(path, None, Reading(NAMED))
    assert trace.arrival_s.tolist() == [0, 1.5]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([120, 300], [30, 20])
    assert trace.provenance["ignored_columns"] == ["model"]
    assert trace.provenance["notes"] == ["times in 2 zones (+02:00, UTC), each read in its own"]
    assert "source" not in trace.provenance


def test_rows_out_of_order_and_zones_that_are_missing_are_errors(tmp_path):
    path = file_of(tmp_path, "own.csv", ISO.replace("12:00", "10:00"))
    assert "row 2: timestamp is -7198.5" in refused(path, Reading(NAMED))
    assert "--sort" in refused(path, Reading(NAMED))
    assert read_trace(path, None, Reading(NAMED, sort=True)).arrival_s.tolist() == [0, 7198.5]
    path = file_of(tmp_path, "own.csv", ISO.replace("+02:00", ""))
    assert "row 2: timestamp is '2026-10-01T12:00:01.5'; it should be a time with a zone" in refused(
        path, Reading(NAMED)
    )
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n2023-11-16 18:17:04+02:00,1,1\n"
    assert "row 2: TIMESTAMP" in refused(file_of(tmp_path, "azure.csv", azure))


@pytest.mark.parametrize("year", ["0001", "9999"])
def test_years_out_of_reach_are_errors(tmp_path, year):
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n{year}-11-16 18:17:03,1,1\n"
    assert "row 2: TIMESTAMP is" in refused(file_of(tmp_path, "t.csv", text))
    assert "years 1678 to 2261" in refused(tmp_path / "t.csv")


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_other_delimiters(tmp_path, mark):
    path = file_of(
        tmp_path, "t.csv", f"arrival_s{mark}prompt_tokens{mark}output_tokens\n0{mark}10{mark}5\n1{mark}20{mark}6\n"
    )
    trace = read_trace(path)
    assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist()) == ([0, 1], [10, 20])


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_units_and_nested_fields(tmp_path, ending, unit, per_s):
    since = 1_760_000_000 * per_s + 123
    rows = [{"at": since + second * per_s, "id": f"r{second}", "usage": {"in": 9, "out": second}} for second in (1, 3)]
    path = tmp_path / f"t.{ending}"
    columns = "arrival=at,prompt=usage.in,output=usage.out,id=id"
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        pd.json_normalize(rows).to_csv(path, index=False)
    trace = read_trace(path, None, Reading(columns, unit))
    assert trace.arrival_s.tolist() == [0, 2]  # exactly, also in nanoseconds
    assert trace.output_tokens.tolist() == [1, 3]
    assert trace.ids.tolist() == ["r1", "r3"]
    assert trace.provenance["ignored_columns"] == []
    assert "--time-unit" in refused(path, Reading(columns))


def test_a_column_of_times_that_nothing_reads_is_an_error(tmp_path):
    path = file_of(tmp_path, "ts.csv", "timestamp,prompt_tokens,output_tokens\n0.5,10,5\n2,20,6\n")
    assert "column timestamp looks like the times of requests" in refused(path)
    assert "--columns arrival=timestamp" in refused(path)
    assert read_trace(path, None, Reading("arrival=timestamp")).arrival_s.tolist() == [0.5, 2]
    assert read_trace(path, None, Reading("arrival=none")).arrival_s is None
    path = file_of(tmp_path, "ts.csv", "num_prefill_tokens,num_decode_tokens,arrivalTime\n10,5,0\n")
    assert "--columns arrival=arrivalTime" in refused(path)


@pytest.mark.parametrize(
    "name", ["timestamp", "TIMESTAMP", "ts_ms", "arrivalTime", "created_at", "time", "meta.start_time"]
)
def test_names_of_times(name):
    assert looks_like_time(name)


@pytest.mark.parametrize("name", ["model", "e2e_s", "time_to_first_token", "think_s", "tokens", "turn", "ttft_ms"])
def test_other_names(name):
    assert not looks_like_time(name)


def test_empty_answers_are_dropped_on_request_and_counted(tmp_path):
    path = file_of(tmp_path, "t.csv", "arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,20,0\n2,,6\n3,1,1\n")
    assert "row 3: prompt_tokens is empty" in refused(path)
    assert "--drop-empty" in refused(path)
    trace = read_trace(path, None, Reading(drop_empty=True))
    assert trace.arrival_s.tolist() == [0, 3]
    assert trace.provenance["dropped_rows"] == 2
    assert trace.provenance["notes"] == ["2 rows with 0 prompt or output tokens dropped"]


@pytest.mark.parametrize(("columns", "said"), [
    ("arrival", "'arrival' names no column; it should be NAME=COLUMN"),
    ("arrival=a,arrival_s=b", "arrival_s is given twice"),
    ("arival=a", "unknown column 'arival' (did you mean 'arrival'?)"),
    ("arrival=nothing", "t.csv has no column nothing, which --columns names for arrival_s"),
])  # fmt: skip
def test_what_columns_cannot_say(tmp_path, columns, said):
    path = file_of(tmp_path, "t.csv", "a,prompt_tokens,output_tokens\n0,10,5\n")
    with pytest.raises(WorkloadError) as caught:
        read_trace(path, None, Reading(columns))
    assert said in str(caught.value)


def test_families_have_no_columns():
    with pytest.raises(WorkloadError, match="--columns, --sort: for files of requests, and those of azure-conv are"):
        build_workload("azure-conv", rate_per_s=1, reading=Reading("arrival=t", sort=True))


def test_mooncakes_shape_in_seconds_is_an_error_until_the_unit_is_said(tmp_path):
    def written(*times: float) -> Path:
        rows = [{"timestamp": time, "input_length": 600, "output_length": 8, "hash_ids": [0, 1]} for time in times]
        return file_of(tmp_path, "m.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    fractions = written(0.0, 0.2, 0.4)
    assert "2 of 3 are fractions; give --time-unit s" in refused(fractions)
    assert read_trace(fractions, None, Reading(time_unit="s")).arrival_s == pytest.approx([0, 0.2, 0.4])
    assert read_trace(fractions, None, Reading(time_unit="ms")).arrival_s == pytest.approx([0, 2e-4, 4e-4])
    assert "that is 1,500 requests/s; give --time-unit s" in refused(written(0, 0, 1, 2))
    assert read_trace(written(0, 100, 200)).arrival_s.tolist() == [0, 0.1, 0.2]


def test_blocks_that_a_prompt_cannot_have(tmp_path):
    row = {"timestamp": 0, "input_length": 513, "output_length": 8, "hash_ids": [2**64 - 1, 2]}
    path = file_of(tmp_path, "m.jsonl", json.dumps(row) + "\n" + json.dumps(row | {"timestamp": 9}))
    workload = build_workload(path)
    assert workload.prefixes.chunks.tolist() == [0, 0]  # the first block of both is one
    path = file_of(tmp_path, "m.jsonl", json.dumps(row) + "\n" + json.dumps(row | {"input_length": 20}))
    assert "m.jsonl, row 2: 2 prefix blocks of 512 tokens, and a prompt of 20; it should be at most 1" in refused(path)
    path = file_of(tmp_path, "m.jsonl", json.dumps(row | {"hash_ids": [2**64]}))
    assert "row 1: hash_ids is [18446744073709551616]" in refused(path)


def test_sessions_of_burstgpt(tmp_path):
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "10,,3.2,GPT-4,472,18,490,API log\n"
        "13,s1,8.5,ChatGPT,1087,230,1317,Conversation log\n"
        "20,s2,1.0,ChatGPT,17,23,40,Conversation log\n"
        "50,s1,0.0,ChatGPT,1400,0,1400,Conversation log\n"
        "60,s1,2,ChatGPT,1500,20,1520,Conversation log\n"
        "61,s1,1,ChatGPT,1600,20,1620,Conversation log\n"
    )
    trace = read_trace(file_of(tmp_path, "burst.csv", text))
    assert trace.prompt_tokens.tolist() == [472, 1087, 1500, 1600, 17]
    assert trace.arrival_s == pytest.approx([0, 3, np.nan, np.nan, 10], nan_ok=True)
    assert trace.turns.after.tolist() == [-1, -1, 1, 2, -1]
    assert trace.turns.think_s.tolist() == [0, 0, 38.5, 0, 0]  # 60 - 13 - 8.5
    assert trace.provenance["notes"] == [
        "1 row with 0 prompt or output tokens dropped",
        "1 turn before the end of the last one: moved to that end",
    ]


def test_conversations_of_bailian(tmp_path):
    def row(chat: int, parent: int, time: float, output: int = 9) -> str:
        lengths = {"input_length": 40, "output_length": output}
        return json.dumps({"chat_id": chat, "parent_chat_id": parent, "timestamp": time, **lengths}) + "\n"

    rows = [row(1, -1, 5), row(2, 1, 9.5), row(4, 3, 15), row(3, 2, 12, output=0), row(7, 99, 6), row(8, 1, 7)]
    trace = read_trace(file_of(tmp_path, "qwen.jsonl", "".join(rows)))
    assert trace.arrival_s == pytest.approx([0, *[np.nan] * 3, 1], nan_ok=True)
    assert trace.turns.after.tolist() == [-1, 0, 0, 2, -1]  # the dropped turn's own follows what that followed
    assert trace.turns.think_s.tolist() == [0, 2, 4.5, 5.5, 0]
    assert "1 turn whose parent is not in an earlier row: each begins a conversation" in trace.provenance["notes"]


def test_ids_go_with_their_requests(tmp_path):
    path = file_of(
        tmp_path, "t.csv", "arrival_s,prompt_tokens,output_tokens,request_id\n1,10,5,08\n0,20,6,1\n2,3,4,007\n"
    )
    workload = build_workload(path, slo="given", reading=Reading(sort=True))
    assert workload.ids.tolist() == ["1", "08", "007"]
    assert workload.replace(arrival_s=[5, 4, 3]).ids.tolist() == ["007", "08", "1"]
    convert(path, tmp_path / "again.csv", reading=Reading(sort=True))
    assert read_trace(tmp_path / "again.csv").ids.tolist() == ["1", "08", "007"]
    streamed = StreamedTrace(tmp_path / "again.csv")
    assert next(streamed.chunks()).ids.tolist() == ["1", "08", "007"]


def test_streams_take_columns_but_put_nothing_right(tmp_path):
    path = file_of(tmp_path, "own.csv", ISO)
    chunk = next(StreamedTrace(path, Reading(NAMED)).chunks())
    assert chunk.table["arrival_s"].tolist() == [0, 1.5]
    with pytest.raises(WorkloadError, match="servegym trace convert"):
        StreamedTrace(path, Reading(NAMED, sort=True))


@pytest.mark.parametrize("columns", [NAMED, dict(pairs_of(NAMED)), [list(pair) for pair in pairs_of(NAMED)]])
def test_a_spec_says_how_its_trace_is_read(tmp_path, columns):
    path = file_of(tmp_path, "own.csv", ISO)
    spec = ServingSpec().with_overrides({"trace": str(path), "columns": columns, "slo": "given"})
    assert ServingSpec.from_json(spec.to_json()) == spec
    assert spec.workload().table["arrival_s"].tolist() == [0, 1.5]
    with pytest.raises(SpecError, match="names no column"):
        spec.replaced(columns="arrival")
    with pytest.raises(SpecError, match="one of s, ms, us, ns"):
        spec.replaced(time_unit="minutes")


def test_more_requests_than_memory_holds():
    with pytest.raises(SpecError, match="requests is 99999999999999; it should be a whole number from 1 to 1e"):
        ServingSpec().replaced(requests=99999999999999)
    with pytest.raises(WorkloadError, match="at most 100,000,000"):
        build_workload("azure-conv", requests=99999999999999, rate_per_s=1)


WEKA = {
    "id": "conv1",
    "requests": [
        {"t": 0, "in": 1200, "out": 50, "type": "n", "hash_ids": [1, 2, 3]},
        {"t": 5.5, "in": 2400, "out": 70, "type": "s", "hash_ids": [1, 2, 3, 4, 5]},
        {"t": 6.0, "in": 800, "out": 30, "type": "subagent", "hash_ids": [9, 8]},
        {"t": 9, "in": 2500, "out": 7, "type": "s", "hash_ids": [1, 2, 3, 4, 5]},
    ],
}


def test_conversations_of_weka(tmp_path):
    path = file_of(tmp_path, "weka.json", json.dumps(WEKA))
    trace = read_trace(path)
    assert trace.prompt_tokens.tolist() == [1200, 2400, 800, 2500]
    assert trace.arrival_s is None
    assert trace.turns.after.tolist() == [-1, 0, 1, 1]
    assert trace.turns.think_s.tolist() == [0, 5.5, 0.5, 3.5]
    assert trace.prefix_blocks.block_tokens == 512  # so that 1200 tokens are three blocks
    assert build_workload(path, rate_per_s=1).known == 1


def test_conversations_of_weka_with_subagents_sizes_and_times(tmp_path):
    own = [{"t": 4, "in": 70, "out": 3, "type": "n"}, {"t": 6, "in": 80, "out": 3, "type": "n", "api_time": 0.5}]
    requests = [
        {"t": 1, "in": 100, "out": 3, "type": "s", "api_time": 2, "hash_ids": [1]},
        {"t": 3.5, "type": "subagent", "requests": own},
        {"t": 9, "in": 200, "out": 3, "type": "s", "think_time": 0.25, "hash_ids": [1, 2]},
    ]
    text = "".join(json.dumps({"id": name, "block_size": 64, "requests": requests}) + "\n" for name in "ab")
    trace = read_trace(file_of(tmp_path, "weka.jsonl", text))
    assert trace.turns.after.tolist() == [-1, 0, 1, 0, -1, 4, 5, 4]
    assert trace.turns.think_s.tolist() == [0, 1, 2, 0.25] * 2
    assert trace.prefix_blocks.block_tokens == 64
    assert trace.prefix_blocks.ids.tolist() == [0, 0, 1, 2, 2, 3]  # those of one conversation are not those of another


@pytest.mark.parametrize(("request_", "said"), [
    ({"t": 0, "in": 5, "out": 1, "type": "x"}, "conversation 1, request 1: type is 'x'"),
    ({"t": 0, "in": 0, "out": 1, "type": "n"}, "request 1: in is 0; it should be a whole number of tokens"),
    ({"in": 5, "out": 1, "type": "n"}, "request 1: t is None; it should be seconds"),
    ({"t": 0, "in": 5, "out": 1, "type": "n", "hash_ids": [1, 2]}, "conversation 1 has no block_size"),
])  # fmt: skip
def test_bad_conversations_of_weka(tmp_path, request_, said):
    assert said in refused(file_of(tmp_path, "weka.json", json.dumps({"requests": [request_]})))
