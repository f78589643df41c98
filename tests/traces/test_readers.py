"""Every format read from small files, and the public traces where SERVEGYM_DATA has them."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from servegym.errors import WorkloadError
from servegym.traces import READERS, build_workload, read_trace
from servegym.traces.inspect import describe

OWN = {
    "arrival_s": [0.0, 0.25, 0.25], "prompt_tokens": [8, 1000, 3], "output_tokens": [1, 20, 5], "priority": [1, 0, 2],
    "weight": [1.0, 2.5, 0.5], "ttft_slo_s": [0.25, 1.0, 2.0], "tpot_slo_s": [0.05, 0.1, 0.02],
    "ttlt_slo_s": [np.inf, 60.0, np.inf], "client": ["ann", "bob", "ann"], "application": [3, 0, 1],
    "urgency": [4, 2, 0], "prefix_blocks": [[1], [2, 3], [1]],
}  # fmt: skip


def write_own(path: Path) -> Path:
    rows = [dict(zip(OWN, row, strict=True)) for row in zip(*OWN.values(), strict=True)]
    for row in rows:
        if np.isinf(row["ttlt_slo_s"]):
            row["ttlt_slo_s"] = None
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
        return path
    if ".jsonl" in path.suffixes:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        for row in rows:
            row["prefix_blocks"] = " ".join(map(str, row["prefix_blocks"]))
        text = pd.DataFrame(rows).to_csv(index=False)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_own_trace_round_trip(tmp_path, name):
    trace = read_trace(write_own(tmp_path / name))
    assert trace.arrival_s.tolist() == OWN["arrival_s"]
    assert trace.prompt_tokens.tolist() == OWN["prompt_tokens"]
    assert trace.output_tokens.tolist() == OWN["output_tokens"]
    for field in ("priority", "weight", "ttft_slo_s", "tpot_slo_s", "ttlt_slo_s", "application", "urgency"):
        assert trace.given[field].tolist() == OWN[field], field
    assert trace.given["client"].tolist() == [0, 1, 0]
    assert trace.labels == {"client": ("ann", "bob")}
    assert trace.prefix_blocks.offsets.tolist() == [0, 1, 3, 4]
    assert trace.prefix_blocks.ids.tolist() == [1, 2, 3, 1]
    assert trace.provenance["format"] == "own"
    assert (trace.provenance["rows"], trace.provenance["dropped_rows"]) == (3, 0)
    assert len(trace.provenance["sha256"]) == 64


def test_lora_adapters_are_numbers_or_names(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,adapter\n8,1,7\n8,1,\n8,1,0\n")
    assert read_trace(path).given["adapter"].tolist() == [7, 0, 0]
    path.write_text("prompt_tokens,output_tokens,adapter\n8,1,sql\n8,1,\n8,1,chat\n8,1,sql\n")
    trace = read_trace(path)
    assert trace.given["adapter"].tolist() == [1, 0, 2, 1] and trace.labels == {"adapter": ("", "sql", "chat")}
    path.write_text("prompt_tokens,output_tokens,adapter\n8,1,-1\n")
    with pytest.raises(WorkloadError, match=r"row 1: adapter is '?-1'?; it should be a whole number, 0 to"):
        read_trace(path)


def test_take_follows_the_prefix_blocks(tmp_path):
    taken = read_trace(write_own(tmp_path / "t.csv")).take(np.array([2, 1]))
    assert taken.prompt_tokens.tolist() == [3, 1000]
    assert taken.given["client"].tolist() == [0, 1]
    assert (taken.prefix_blocks.offsets.tolist(), taken.prefix_blocks.ids.tolist()) == ([0, 1, 3], [1, 2, 3])


def test_jsonl_keys_of_later_lines_and_blank_lines_count(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"prompt_tokens": 5, "output_tokens": 6}\n\n'
        '{"prompt_tokens": 7, "output_tokens": 8, "ttlt_slo_s": 600, "tag": "x"}\n'
    )
    trace = read_trace(path)
    assert trace.given["ttlt_slo_s"].tolist() == [np.inf, 600.0]
    assert trace.arrival_s is None
    assert trace.provenance["ignored_columns"] == ["tag"]


def test_csv_with_byte_order_mark_and_spaces(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("\ufeffprompt_tokens, output_tokens\r\n5, 6\r\n".encode())
    assert read_trace(path).output_tokens.tolist() == [6]


def test_chunks_make_one_trace(tmp_path, monkeypatch):
    monkeypatch.setattr("servegym.traces.files.CHUNK_ROWS", 4)
    clients = [f"c{i % 3}" for i in range(23)]
    frame = pd.DataFrame({"prompt_tokens": range(1, 24), "output_tokens": 2, "client": clients})
    for name in ("t.csv", "t.parquet", "t.jsonl"):
        path = tmp_path / name
        if name.endswith("csv"):
            frame.to_csv(path, index=False)
        elif name.endswith("parquet"):
            frame.to_parquet(path)
        else:
            frame.to_json(path, orient="records", lines=True)
        trace = read_trace(path)
        assert trace.prompt_tokens.tolist() == list(range(1, 24))
        assert trace.given["client"].tolist() == [i % 3 for i in range(23)]
    frame.loc[17, "prompt_tokens"] = -1
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(WorkloadError, match=r"t\.csv, row 18: prompt_tokens is -1"):
        read_trace(tmp_path / "t.csv")


def test_names_after_numbers_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("servegym.traces.files.CHUNK_ROWS", 2)
    (tmp_path / "t.csv").write_text("prompt_tokens,output_tokens,client\n1,1,0\n1,1,1\n1,1,ann\n")
    with pytest.raises(WorkloadError, match="row 3: client is 'ann'"):
        read_trace(tmp_path / "t.csv")


def test_azure_csv(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0319600,3180,0\n"
        "2023-11-16 18:17:05.9799600,110,27\n"
        "2023-11-16 18:17:05,9,3\n"
    )
    trace = read_trace(path)
    assert trace.arrival_s == pytest.approx([0, 1.02004, 2.0])
    assert trace.prompt_tokens.tolist() == [4808, 9, 110]
    assert trace.provenance["format"] == "azure-llm"
    assert trace.provenance["dropped_rows"] == 1
    assert trace.provenance["notes"] == ["1 row with 0 prompt or output tokens dropped", "rows sorted by time"]


def test_azure_2024_times_have_a_zone(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,1,1\n2024-05-10 00:00:01+00:00,2,2\n"
    )
    assert read_trace(path).arrival_s == pytest.approx([0, 0.99007])


def test_vidur_and_lengths_csv(tmp_path):
    path = tmp_path / "vidur.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,10,20\n2.0,11,21\n")
    trace = read_trace(path)
    assert trace.provenance["format"] == "vidur"
    assert trace.arrival_s.tolist() == [0, 0.5]
    path.write_text("num_prefill_tokens,num_decode_tokens,pd_ratio\n10,20,0.5\n")
    trace = read_trace(path)
    assert trace.provenance["format"] == "sharegpt-lengths"
    assert trace.arrival_s is None


def test_mooncake_jsonl(tmp_path):
    path = tmp_path / "mooncake.jsonl"
    path.write_text(
        '{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
        '{"timestamp": 6000, "input_length": 9, "output_length": 5, "hash_ids": [0]}\n'
    )
    trace = read_trace(path)
    assert trace.arrival_s.tolist() == [0, 3]
    assert trace.prefix_blocks.ids.tolist() == [0, 1, 0]
    assert trace.prefix_blocks.block_tokens == 512


# Unverified: written from the documented schemas, since no file of these publishers was at hand.


def test_burstgpt_csv(tmp_path):
    path = tmp_path / "BurstGPT_1.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "3,ChatGPT,400,18,418,Conversation log\n"
        "9,GPT-4,70,0,70,API log\n"
        "11,GPT-4,800,50,850,API log\n"
    )
    trace = read_trace(path)
    assert trace.provenance["format"] == "burstgpt"
    assert trace.arrival_s.tolist() == [0, 8]
    assert trace.prompt_tokens.tolist() == [400, 800]
    assert trace.labels == {"application": ("Conversation log", "API log")}
    assert trace.given["application"].tolist() == [0, 1]
    assert trace.provenance["dropped_rows"] == 1
    path.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "0.5,12,3.5,ChatGPT,400,18,418,Conversation log\n2,,1,GPT-4,1,1,2,API log\n"
    )
    assert read_trace(path).arrival_s.tolist() == [0, 1.5]


def test_qwen_bailian_jsonl(tmp_path):
    path = tmp_path / "qwen_traceA_blksz_16.jsonl"
    rows = [
        {"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "output_length": 9},
        {"chat_id": 8, "parent_chat_id": 7, "timestamp": 2.25, "input_length": 70, "output_length": 5},
    ]
    rows[0] |= {"type": "search", "turn": 1, "hash_ids": [3, 4, 5]}
    rows[1] |= {"type": "text", "turn": 2, "hash_ids": [3, 4, 9, 10, 11]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(path)
    assert trace.provenance["format"] == "qwen-bailian"
    assert trace.arrival_s.tolist() == pytest.approx([0, np.nan], nan_ok=True)
    assert (trace.turns.after.tolist(), trace.turns.think_s.tolist()) == ([-1, 0], [0, 1.75])
    assert trace.labels == {"application": ("search", "text")}
    assert trace.prefix_blocks.ids.tolist() == [3, 4, 5, 3, 4, 9, 10, 11]
    assert trace.prefix_blocks.block_tokens == 16
    assert build_workload(path, slo="flowprefill").table["ttft_slo_s"].tolist() == [4.0, 0.25]


CONVERSATIONS = [
    {"id": "a", "conversations": [{"from": "human", "value": "x" * 10}, {"from": "gpt", "value": "y" * 80}]},
    {"id": "b", "conversations": [{"from": "human", "value": "alone"}]},
    {"id": "c", "conversations": [{"from": "human", "value": "one two"}, {"from": "gpt", "value": "3"}, {}]},
]


@pytest.mark.parametrize("stretch", [1, 7, 1 << 20])
def test_sharegpt_texts(tmp_path, monkeypatch, stretch):
    monkeypatch.setattr("servegym.traces.jsonrows.READ_CHARACTERS", stretch)
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(CONVERSATIONS, indent=2))
    trace = read_trace(path, "characters/4")
    assert trace.provenance["format"] == "sharegpt"
    assert trace.provenance["tokenizer"] == "characters/4"
    assert trace.provenance["dropped_rows"] == 1
    assert trace.prompt_tokens.tolist() == [2, 2]
    assert trace.output_tokens.tolist() == [20, 1]
    assert trace.arrival_s is None
    by_word = read_trace(path, str.split)
    assert by_word.prompt_tokens.tolist() == [1, 2]
    assert by_word.provenance["tokenizer"] == "str.split"
    assert read_trace(path, len).prompt_tokens.tolist() == [10, 7]
    assert build_workload(path, rate_per_s=1, tokenizer="characters/4").table["output_tokens"].tolist() == [20, 1]


def test_texts_need_a_tokenizer(tmp_path):
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(CONVERSATIONS))
    with pytest.raises(WorkloadError, match="holds texts, not token counts: name a tokenizer"):
        read_trace(path)
    for name in ("llama-3", "characters/0", "characters/x", "characters/inf", "characters"):
        with pytest.raises(WorkloadError, match=f"a tokenizer of '{name}'"):
            read_trace(path, name)
    path.write_text('[{"conversations": [{"value": 3}, {"value": "x"}]}]')
    with pytest.raises(WorkloadError, match="row 1: conversations is"):
        read_trace(path, "characters/4")
    path.write_text('[{"conversations": "text"}]')
    with pytest.raises(WorkloadError, match="row 1: conversations is 'text'"):
        read_trace(path, "characters/4")
    with pytest.raises(WorkloadError, match="has token counts"):
        read_trace(write_own(tmp_path / "t.csv"), "characters/4")


def test_vtc_arena(tmp_path):
    path = tmp_path / "vtc.parquet"
    columns = {"req_id": [0, 1, 2], "adapter_dir": ["b", "a", "b"], "prompt_len": [13, 36, 5]}
    pd.DataFrame({**columns, "output_len": [9, 8, 7], "req_time": [1.0, 1.5, 4.0]}).to_parquet(path)
    trace = read_trace(path)
    assert trace.provenance["format"] == "vtc-arena"
    assert trace.given["client"].tolist() == [0, 1, 0]
    assert trace.labels == {"client": ("b", "a")}
    assert trace.arrival_s.tolist() == [0, 0.5, 3]


def test_every_reader_names_what_it_needs():
    needs = [frozenset(kind.needs) for kind in READERS]
    assert len(set(needs)) == len(needs)
    assert set(READERS.names()) >= {
        *("azure-llm", "burstgpt", "mooncake", "own", "qwen-bailian"),
        *("sharegpt", "sharegpt-lengths", "vidur", "vtc-arena"),
    }


# The shared table of the public traces: percentiles 25 50 75 90 95 99 and mean, then rows, rate, peak, cv.
PUBLISHED = {
    "azure_llm_2023_code": (
        (578, 1469, 2744, 5188, 7303, 7436, 2047.8),
        (9, 13, 24, 55, 90, 251, 27.9),
        (8819, 3435.9, 2.567, 4.1, 13.15),
    ),
    "azure_llm_2023_conv": (
        (396, 1020, 1189, 2734, 4083, 4142, 1154.7),
        (85, 129, 395, 424, 451, 601, 211.1),
        (19366, 3501.7, 5.53, 1.53, 1.09),
    ),
    "mooncake_fast25_conversation": (
        (2306, 6909, 15367, 27367, 39550, 85400, 12035.1),
        (156, 350, 472, 597, 698, 1119, 342.6),
        (12031, 3537.0, 3.401, 1.21, 3.03),
    ),
    "sharegpt_8k_llama2_lengths": (
        (580, 1730, 3734, 5696, 6563, 7434, 2340.0),
        (228, 415, 628, 834, 920, 998, 438.7),
        (30731, None, None, None, None),
    ),
    "vtc_arena_multitenant_600s": (
        (13, 40, 161, 432, 653, 902, 136.3),
        (62, 211, 458, 513, 513, 785, 256.2),
        (1500, 600.0, 2.498, 1.22, 1.1),
    ),
}


@pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no folder of traces")
@pytest.mark.parametrize("name", PUBLISHED)
def test_public_traces_have_their_published_figures(name):
    prompt, output, (rows, span_s, rate, peak, cv) = PUBLISHED[name]
    figures = describe(Path(os.environ["SERVEGYM_DATA"]) / "traces" / f"{name}.parquet")
    keys = ("p25", "p50", "p75", "p90", "p95", "p99")
    for column, published in (("prompt_tokens", prompt), ("output_tokens", output)):
        assert [figures[column][key] for key in keys] == pytest.approx(published[:-1], abs=0.51)  # printed rounded
        assert figures[column]["mean"] == pytest.approx(published[-1], abs=0.051)
    assert (figures["requests"], figures["rows"], figures["dropped_rows"]) == (rows, rows, 0)
    if rate is None:
        assert figures["rate_per_s"] is None
        return
    assert figures["span_s"] == pytest.approx(span_s, abs=0.051)
    assert figures["rate_per_s"] == pytest.approx(rate, rel=5e-4)
    assert figures["peak_minute_over_mean"] == pytest.approx(peak, abs=0.0051)
    assert figures["interarrival_cv"] == pytest.approx(cv, abs=0.0051)
