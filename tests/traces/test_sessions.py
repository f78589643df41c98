"""Traces with sessions: files of one's own, public ones, generators, and what becomes of them in a workload."""

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servegym.errors import SpecError, WorkloadError
from servegym.scenarios.building import workload_of
from servegym.scenarios.spec import ServingSpec
from servegym.traces.inspect import describe
from servegym.traces.loading import load_trace
from servegym.traces.readers import read_trace
from servegym.traces.readers.ragpulse import blocks_of_parts
from servegym.traces.session_families import between
from servegym.traces.sessions import context_blocks, shared_context_tokens
from servegym.traces.workloads import build_workload
from servegym.traces.writing import write

FAMILIES = ("chat-sessions", "agent-sessions", "retrieval-sessions")
ROWS = [
    {"session": "b", "turn": 0, "arrival_s": 2.0, "prompt_tokens": 40, "output_tokens": 10},
    {"session": "a", "turn": 1, "think_s": 0.5, "prompt_tokens": 70, "output_tokens": 10},
    {"session": "a", "turn": 0, "arrival_s": 1.0, "prompt_tokens": 33, "output_tokens": 15},
    {"session": "a", "turn": 3, "think_s": 0.0, "prompt_tokens": 40, "output_tokens": 5, "after": 0},
]


