"""Episodes of sessions, cut from a split: whole sessions, each with its turns in order."""

import dataclasses

import numpy as np
import pytest

from servegym.errors import SpecError
from servegym.scenarios.sampling import SPLITS, SessionRows, draw_episode, sample_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.features.session_dependencies import SessionDependencies

POOLS = [{"device": "h100-llama3-8b", "engines": 1}, {"device": "a6000-llama3.1-8b", "engines": 2}]
AGENTS = ServingSpec().with_overrides(
    {
        "trace": "agent-sessions", "pools": POOLS, "rate_per_s": 12.0, "requests": 300, "split": "train",
        "max_prompt_tokens": 32768, "prefix_caching": "on",
    }
)  # fmt: skip
# Three sessions: requests 0, 3 and 4; 1; 2, 5 and 6, of which the last two both follow the first.
TURNS = SessionDependencies(np.array([-1, -1, -1, 0, 3, 2, 2]), np.ones(7))


def test_sessions_are_taken_whole_and_of_the_last_its_first_requests():
    sessions = SessionRows(TURNS)
    assert sessions.sessions == 3 and sessions.ends.tolist() == [3, 4, 7]
    assert sessions.part(0, 2).tolist() == [0, 1, 3, 4] and sessions.part(2, 3).tolist() == [2, 5, 6]
    whole = {(0, 3, 4), (1,), (2, 5, 6)}
    seen = set()
    for seed in range(40):
        rows = sessions.draw(np.random.default_rng(seed), 5, shuffled=True).tolist()
        seen.add(tuple(rows))
        groups = [
            tuple(row for row in rows if TURNS.session[row] == first) for first in dict.fromkeys(TURNS.session[rows])
        ]
        assert all(group in whole for group in groups[:-1])
        assert any(group == one[: len(group)] for one in whole for group in groups[-1:])
    assert len(seen) == 6  # each order
    rows = {tuple(sessions.draw(np.random.default_rng(seed), 4, shuffled=False).tolist()) for seed in range(20)}
    assert rows == {(0, 3, 4, 1), (1, 2, 5, 6)}


def test_an_episode_of_agents_on_a_mixed_fleet():
    episode = draw_episode(AGENTS, np.random.default_rng(0))
    workload = episode.workload
    assert len(workload) == 300 and workload.turns is not None and workload.prefixes is not None
    assert 15 < workload.known < 100
    assert workload.rate_per_s == pytest.approx(12.0, rel=0.5)
    assert workload.table["prompt_tokens"].max() <= 32768
    again = draw_episode(AGENTS, np.random.default_rng(0)).workload
    assert again.digest == workload.digest
    assert draw_episode(AGENTS, np.random.default_rng(1)).workload.digest != workload.digest


def test_turns_keep_what_their_prompts_share():
    """A turn's prompt begins with the blocks of the one that it follows."""
    workload = draw_episode(AGENTS, np.random.default_rng(3)).workload
    prefixes, turns = workload.prefixes, workload.turns
    shared = []
    for r in np.flatnonzero(turns.after >= 0)[:50]:
        mine = prefixes.chunks[prefixes.offsets[r] : prefixes.offsets[r + 1]]
        before = turns.after[r]
        theirs = prefixes.chunks[prefixes.offsets[before] : prefixes.offsets[before + 1]]
        n = min(len(mine), len(theirs))
        shared.append((mine[:n] == theirs[:n]).mean() if n else 1.0)
    assert np.mean(shared) > 0.5


def test_splits_of_a_file_have_no_session_in_common(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["session,turn,arrival_s,think_s,prompt_tokens,output_tokens"]
    for session in range(100):
        begin = session * 2.0
        for turn in range(int(rng.integers(1, 5))):
            lines.append(
                f"s{session},{turn},{'' if turn else begin},{'1.5' if turn else ''},{100 + session},{10 + turn}"
            )
    path = tmp_path / "chat.csv"
    path.write_text("\n".join(lines) + "\n")
    parts = {split: sample_of(str(path), "proserve", ("a100-llama3-8b",), split, timed=True) for split in SPLITS}
    prompts = [set(part.table["prompt_tokens"].tolist()) for part in parts.values()]
    assert [len(some) for some in prompts] == [60, 10, 30] and len(set.union(*prompts)) == 100
    spec = ServingSpec().with_overrides({"trace": str(path), "split": "test", "requests": 20, "arrivals": "own"})
    workload = draw_episode(spec, np.random.default_rng(0)).workload
    assert len(workload) == 20 and set(workload.table["prompt_tokens"].tolist()) <= prompts[2]
    known = workload.table["arrival_s"][: workload.known]
    assert known[0] == 0 and np.allclose(np.diff(known), 2.0)
    with pytest.raises(SpecError, match="an episode of 2000 requests"):
        draw_episode(dataclasses.replace(spec, demand=dataclasses.replace(spec.demand, requests=2000)), rng)


def test_what_was_put_right_in_a_file_is_in_its_episodes(tmp_path):
    file = tmp_path / "log.csv"
    rows = "".join(f"{40 - i},100,{10 * (i % 10 > 0)}\n" for i in range(40))
    file.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    read = {"trace": str(file), "sort": True, "drop_empty": True}
    spec = ServingSpec().with_overrides({**read, "split": "train", "requests": 4, "rate_per_s": 1.0})
    provenance = draw_episode(spec, np.random.default_rng(0)).workload.provenance
    assert provenance["notes"] == ["4 rows with 0 prompt or output tokens dropped", "rows sorted by time"]
