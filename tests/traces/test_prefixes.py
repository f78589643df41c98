"""Prefix blocks of a trace on their way to the chunks of a workload."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.errors import WorkloadError
from servegym.simulator.memory.prefixes import ranks
from servegym.traces import build_workload, convert, read_trace, write
from servegym.traces.loading import load_trace
from servegym.traces.prefixes import chained, prompts_of
from servegym.traces.trace import PrefixBlocks, Trace

data = pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no folder of traces")


def trace_of(*requests: tuple[int, list[int]], block_tokens: int | None = 4) -> Trace:
    """Of (prompt tokens, blocks)."""
    lengths = np.array([tokens for tokens, _ in requests], "i4")
    offsets = np.r_[0, np.cumsum([len(blocks) for _, blocks in requests])]
    ids = np.array([block for _, blocks in requests for block in blocks], "i8")
    blocks = PrefixBlocks(offsets, ids, block_tokens)
    return Trace("t", lengths, np.ones(len(requests), "i4"), np.arange(len(requests)) * 1.0, prefix_blocks=blocks)


def chunks_of(prompts, r: int) -> list[int]:
    return prompts.chunks[prompts.offsets[r] : prompts.offsets[r + 1]].tolist()


def test_full_blocks_are_chunks():
    prompts = prompts_of(trace_of((9, [5, 6, 7]), (8, [5, 6]), (3, [5]), (12, [5, 8, 9])))
    assert prompts.chunk_tokens == 4
    assert np.diff(prompts.offsets).tolist() == [2, 2, 0, 3]
    first, second, last = (chunks_of(prompts, r) for r in (0, 1, 3))
    assert first == second
    assert first[0] == last[0] and first[1] != last[1]


def test_a_chunk_is_all_up_to_its_end():
    """Block 7 after 1 is not block 7 after 2, nor block 7 at the beginning."""
    prompts = prompts_of(trace_of((8, [1, 7]), (8, [2, 7]), (8, [7, 1]), (8, [1, 7])))
    chunks = [chunks_of(prompts, r) for r in range(4)]
    assert chunks[0] == chunks[3]
    assert len({chunk for pair in chunks[:3] for chunk in pair}) == 6


@pytest.mark.parametrize("seed", range(20))
def test_equal_chunks_are_equal_beginnings(seed):
    random = np.random.default_rng(seed)
    rows = [random.integers(0, 3, random.integers(0, 6)).tolist() for _ in range(30)]
    prompts = prompts_of(trace_of(*((4 * len(row) + int(random.integers(1, 4)), row) for row in rows)))
    named = {}
    for r, row in enumerate(rows):
        for place, chunk in enumerate(chunks_of(prompts, r)):
            assert named.setdefault(chunk, row[: place + 1]) == row[: place + 1]
    assert len(named) == len({tuple(beginning) for beginning in named.values()})


def test_without_blocks_or_their_size_a_workload_has_none():
    assert prompts_of(trace_of((9, [1, 2, 3]), block_tokens=None)) is None
    assert build_workload("azure-code", requests=3, rate_per_s=1).prefixes is None


def test_more_blocks_than_a_prompt_has_is_an_error():
    with pytest.raises(WorkloadError, match="request 1: 3 prefix blocks of 4 tokens, and a prompt of 8"):
        prompts_of(trace_of((9, [1, 2, 3]), (8, [1, 2, 3])))


ROWS = [(0.0, 1300, [3, 4, 9]), (1.0, 600, [3, 8]), (3.0, 1024, [3, 4]), (4.0, 40, [7])]


def own(path: Path, **more: object) -> Path:
    rows = [{"arrival_s": s, "prompt_tokens": n, "output_tokens": 2, "prefix_blocks": b, **more} for s, n, b in ROWS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def beginnings(workload) -> list[tuple[int, list[int]]]:
    return [(int(row["prompt_tokens"]), chunks_of(workload.prefixes, r)) for r, row in enumerate(workload.table)]


def test_a_trace_of_ones_own_has_blocks_of_512_unless_it_says_otherwise(tmp_path):
    workload = build_workload(own(tmp_path / "t.jsonl"))
    assert workload.prefixes.chunk_tokens == 512
    assert beginnings(workload) == [(1300, [0, 1]), (600, [0]), (1024, [0, 1]), (40, [])]
    with pytest.raises(WorkloadError, match="3 prefix blocks of 700 tokens"):
        build_workload(own(tmp_path / "t.jsonl", prefix_block_tokens=700))
    longer = build_workload(own(tmp_path / "t.jsonl", prefix_block_tokens=550))
    assert longer.prefixes.chunk_tokens == 550 and longer.digest != workload.digest
    assert [len(chunks) for _, chunks in beginnings(longer)] == [2, 1, 1, 0]


def test_all_rows_say_the_same_size(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,prefix_blocks,prefix_block_tokens\n9,1,1,16\n9,1,1,16\n9,1,1,32\n")
    with pytest.raises(WorkloadError, match="row 3: prefix_block_tokens is 32, and 16 in the first row"):
        read_trace(path)


def test_a_csv_file_of_one_block_a_prompt_or_none(tmp_path):
    path = tmp_path / "t.csv"
    for cells, lengths, ids in (
        ("758", [1, 1, 1], [7, 5, 8]),
        (["7", "", "8"], [1, 0, 1], [7, 8]),
        ("   ", [0] * 3, []),
    ):
        path.write_text("prompt_tokens,output_tokens,prefix_blocks\n" + "".join(f"9,1,{cell}\n" for cell in cells))
        blocks = read_trace(path).prefix_blocks
        assert (np.diff(blocks.offsets).tolist(), blocks.ids.tolist()) == (lengths, ids)
    for cell in ("-1", "1.5"):
        path.write_text(f"prompt_tokens,output_tokens,prefix_blocks\n9,1,4\n9,1,{cell}\n")
        with pytest.raises(WorkloadError, match=f"row 2: prefix_blocks is {cell}"):
            read_trace(path)


def test_chunks_go_with_their_requests(tmp_path):
    path = own(tmp_path / "t.jsonl")
    taken = build_workload(path, requests=2, window=1, rate_per_s=5.0, arrivals="poisson", slo="qoserve")
    assert beginnings(taken) == [(600, [0]), (1024, [0, 1])]
    short = build_workload(path, max_prompt_tokens=1100)
    assert beginnings(short) == [(600, [0]), (1024, [0, 1]), (40, [])]
    late = short.replace(arrival_s=[9.0, 1.0, 2.0])
    assert [(tokens, len(chunks)) for tokens, chunks in beginnings(late)] == [(1024, 2), (40, 0), (600, 1)]


@pytest.mark.parametrize("size", [512, 550])
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_what_is_written_is_built_again(tmp_path, name, size):
    path = own(tmp_path / "own.jsonl", prefix_block_tokens=size)
    workload = build_workload(path, slo="given", rate_per_s=2.0)
    convert(path, tmp_path / name, rate_per_s=2.0)
    assert build_workload(tmp_path / name, slo="given").digest == workload.digest
    write(workload, tmp_path / name)
    assert build_workload(tmp_path / name, slo="given").digest == workload.digest


@data
def test_mooncake_conversations_begin_alike():
    path = Path(os.environ["SERVEGYM_DATA"]) / "traces" / "mooncake_fast25_conversation.parquet"
    trace, workload = load_trace(path), build_workload(path, requests=2000)
    assert workload.prefixes.chunk_tokens == 512
    # Its ids name all up to the end of a block: two chunks are one just where the ids are.
    full = np.minimum(np.diff(trace.prefix_blocks.offsets), trace.prompt_tokens // 512)[:2000]
    ids = np.concatenate(
        [trace.prefix_blocks.ids[at : at + n] for at, n in zip(trace.prefix_blocks.offsets, full, strict=False)]
    )
    pairs = set(zip(ids.tolist(), workload.prefixes.chunks.tolist(), strict=True))
    assert len(pairs) == len(set(ids.tolist())) == len(set(workload.prefixes.chunks.tolist()))


@given(st.lists(st.integers(-3, 40), max_size=30))
def test_ranks_are_those_of_unique(numbers):
    expected = np.unique(np.array(numbers, "i8"), return_inverse=True)[1]
    assert ranks(np.array(numbers, "i8")).tolist() == expected.tolist()


@given(st.lists(st.lists(st.integers(0, 5), max_size=5), min_size=1, max_size=12))
def test_numbers_of_chained_blocks_go_by_place_then_by_the_block_before(rows):
    """Whether an id stands behind one block only (all sorted by one row each) or behind several."""
    offsets = np.r_[0, np.cumsum([len(row) for row in rows])]
    blocks = PrefixBlocks(offsets, np.array([block for row in rows for block in row], "i8"), 4)
    beginnings = {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}
    numbers: dict[tuple[int, ...], int] = {}
    for beginning in sorted(beginnings, key=lambda one: (len(one), one)):
        numbers[beginning] = len(numbers)
    expected = [numbers[tuple(row[:end])] for row in rows for end in range(1, len(row) + 1)]
    assert chained(blocks, np.diff(offsets)).tolist() == expected