def written(folder: Path, rows: list[dict]) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_of_sessions(tmp_path):
    trace = read_trace(written(tmp_path, ROWS))
    assert trace.provenance["format"] == "sessions"
    assert trace.prompt_tokens.tolist() == [33, 70, 40, 40]
    assert trace.turns.after.tolist() == [-1, 0, 0, -1] and trace.turns.think_s.tolist() == [0.0, 0.5, 0.0, 0.0]
    np.testing.assert_array_equal(trace.arrival_s, [1.0, np.nan, np.nan, 2.0])
    # Blocks of 16 tokens: 2 of 33, of which the next, of 70, has both and the answer's; of 40 after 0 the first 2.
    ids, offsets = trace.prefix_blocks.ids, trace.prefix_blocks.offsets
    blocks = [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    assert [len(one) for one in blocks] == [2, 4, 2, 2]
    assert blocks[1][:2] == blocks[0] == blocks[2] and len({*blocks[0], *blocks[1], *blocks[3]}) == 6
    workload = build_workload(written(tmp_path, ROWS))
    assert workload.table["prompt_tokens"].tolist() == [33, 40, 70, 40]
    assert workload.turns.after.tolist() == [-1, -1, 0, 0] and workload.known == 2
    assert workload.prefixes.offsets.tolist() == [0, 2, 4, 8, 10]
    assert describe(trace)["rate_per_s"] == pytest.approx(workload.rate_per_s) == 2 * describe(trace)["sessions_per_s"]
    assert describe(trace)["sessions"] == 2 and describe(trace)["think_s"]["max"] == 0.5


def test_new_tokens_come_behind_all_that_was_before(tmp_path):
    rows = [
        {"session": 7, "turn": turn, "think_s": 1.0, "new_tokens": new, "output_tokens": 10, "shared_tokens": shared}
        for turn, new, shared in [(0, 100, None), (1, 5, None), (2, 5, 50), (3, 5, 65)]
    ]
    trace = read_trace(written(tmp_path, rows))
    assert trace.prompt_tokens.tolist() == [100, 115, 55, 70] and trace.arrival_s is None
    offsets = trace.prefix_blocks.offsets
    first, second, third, fourth = (trace.prefix_blocks.ids[a:b].tolist() for a, b in itertools.pairwise(offsets))
    assert second[:6] == first and third == second[:3] and fourth[:3] == third and len(fourth) == 4


@pytest.mark.parametrize(("change", "message"), [
    ({"think_s": -1}, "row 2: think_s is -1"),
    ({"think_s": None}, "turn 1 of session a: think_s is empty; it should be seconds"),
    ({"arrival_s": 5.0}, "turn 1 of session a: arrival_s is 5; it should be empty"),
    ({"turn": 0}, "session 1 has turn 0 twice"),
    ({"turn": 1.5}, "row 2: turn is 1.5"),
    ({"after": 1}, "turn 1 of session 1 follows turn 1; it should follow an earlier turn"),
    ({"after": 3}, "turn 1 of session 1 follows turn 3; it should follow an earlier turn"),
    ({"after": 2}, "turn 1 of session 1 follows turn 2; it should follow an earlier turn"),
    ({"after": -1}, "row 2: after is -1"),
    ({"shared_tokens": 49}, "turn 1 of session a: shared_tokens is 49; it should be no more than the prompt"),
    ({"prompt_tokens": 0}, "row 2: prompt_tokens is 0"),
    ({"session": None}, "row 2: session is empty"),
])  # fmt: skip
def test_bad_rows_are_one_line(tmp_path, change, message):
    rows = [dict(row) for row in ROWS]
    rows[1] |= change
    with pytest.raises(WorkloadError, match=message) as error:
        read_trace(written(tmp_path, rows))
    assert "\n" not in str(error.value)


def test_bad_files_are_one_line(tmp_path):
    both = [row | {"new_tokens": 3} for row in ROWS]
    with pytest.raises(WorkloadError, match="has prompt_tokens and new_tokens; a file of sessions has one"):
        read_trace(written(tmp_path, both))
    neither = [{"session": 1, "turn": 0, "output_tokens": 3}]
    with pytest.raises(WorkloadError, match="has neither prompt_tokens nor new_tokens"):
        read_trace(written(tmp_path, neither))
    one = [dict(row) for row in ROWS]
    del one[0]["arrival_s"]
    with pytest.raises(WorkloadError, match="turn 0 of session b: arrival_s is empty; it should be seconds, as other"):
        read_trace(written(tmp_path, one))


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_what_is_written_is_read_back(tmp_path, ending):
    trace = load_trace("agent-sessions", requests=60, seed=3)
    workload = build_workload("chat-sessions", requests=60, rate_per_s=2.0)
    for one in (trace, workload):
        path = tmp_path / f"x{ending}"
        write(one, path)
        again = read_trace(path)
        if one is trace:
            np.testing.assert_array_equal(again.turns.after, trace.turns.after)
            np.testing.assert_array_equal(again.turns.think_s, trace.turns.think_s)
            np.testing.assert_array_equal(again.prompt_tokens, trace.prompt_tokens)
            np.testing.assert_array_equal(again.prefix_blocks.ids, trace.prefix_blocks.ids)
        else:
            np.testing.assert_array_equal(again.arrival_s[again.begins], workload.table["arrival_s"][: workload.known])
            assert sorted(again.prompt_tokens) == sorted(workload.table["prompt_tokens"])


def test_windows_are_of_whole_sessions(tmp_path):
    path = tmp_path / "x.jsonl"
    write(load_trace("chat-sessions", requests=400), path)
    for seed in range(5):
        taken = load_trace(path, requests=50, window="seed", seed=seed)
        assert len(taken) == 50 and taken.begins[0]
    few = load_trace(path, max_total_tokens=1500)
    assert (few.prompt_tokens + few.output_tokens <= 1500).all() and 0 < len(few) < 400


@pytest.mark.parametrize("family", FAMILIES)
def test_generated_sessions(family):
    trace, fewer = load_trace(family, requests=200, seed=1), load_trace(family, requests=50, seed=1)
    np.testing.assert_array_equal(trace.turns.after[:50], fewer.turns.after)
    np.testing.assert_array_equal(trace.prompt_tokens[:50], fewer.prompt_tokens)
    assert (trace.turns.after < np.arange(200)).all() and trace.begins.sum() < 200
    assert (trace.turns.think_s >= 0).all() and trace.provenance["licence"]
    limited = load_trace(family, requests=30, max_total_tokens=4000)
    assert (limited.prompt_tokens + limited.output_tokens <= 4000).all()
    with pytest.raises(WorkloadError, match="none begins with"):
        load_trace(family, requests=3, max_prompt_tokens=1)
    # A prompt's blocks begin with those of what it goes on with.
    blocks, size = trace.prefix_blocks, trace.prefix_blocks.block_tokens
    assert (np.diff(blocks.offsets) == trace.prompt_tokens // size).all()
    if family == "chat-sessions":
        for r in np.flatnonzero(~trace.begins):
            before = trace.turns.after[r]
            own = blocks.ids[blocks.offsets[r] : blocks.offsets[r + 1]]
            theirs = blocks.ids[blocks.offsets[before] : blocks.offsets[before + 1]]
            np.testing.assert_array_equal(own[: len(theirs)], theirs)
            assert trace.prompt_tokens[r] > trace.prompt_tokens[before] + trace.output_tokens[before]


def test_a_rate_is_of_all_requests():
    workload = build_workload("chat-sessions", requests=4000, rate_per_s=5.0)
    assert workload.rate_per_s == pytest.approx(5.0, rel=0.1)
    assert workload.table["arrival_s"][workload.known - 1] == pytest.approx(4000 / 5.0, rel=0.1)
    assert np.isnan(workload.table["arrival_s"][workload.known :]).all()


def test_specs_say_clients_and_concurrency():
    spec = ServingSpec().replaced(trace="chat-sessions", clients=4, requests=40, max_concurrency=3)
    scenario = spec.build(seed=2)
    assert (scenario.clients, scenario.max_concurrency) == (4, 3) and scenario.arrivals_depend
    assert (scenario.workload.table["arrival_s"][: scenario.workload.known] == 0).all()
    assert spec.replaced(load=1.0).demand.clients is None and spec.replaced(rate_per_s=2.0).demand.clients is None
    for words in ({"clients": 0}, {"max_concurrency": 0}, {"clients": 1.5}):
        with pytest.raises(SpecError, match="a whole number of 1 or more"):
            ServingSpec().replaced(**words)
    for words in ({"load": 1.0}, {"rate_per_s": 1.0}, {"arrivals": "poisson"}, {"cv": 2.0}):
        with pytest.raises(SpecError, match=r"clients and .* are given"):
            ServingSpec().replaced(clients=2, **words)
    paced = ServingSpec().replaced(trace="chat-sessions", rate_per_s=2.0, cv=2.0, requests=500)
    assert workload_of(paced, 0).rate_per_s == pytest.approx(2.0, rel=0.3)


def test_what_lengths_say_of_a_context():
    prompt, output = np.array([100, 120, 105, 90, 115]), np.array([20, 1, 1, 1, 1])
    assert shared_context_tokens(prompt, output, np.array([-1, 0, 0, 0, 3])).tolist() == [0, 120, 100, 0, 91]
    blocks = context_blocks(prompt, output, np.array([-1, 0, 0, 0, -1]), np.array([0, 120, 100, 0, 0]), 10)
    assert np.diff(blocks.offsets).tolist() == [10, 12, 10, 9, 11]
    assert (blocks.ids[10:20] == blocks.ids[:10]).all() and (blocks.ids[22:32] == blocks.ids[:10]).all()


def test_blocks_of_parts():
    counts, ids = blocks_of_parts(np.array([64, 64, 50]), np.array([2, 2, 3]), np.array([1, 2, 1, 3, 1, 5, 4]),
                                  np.array([40, 24, 40, 24, 40, 8, 2]))  # fmt: skip
    assert counts.tolist() == [4, 4, 3]
    one, two, three = ids[:4], ids[4:8], ids[8:]
    assert (one[:2] == two[:2]).all() and one[2] != two[2] and one[3] != two[3]
    assert (one[:2] == three[:2]).all() and one[2] != three[2]


MEASURED = Path(os.environ.get("SERVEGYM_DATA", "")) / "measured"
with_data = pytest.mark.skipif(not MEASURED.is_dir() or not os.environ.get("SERVEGYM_DATA"), reason="needs measured/")


@pytest.mark.slow
@with_data
def test_ragpulse():
    trace = read_trace(MEASURED / "sessions_ragpulse.parquet")
    assert (trace.provenance["format"], len(trace), trace.begins.sum()) == ("ragpulse", 7106, 3990)
    assert shared(trace) == pytest.approx(0.315, abs=0.003)  # of the tokens, with an unbounded cache: its README


@with_data
def test_agentic_conversations():
    trace = read_trace(MEASURED / "sessions_agentx_turns.parquet")
    source = pd.read_parquet(MEASURED / "sessions_agentx_turns.parquet")
    assert (trace.provenance["format"], len(trace), trace.begins.sum()) == (
        "agentx-turns",
        3609,
        source.think_s.isna().sum(),
    )
    assert trace.arrival_s is None
    one = read_trace(MEASURED / "sessions_agentx_one_hashed.parquet")
    assert (one.provenance["format"], len(one), one.begins.sum()) == ("agentx-hashed", 32, 1)
    assert shared(one) > 0.9


def shared(trace) -> float:
    """Share of the tokens whose blocks, with all before them, were in an earlier prompt."""
    seen: set[int] = set()
    blocks, found = trace.prefix_blocks, 0
    chains: dict[tuple[int, int], int] = {}
    for r in range(len(trace)):
        before, hit = -1, True
        for block in blocks.ids[blocks.offsets[r] : blocks.offsets[r + 1]].tolist():
            before = chains.setdefault((before, block), len(chains))
            hit = hit and before in seen
            found += hit
            seen.add(before)
    return found * blocks.block_tokens / trace.prompt_tokens.sum()


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12),
    st.lists(st.floats(-1e6, 1e6), min_size=12, max_size=12),
    st.floats(-1.1e6, 1.1e6),
)
@example([0.0, 1e-303], [0.0, 1e5, *[0.0] * 10], 0.0)  # a slope beyond the largest number
def test_between_is_numpy_interp(xs, ys, x):
    xs, ys = sorted(xs), ys[: len(xs)]
    for at in (x, *xs):
        assert between(at, xs, ys) == pytest.approx(float(np.interp(at, xs, ys)), rel=1e-12, abs=1e-9)
