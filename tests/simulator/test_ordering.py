"""Ranks against sorted(): which request runs before which, and what is sorted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.simulator.batching.ordering import (
    bring_forward,
    first_ranked,
    in_previous_order,
    is_evicted_before,
    ranks_before,
    sort,
)
from servegym.simulator.batching.windows import FIRST_WINDOW
from servegym.simulator.records import types as layout
from tests.simulator.rank_strategies import plans, ranking

pytestmark = pytest.mark.nojit


@given(ranks=plans(60))
def test_sort(ranks):
    order = np.random.default_rng(len(ranks)).permutation(len(ranks)).astype("i4")
    sort(order, ranks, len(ranks))
    assert order.tolist() == sorted(range(len(ranks)), key=lambda place: (ranks[place].tier, ranks[place].key, place))


@given(ranks=plans(600), size=st.integers(1, 100))
def test_bring_forward(ranks, size):
    order = np.random.default_rng(len(ranks)).permutation(len(ranks)).astype("i8")
    n = bring_forward(order, ranks, len(ranks), size)
    expected = sorted(range(len(ranks)), key=lambda place: (ranks[place].tier, ranks[place].key, place))
    assert n >= 1 and order[:n].tolist() == expected[:n] and sorted(order.tolist()) == sorted(expected)


def test_of_a_long_queue_some_are_brought_forward():
    ranks = np.zeros(4000, layout.RANK)
    ranks["key"] = np.random.default_rng(1).permutation(4000)
    assert FIRST_WINDOW <= bring_forward(np.arange(4000), ranks, 4000, FIRST_WINDOW) <= 1000


@given(ranks=plans(80), seed=st.integers(0, 999), share=st.sampled_from([0.0, 0.05, 1.0]))
def test_in_turn_sorts_whatever_the_turns(ranks, seed, share):
    """Slots with gaps, some of them out of order, and some positions that have no slot."""
    rng, n = np.random.default_rng(seed), len(ranks)
    order, slots, loose = np.full((3, n), -7, "i4")
    slots = np.full(2 * n, -1, "i4")
    places = np.array(sorted(range(n), key=lambda place: (ranks[place].tier, ranks[place].key, place)))
    moved = rng.random(n) < share
    places[moved] = rng.permutation(places[moved])
    without = rng.random(n) < 0.1
    loose[: without.sum()] = places[without]
    slots[np.sort(rng.permutation(2 * n)[: n - without.sum()])] = places[~without]
    in_previous_order(order, slots, 2 * n, loose, without.sum(), ranks)
    assert order.tolist() == sorted(range(n), key=lambda place: (ranks[place].tier, ranks[place].key, place))


@given(ranks=plans(60))
def test_first_ranked(ranks):
    best = ranking(ranks) or sorted(range(len(ranks)), key=lambda place: (ranks[place].key, place))
    assert first_ranked(ranks, len(ranks)) == best[0]


@given(ranks=plans(40))
def test_pairs(ranks):
    rank = [(line.tier, line.key, place) for place, line in enumerate(ranks)]
    victim = [(line.victim_tier, line.victim_key, place) for place, line in enumerate(ranks)]
    for a, b in zip(range(len(ranks)), reversed(range(len(ranks))), strict=True):
        assert ranks_before(ranks, a, b) == (rank[a] < rank[b])
        assert is_evicted_before(ranks, a, b) == (victim[a] > victim[b])
