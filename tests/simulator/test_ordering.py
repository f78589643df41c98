"""Ranks and windows against sorted(): what is visited, and in which order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.simulator import types as layout
from servegym.simulator.ordering import (
    FIRST_WINDOW,
    first_ranked,
    gives_up_before,
    next_window,
    ranks_before,
    sort,
    whole_queue,
)

pytestmark = pytest.mark.nojit

LEAVE_OUT = int(layout.LEAVE_OUT)
tiers = st.sampled_from([-1, 0, 0, 0, 2, LEAVE_OUT])


@st.composite
def plans(draw, most: int = 300):
    """Ranks with many ties, some requests left out; long ones from a seed, as examples of that size take long."""
    if draw(st.booleans()):
        pairs = draw(st.lists(st.tuples(tiers, st.integers(0, 5)), min_size=1, max_size=20))
        tier, key = zip(*pairs, strict=True)
    else:
        rng, n = np.random.default_rng(draw(st.integers(0, 999))), draw(st.integers(1, most))
        tier, key = rng.choice([0, 0, 0, 1, LEAVE_OUT], n), rng.integers(0, draw(st.sampled_from([1, 9, 10**6])), n)
        if draw(st.booleans()):
            key = np.sort(key)
    ranks = np.zeros(len(tier), layout.RANK)
    ranks["tier"], ranks["key"] = tier, key
    ranks["victim_tier"], ranks["victim_key"] = ranks["tier"], -ranks["key"]
    return ranks


def ranking(ranks) -> list[int]:
    """The places not left out, in rank order; ties by place."""
    places = [place for place in range(len(ranks)) if ranks[place].tier != LEAVE_OUT]
    return sorted(places, key=lambda place: (ranks[place].tier, ranks[place].key, place))


@given(ranks=plans(60))
def test_sort(ranks):
    order = np.random.default_rng(len(ranks)).permutation(len(ranks)).astype("i4")
    sort(order, ranks, len(ranks))
    assert order.tolist() == sorted(range(len(ranks)), key=lambda place: (ranks[place].tier, ranks[place].key, place))


@given(ranks=plans())
def test_the_whole_queue_is_one_window_where_it_is_short_or_in_order(ranks):
    order = np.full(len(ranks), -7, "i4")
    n = whole_queue(order, ranks, len(ranks))
    expected = ranking(ranks)
    if n == -1:
        assert len(ranks) > FIRST_WINDOW and expected != sorted(expected)
    else:
        assert order[:n].tolist() == expected


@st.composite
def queues(draw):
    """A plan with requests: waiting or holding, prefilling or decoding, and what the batch is still open to."""
    ranks = draw(plans())
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    requests = np.zeros(len(ranks), layout.REQUEST)
    requests["prompt_tokens"] = 5
    requests["emitted_tokens"] = rng.integers(0, 2, len(ranks))
    requests["blocks"] = rng.integers(0, 2, len(ranks))
    requests["computed_tokens"] = np.where(requests["blocks"] > 0, 5, 0)
    packing = np.zeros(1, layout.PACKING)[0]
    for field in ("admitting", "decodes_fit", "prefills_fit"):
        packing[field] = draw(st.integers(0, 1))
    return ranks, requests, rng.permutation(len(ranks)).astype("i4"), packing


def may_get_something(request, packing) -> bool:
    if not packing.admitting and request.blocks == 0:
        return False
    if request.emitted_tokens == 0:
        return bool(packing.prefills_fit)
    # Without memory it prefills, or decodes where it finds all but a token of its context.
    return bool(packing.decodes_fit or (packing.prefills_fit and request.blocks == 0))


@settings(max_examples=60)
@given(case=queues(), size=st.integers(1, 100))
def test_windows_one_after_another_are_the_ranking(case, size):
    ranks, requests, queue, packing = case
    visited: list[int] = []
    more, windows = True, 0
    while more:
        order = np.full(len(ranks), -7, "i4")
        n, more = next_window(order, ranks, len(ranks), visited[-1] if visited else -1, size, requests, queue, packing)
        assert n > 0 or not more
        visited += order[:n].tolist()
        windows += 1
        assert windows <= len(ranks) + 1
    expected = [place for place in ranking(ranks) if may_get_something(requests[queue[place]], packing)]
    assert visited == expected


def test_a_window_of_a_long_queue_is_short():
    """Else everything would be sorted for a batch that takes a few."""
    n = 4000
    ranks, requests = np.zeros(n, layout.RANK), np.zeros(n, layout.REQUEST)
    ranks["key"] = np.random.default_rng(1).permutation(n)
    packing = np.zeros(1, layout.PACKING)[0]
    packing.admitting = packing.decodes_fit = packing.prefills_fit = 1
    order, queue = np.zeros(n, "i4"), np.arange(n, dtype="i4")
    found, more = next_window(order, ranks, n, -1, FIRST_WINDOW, requests, queue, packing)
    assert more and FIRST_WINDOW / 4 <= found <= 8 * FIRST_WINDOW
    assert ranks["key"][order[:found]].tolist() == list(range(found))


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
        assert gives_up_before(ranks, a, b) == (victim[a] > victim[b])
