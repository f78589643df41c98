"""A file resampled in blocks of its own time: any length, the file's mix and bursts, whole sessions, prefixes apart."""

import numpy as np
import pytest

from servegym.errors import ServegymError
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.traces import build_workload
from servegym.traces.prefixes import chained
from servegym.traces.resampling import BLOCKS, resampled
from servegym.traces.trace import PrefixBlocks, Trace


def numbered(requests: int, **more) -> Trace:
    """Request i has i + 1 prompt tokens and comes at i s, so that each is known again."""
    tokens = np.arange(1, requests + 1, dtype="i4")
    return Trace("numbered", tokens, tokens, **{"arrival_s": np.arange(requests, dtype="f8"), **more})


@pytest.mark.parametrize("requests", [7, 100, 1234])
def test_as_many_as_are_asked_for_in_blocks_of_neighbours_at_the_files_own_pace(requests):
    taken = resampled(numbered(100), requests, np.random.default_rng(1))
    assert len(taken) == requests and (np.diff(taken.arrival_s) > 0).all()
    follows = np.diff(taken.prompt_tokens) % 100 == 1
    assert follows.mean() > 1 - 1.5 * BLOCKS / 100  # 5 requests a block
    assert np.isclose(np.diff(taken.arrival_s)[follows], 1.0).mean() > 0.98  # two blocks may happen to be neighbours
    assert taken.arrival_s[-1] == pytest.approx(requests, rel=0.02, abs=10)


def test_every_request_is_as_likely_and_lengths_alone_are_drawn_too():
    taken = resampled(numbered(40, arrival_s=None), 40_000, np.random.default_rng(2))
    counts = np.bincount(taken.prompt_tokens)[1:]
    assert taken.arrival_s is None and counts.min() > 850 and counts.max() < 1150


def test_sessions_stay_whole():
    turns = SessionDependencies(np.where(np.arange(90) % 3 == 0, -1, np.arange(90) - 1), np.arange(90) * 0.5)
    arrival_s = np.where(turns.after < 0, np.arange(90.0), np.nan)
    taken = resampled(numbered(90, arrival_s=arrival_s, turns=turns), 300, np.random.default_rng(3))
    begins = taken.begins
    assert (begins == (np.arange(300) % 3 == 0)).all()
    assert (taken.turns.after[~begins] == np.flatnonzero(~begins) - 1).all()
    assert (taken.prompt_tokens[~begins] - taken.prompt_tokens[taken.turns.after[~begins]] == 1).all()
    assert (taken.turns.think_s[~begins] == (taken.prompt_tokens[~begins] - 1) * 0.5).all()
    assert (np.isnan(taken.arrival_s) == ~begins).all()


def test_a_conversation_drawn_twice_does_not_find_its_own_prefix():
    """Block 0 is of all requests (a system prompt), the next of a pair of neighbours, the third of one request."""
    rows = np.arange(100)
    ids = np.c_[np.zeros(100, "i8"), 1 + rows // 2, 1000 + rows].ravel()
    trace = numbered(100, prefix_blocks=PrefixBlocks(np.arange(101) * 3, ids, 16))
    taken = resampled(trace, 500, np.random.default_rng(4))
    system, pairs, own = taken.prefix_blocks.ids.reshape(-1, 3).T
    assert len(set(system)) == 1 and len(set(own)) == 500
    assert len(chained(taken.prefix_blocks, np.full(500, 3))) == 1500
    together = np.diff(taken.prompt_tokens) == 1
    same_pair = (taken.prompt_tokens[1:] % 2 == 0) & together
    assert (np.diff(pairs)[same_pair] == 0).all()


def test_a_workload_is_longer_than_its_file_and_another_for_each_seed(tmp_path):
    path = tmp_path / "mine.csv"
    rows = [f"{i % 7 + i},{100 + i},10" for i in range(0, 700, 7)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    many = [build_workload(path, requests=250, seed=seed, resample=True, rate_per_s=3.0) for seed in (0, 1)]
    assert len(many[0]) == 250 and many[0].rate_per_s == pytest.approx(3.0)
    assert many[0].digest != many[1].digest
    assert many[0].digest == build_workload(path, requests=250, resample=True, rate_per_s=3.0).digest
    with pytest.raises(ServegymError, match="a window that starts at 3"):
        build_workload(path, resample=True, window=3)
    with pytest.raises(ServegymError, match="generated"):
        build_workload("azure-conv", resample=True, rate_per_s=1.0)
    with pytest.raises(ServegymError, match="20 or more"):
        resampled(numbered(19), 5, np.random.default_rng(0))
