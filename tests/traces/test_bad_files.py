"""A bad file is one clear line: what was wrong, where, and what would be right."""

import gzip
import os

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servegym.errors import WorkloadError
from servegym.traces import build_workload, read_trace

HEAD = "arrival_s,prompt_tokens,output_tokens"


def refused(path) -> str:
    with pytest.raises(WorkloadError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


@pytest.mark.parametrize(("text", "said"), [
    ("", "empty"),
    ("\n", "empty"),
    (HEAD + "\n", "no rows"),
    ("a,b\n1,2\n", "has columns a, b; a trace of your own needs prompt_tokens, output_tokens"),
    ("prompt_tokens\n1\n", "missing: output_tokens"),
    ("prompt_tokens,prompt_tokens,output_tokens\n1,2,3\n", "prompt_tokens more than once"),
    (HEAD + "\n0,1_0,1\n", "row 1: prompt_tokens is '1_0'; it should be a whole number of tokens"),
    (HEAD + ",prefix_blocks\n0,1,1,1 2_0\n", "row 1: prefix_blocks is '1 2_0'"),
    (HEAD + "\n0,x,1\n", "row 1: prompt_tokens is 'x'; it should be a whole number of tokens"),
    (HEAD + "\n0,1,1\n1,nan,1\n", "row 2: prompt_tokens is empty or NaN"),
    (HEAD + "\n0,1,1\n1,1\n", "row 2: output_tokens is empty"),
    (HEAD + "\n0,-5,1\n", "row 1: prompt_tokens is -5"),
    (HEAD + "\n0,0,1\n", "row 1: prompt_tokens is 0"),
    (HEAD + "\n0,1,0\n", "row 1: output_tokens is 0"),
    (HEAD + "\n0,1.5,1\n", "row 1: prompt_tokens is 1.5"),
    (HEAD + "\n0,1e300,1\n", "row 1: prompt_tokens is 1e+300"),
    (HEAD + "\n0,99999999999999999999999,1\n", "row 1: prompt_tokens is"),
    (HEAD + "\n0,inf,1\n", "row 1: prompt_tokens is inf"),
    (HEAD + "\n0,True,1\n", "row 1: prompt_tokens is True"),
    (HEAD + "\n,1,1\n", "row 1: arrival_s is empty or NaN"),
    (HEAD + "\n-1,1,1\n", "row 1: arrival_s is -1"),
    (HEAD + "\ninf,1,1\n", "row 1: arrival_s is inf"),
    (HEAD + "\n1e300,1,1\n", "not a date"),
    (HEAD + "\n1700000000,1,1\n", "seconds since the start of the trace, not a date"),
    (HEAD + "\n2023-11-16 18:17:03,1,1\n", "row 1: arrival_s is '2023-11-16 18:17:03'; it should be a finite number"),
    (HEAD + "\n0,1,1\n5,1,1\n4,1,1\n", "row 3: arrival_s is 4, before the 5 of the row above; sort the file"),
    (HEAD + "\n0,1,1\n0,1,1,7\n", "Expected 3 fields in line 3, saw 4"),
    (HEAD + "\n0,1,1,7\n0,1,1\n", "expected 3 fields in line 2, saw 4"),
    (HEAD + "\n0,1\n0,1,1,7\n", "Expected 3 fields in line 3, saw 4"),
    (HEAD + ',client\n0,1,1,"unfinished\n', "EOF inside string"),
    (HEAD + ",ttft_slo_s\n0,1,1,0\n", "row 1: ttft_slo_s is 0; it should be seconds above 0"),
    (HEAD + ",tpot_slo_s\n0,1,1,-1\n", "row 1: tpot_slo_s is -1"),
    (HEAD + ",ttlt_slo_s\n0,1,1,\n1,1,1,0\n", "row 2: ttlt_slo_s is 0"),
    (HEAD + ",weight\n0,1,1,inf\n", "row 1: weight is inf; it should be a number from 1e-09 to 1e+09"),
    (HEAD + ",weight\n0,1,1,1e308\n", "row 1: weight is 1e+308; it should be a number from 1e-09 to 1e+09"),
    (HEAD + ",priority\n0,1,1,-1\n", "row 1: priority is -1; it should be a whole number"),
    (HEAD + ",priority\n0,1,1,high\n", "row 1: priority is 'high'"),
    (HEAD + ",client\n0,1,1,ann\n0,1,1,\n", "row 2: client is empty"),
    (HEAD + ",prefix_blocks\n0,1,1,1 2\n0,1,1,1 x\n", "row 2: prefix_blocks is '1 x'"),
    (
        "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n",
        "row 1: TIMESTAMP is 'yesterday'; it should be a date",
    ),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n12,1,1\n", "row 1: TIMESTAMP is 12; it should be a date"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01,1,0\n", "no row has"),
    ("arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\n1e300,1,1\n", "from first to last arrival"),
])  # fmt: skip
def test_bad_csv(tmp_path, text, said):
    path = tmp_path / "t.csv"
    path.write_text(text)
    assert said in refused(path)


