"""What is written is read again as it was, in every format."""

import json

import numpy as np
import pandas as pd
import pytest

from servegym.errors import WorkloadError
from servegym.traces import RECIPES, PrefixBlocks, Trace, build_workload, convert, read_trace, trace_names, write
from servegym.traces.writing import ENDINGS

NAMES = [f"t{ending}" for ending in ENDINGS]
TRACE = Trace(
    "t",
    np.array([8, 1000, 3], "i4"),
    np.array([1, 20, 5], "i4"),
    np.array([0.1, 1 / 3, 1e6 / 7]),
    {
        "priority": np.array([1, 0, 2], "i4"), "weight": np.array([1.0, 2.5, 1 / 3]),
        "ttft_slo_s": np.array([0.25, 1.0, 2.0]), "ttlt_slo_s": np.array([np.inf, 60.0, np.inf]),
        "predicted_output_tokens": np.array([np.nan, 3.5, 2.0]), "client": np.array([0, 1, 0], "i4"),
        "urgency": np.array([4, 2, 0], "i4"),
    },
    {"client": ("ann, the first", 'bob "b"')},
    PrefixBlocks(np.array([0, 1, 1, 2]), np.array([1, 2**64 - 2], "u8").view("i8")),
    ids=np.array(["r-9", "7", "a b"], object),
)  # fmt: skip


def assert_same(trace, other):
    assert trace.arrival_s == pytest.approx(other.arrival_s, rel=1e-15)
    assert trace.prompt_tokens.tolist() == other.prompt_tokens.tolist()
    assert trace.output_tokens.tolist() == other.output_tokens.tolist()
    assert set(trace.given) == set(other.given)
    for field, column in trace.given.items():
        np.testing.assert_allclose(column, other.given[field], rtol=1e-15, err_msg=field)
    assert dict(trace.labels) == dict(other.labels)


@pytest.mark.parametrize("rows", [2, 1000])
@pytest.mark.parametrize("name", NAMES)
def test_round_trip(tmp_path, monkeypatch, name, rows):
    monkeypatch.setattr("servegym.traces.writing.CHUNK_ROWS", rows)
    write(TRACE, tmp_path / name)
    again = read_trace(tmp_path / name)
    assert_same(again, TRACE)
    assert again.prefix_blocks.offsets.tolist() == [0, 1, 1, 2]
    assert again.prefix_blocks.ids.tolist() == [1, -2]  # 2^64 - 2
    assert again.ids.tolist() == ["r-9", "7", "a b"]
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("slo", RECIPES.names())
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_a_generated_workload_is_built_again(tmp_path, name, slo):
    options = {"requests": 50, "rate_per_s": 3.0, "seed": 5}
    convert("flowprefill", tmp_path / name, slo=slo, **options)
    built = build_workload("flowprefill", slo=slo, **options)
    again = build_workload(tmp_path / name, slo="given")
    for field in built.table.dtype.names:
        if field != "application":  # types are named in the file, and coded anew in order of appearance
            np.testing.assert_allclose(again.table[field], built.table[field], rtol=1e-15, err_msg=field)


@pytest.mark.parametrize("family", trace_names())
def test_every_family_is_written_without_times(tmp_path, family):
    written = convert(family, tmp_path / "t.parquet", requests=20)
    assert "arrival_s" not in pd.read_parquet(tmp_path / "t.parquet")
    assert read_trace(tmp_path / "t.parquet").prompt_tokens.tolist() == written.prompt_tokens.tolist()


def test_a_public_file_becomes_ones_own(tmp_path):
    path = tmp_path / "mooncake.jsonl"
    path.write_text(
        '{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
        '{"timestamp": 6000, "input_length": 9, "output_length": 0, "hash_ids": []}\n'
        '{"timestamp": 9000, "input_length": 9, "output_length": 5, "hash_ids": []}\n'
    )
    convert(path, tmp_path / "own.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "own.jsonl").read_text().splitlines()]
    assert rows == [
        {"arrival_s": 0.0, "prompt_tokens": 600, "output_tokens": 5, "prefix_blocks": [0, 1]},
        {"arrival_s": 6.0, "prompt_tokens": 9, "output_tokens": 5, "prefix_blocks": []},
    ]
    convert(tmp_path / "own.jsonl", tmp_path / "own.csv", rate_per_s=2.0)
    assert (tmp_path / "own.csv").read_text() == "arrival_s,prompt_tokens,output_tokens,prefix_blocks\n" + (
        "0.0,600,5,0 1\n0.5,9,5,\n"
    )
    assert read_trace(tmp_path / "own.csv").prefix_blocks.offsets.tolist() == [0, 2, 2]


def test_a_workload_is_written_with_what_it_has(tmp_path):
    workload = build_workload("sharegpt", requests=30, rate_per_s=2, slo="qoserve:low_share=0.5")
    write(workload, tmp_path / "t.parquet")
    assert build_workload(tmp_path / "t.parquet", slo="given").digest == workload.digest
    plain = build_workload("sharegpt", requests=5, rate_per_s=2, slo="given")
    write(plain, tmp_path / "t.csv")
    assert list(pd.read_csv(tmp_path / "t.csv")) == ["arrival_s", "prompt_tokens", "output_tokens"]


def test_a_file_is_replaced_only_by_a_whole_one(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("kept")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("servegym.traces.writing._write_text", full)
    with pytest.raises(WorkloadError, match="cannot be written: No space left"):
        write(TRACE, path)
    assert path.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]


def test_where_nothing_can_be_written(tmp_path):
    with pytest.raises(WorkloadError, match=r"t.xlsx: a trace is written to a file that ends in .csv"):
        convert("sharegpt", tmp_path / "t.xlsx")
    with pytest.raises(WorkloadError, match="cannot be written"):
        write(TRACE, tmp_path / "absent" / "t.csv")
    with pytest.raises(WorkloadError, match="a recipe needs arrivals"):
        convert("sharegpt", tmp_path / "t.csv", slo="proserve")