@pytest.mark.parametrize(("text", "said"), [
    ("\n", "empty"),
    ('{"prompt_tokens": 1, "output_tokens": 2}\n{"prompt_tokens": 1,\n', "line 2 is not JSON"),
    ("[1, 2]\n", "line 1 is not a JSON object"),
    ('{"prompt_tokens": 1}\n', "missing: output_tokens"),
    ('{"prompt_tokens": 1, "output_tokens": 2}\n{"prompt_tokens": 1}\n', "row 2: output_tokens is empty"),
    ('{"prompt_tokens": 1, "output_tokens": NaN}\n', "row 1: output_tokens is empty or NaN"),
    ('{"prompt_tokens": true, "output_tokens": 2}\n', "row 1: prompt_tokens is True"),
    ('{"prompt_tokens": [1], "output_tokens": 2}\n', "row 1: prompt_tokens is [1]"),
    ('{"prompt_tokens": 1' + "0" * 400 + ', "output_tokens": 2}\n', "row 1: prompt_tokens is 1000"),
    ('{"prompt_tokens": 1, "output_tokens": 2, "prefix_blocks": [9' + "0" * 30 + "]}\n", "row 1: prefix_blocks is"),
    ('{"prompt_tokens": 1, "output_tokens": 2, "prefix_blocks": 4}\n', "row 1: prefix_blocks is 4"),
    ('{"prompt_tokens": 1, "output_tokens": 2, "prefix_blocks": [-1]}\n', "row 1: prefix_blocks is [-1]"),
    ("[" * 100_000 + "\n", "line 1 is not JSON"),
])  # fmt: skip
def test_bad_jsonl(tmp_path, text, said):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    assert said in refused(path)


@pytest.mark.parametrize(("text", "said"), [
    ("{}", "empty"),
    ("17", "neither a JSON list"),
    (" ", "neither a JSON list"),
    ("[]", "empty"),
    ("[", "item 1 is not JSON"),
    ("[1]", "item 1 is not a JSON object"),
    ('[{"prompt_tokens": 1, "output_tokens": 2}', "item 1: neither a comma"),
    ('[{"prompt_tokens": 1, "output_tokens": 2}, {"prompt_tok', "item 2 is not JSON"),
    ('[{"prompt_tokens": 1, "output_tokens": 2},]', "item 2 is not JSON"),
    ('[{"prompt_tokens": 1, "output_tokens": 2} {"prompt_tokens": 1}]', "item 1: neither a comma"),
    ('[{"prompt_tokens": 1, "output_tokens": 2}] more', "has something after the end"),
    ("[" * 100_000, "item 1 is not JSON"),
    ('[{"prompt_tokens": 1, "output_tokens": 2}, {"prompt_tokens": 0, "output_tokens": 2}]', "row 2: prompt_tokens"),
])  # fmt: skip
def test_bad_json_lists(tmp_path, text, said):
    path = tmp_path / "t.json"
    path.write_text(text)
    assert said in refused(path)


def test_files_that_are_no_traces(tmp_path):
    assert "there is no file" in refused(tmp_path / "absent.csv")
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    assert "not a file" in refused(folder)
    other = tmp_path / "t.xlsx"
    other.write_text("x")
    assert "ends in .csv, .jsonl, .json (also with .gz) or .parquet" in refused(other)
    with pytest.raises(WorkloadError, match=r"unknown trace 'azure-cod' \(did you mean 'azure-code'\?\)"):
        build_workload("azure-cod", rate_per_s=1)


def test_damaged_archives(tmp_path):
    whole = tmp_path / "whole.parquet"
    pd.DataFrame({"prompt_tokens": range(1, 5000), "output_tokens": 1}).to_parquet(whole)
    cut = tmp_path / "cut.parquet"
    for length in (0, 3, 40, len(whole.read_bytes()) // 2, len(whole.read_bytes()) - 1):
        cut.write_bytes(whole.read_bytes()[:length])
        refused(cut)
    packed = gzip.compress((HEAD + "\n" + "0,1,1\n" * 5000).encode())
    damaged = bytearray(packed)
    damaged[-6] ^= 0xFF
    for content in (packed[:3], packed[: len(packed) // 2], bytes(damaged), b"not gzip at all"):
        for name in ("t.csv.gz", "t.jsonl.gz"):
            (tmp_path / name).write_bytes(content)
            refused(tmp_path / name)


def test_binary_under_a_text_name(tmp_path):
    for name in ("t.csv", "t.jsonl"):
        path = tmp_path / name
        path.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" * 20)
        assert "binary" in refused(path)
        path.write_bytes(b"\xff\xfe\xfd,\xfc\n\xfb")
        assert "UTF-8" in refused(path)
    (tmp_path / "t.csv").write_bytes((HEAD + "\n" + "0,1,1\n" * 2000 + "0,1\x00,1\n").encode())
    refused(tmp_path / "t.csv")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=200)
    | st.text(st.sampled_from('01259.,-+eE"\n\r x[]{}:ninfa\x00'), max_size=80).map(str.encode),
    ending=st.sampled_from([".csv", ".jsonl", ".json", ".parquet", ".csv.gz"]),
    headed=st.booleans(),
)
def test_no_content_causes_another_error(tmp_path, body, ending, headed):
    path = tmp_path / f"t{ending}"
    path.write_bytes((HEAD + "\n").encode() + body if headed else body)
    try:
        build_workload(path, rate_per_s=1.0)
    except WorkloadError as error:
        assert "\n" not in str(error)


def test_a_pipe_is_no_trace(tmp_path):
    for name in ("t.csv", "t.jsonl", "t.parquet", "x_client_rates.parquet"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(WorkloadError, match="is not a file"):
            build_workload(tmp_path / name)
