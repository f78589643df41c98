"""Windows of a queue against sorted(): what is visited, and in which order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.simulator.batching.ordering import first_to_run, leave_out_unlisted
from servegym.simulator.batching.windows import (
    FIRST_WINDOW,
    NOT_NUMBERS,
    OUT_OF_ORDER,
    keep_visits,
    listed_positions,
    next_window,
    whole_queue,
)
from servegym.simulator.records import types as layout
from tests.simulator.rank_strategies import LEAVE_OUT, plans, ranking, tiers

pytestmark = pytest.mark.nojit


def whole(ranks, previous_order=None, last_batch_length=0) -> tuple[int, list[int]]:
    """What `whole_queue` says of a queue and what it writes first. previous_order: as in `Queue`."""
    case = Queue(ranks, np.zeros(len(ranks), layout.REQUEST), np.arange(len(ranks), dtype="i4"), previous_order)
    case.engine.last_batch_length = last_batch_length
    return whole_queue(case.orders, ranks, case.previous_order, case.engine, case.packing), case.orders[0].tolist()


@given(ranks=plans(), data=st.data(), seed=st.integers(0, 999))
def test_the_whole_queue_is_one_window_where_it_is_short_or_almost_in_order(ranks, data, seed):
    """Whatever the previous_order; or where the last batch had half of it."""
    n, rng = len(ranks), np.random.default_rng(seed)
    previous_order = data.draw(st.sampled_from([None, rng.integers(0, 2 * n, n), in_order_but_for_a_few(ranks, rng)]))
    before = data.draw(st.sampled_from([0, n // 2 - 1, n - n // 2]))
    n, order = whole(ranks, previous_order, before)
    expected = ranking(ranks)
    if n == OUT_OF_ORDER:
        assert len(ranks) > max(FIRST_WINDOW, 2 * before) and expected != sorted(expected)
    else:
        assert order[:n] == expected


@given(seed=st.integers(0, 999))
def test_a_long_queue_with_few_out_of_place_is_one_window(seed):
    rng, n = np.random.default_rng(seed), 10 * FIRST_WINDOW
    ranks = np.zeros(n, layout.RANK)
    ranks["key"] = np.arange(n) - rng.choice([0, 0, 0, 0, 5], n)  # each goes before 5 others at most: 1 on average
    ranks["tier"][rng.random(n) < 0.1] = LEAVE_OUT
    n, order = whole(ranks)
    assert order[:n] == ranking(ranks)


def test_a_long_queue_with_many_out_of_place_is_none():
    ranks = np.zeros(10 * FIRST_WINDOW, layout.RANK)
    ranks["key"] = np.random.default_rng(0).permutation(len(ranks))
    assert whole(ranks)[0] == OUT_OF_ORDER


def test_a_queue_of_which_the_last_batch_had_much_is_sorted_by_its_turns():
    ranks = np.zeros(10 * FIRST_WINDOW, layout.RANK)
    ranks["key"] = np.random.default_rng(0).permutation(len(ranks))
    n, order = whole(ranks, ranks["key"].astype("i4") + 1, len(ranks) // 2)
    assert order[:n] == ranking(ranks)
    ranks["key"][7] = np.nan
    assert whole(ranks, None, len(ranks) // 2)[0] == NOT_NUMBERS


@given(ranks=plans(), data=st.data(), seed=st.integers(0, 999))
def test_what_is_listed_runs_and_the_others_are_left_out(ranks, data, seed):
    """Whatever the previous_order."""
    listed = sorted(data.draw(st.sets(st.integers(0, len(ranks) - 1), min_size=1)))
    ranks["listed"][: len(listed)] = listed
    limits, orders = np.zeros(1, layout.LIMITS)[0], np.full((3, len(ranks)), -7, "i4")
    limits.listed = len(listed)
    packing, most = np.zeros(1, layout.PACKING)[0], data.draw(st.integers(0, 2 * len(ranks)))
    previous_order = np.random.default_rng(seed).integers(0, 2 * len(ranks), len(ranks)).astype("i4")
    n = listed_positions(orders, ranks, len(listed), previous_order, most, packing)
    first = first_to_run(ranks, limits, len(ranks))
    leave_out_unlisted(ranks, limits, len(ranks))
    assert orders[0][:n].tolist() == ranking(ranks)
    assert first == min(listed, key=lambda place: (ranks[place].tier, ranks[place].key, place))


class Queue:
    """An engine's queue as the packer has it: requests, what the batch is open to, and what the last one has left.

    previous_order: of the last batch, by place in the queue; bound: the rank up to which it came. None: there was none.
    """

    def __init__(self, ranks, requests, queue, previous_order=None, bound=(0, 0.0)):
        self.ranks, self.requests, self.queue = ranks, requests, queue
        self.engine, self.packing = np.zeros(1, layout.ENGINE)[0], np.zeros(1, layout.PACKING)[0]
        self.previous_order, self.orders = np.zeros(len(ranks), "i4"), np.full((3, len(ranks)), -7, "i4")
        self.engine.queue_length = len(ranks)
        self.packing.admitting = self.packing.decodes_fit = self.packing.prefills_fit = 1
        if previous_order is not None:
            self.previous_order[:] = previous_order
            visits = self.engine.visits
            visits.previous_length, visits.bound_tier, visits.bound_key = max(previous_order, default=0) + 1, *bound

    def window(self, last, size):
        """The places in the window after `last`, and whether there may be more."""
        self.engine.last_batch_length = size
        n, more = next_window(
            self.orders, self.ranks, self.previous_order, self.engine, last, self.requests, self.queue, self.packing
        )
        self.packing.window_length = n
        return self.orders[0][: max(n, 0)].tolist(), more


@st.composite
def queues(draw):
    """A plan with requests: waiting or holding, prefilling or decoding, what the batch is still open to, and a previous
    order that may have nothing to do with the ranks."""
    ranks = draw(plans())
    n, rng = len(ranks), np.random.default_rng(draw(st.integers(0, 999)))
    requests = np.zeros(n, layout.REQUEST)
    requests["prompt_tokens"] = 5
    requests["num_output_tokens"] = rng.integers(0, 2, n)
    requests["blocks"] = rng.integers(0, 2, n)
    requests["computed_tokens"] = np.where(requests["blocks"] > 0, 5, 0)
    previous_order = draw(
        st.sampled_from([None, np.zeros(n, "i4"), rng.integers(0, 2 * n, n), in_order_but_for_a_few(ranks, rng)])
    )
    bound = draw(st.tuples(tiers, st.integers(0, 9)))
    case = Queue(ranks, requests, rng.permutation(n).astype("i4"), previous_order, bound)
    for field in ("admitting", "decodes_fit", "prefills_fit"):
        case.packing[field] = draw(st.integers(0, 1))
    return case


def in_order_but_for_a_few(ranks, rng) -> np.ndarray:
    """The previous_order of places that were in today's order, three of which have moved since."""
    previous_order = np.zeros(len(ranks), "i4")
    previous_order[np.lexsort((ranks["key"], ranks["tier"]))] = np.arange(1, len(ranks) + 1)
    some = rng.integers(0, len(ranks), 3)
    previous_order[some] = previous_order[some[::-1]]
    return previous_order


def may_get_something(request, packing) -> bool:
    if not packing.admitting and request.blocks == 0:
        return False
    if request.num_output_tokens == 0:
        return bool(packing.prefills_fit)
    # Without memory it prefills, or decodes where it finds all but a token of its context.
    return bool(packing.decodes_fit or (packing.prefills_fit and request.blocks == 0))


@settings(max_examples=100)
@given(case=queues(), size=st.integers(1, 100))
def test_windows_one_after_another_are_the_ranking(case, size):
    """Whatever the last batch has left: previous_order and the bound are hints."""
    visited: list[int] = []
    more, windows = True, 0
    while more:
        places, more = case.window(visited[-1] if visited else -1, size)
        visited += places
        windows += 1
        assert places or not more or windows == 1  # what the last batch came to may rank before all there are now
        assert windows <= len(case.ranks) + 2
    may = [may_get_something(case.requests[case.queue[place]], case.packing) for place in range(len(case.ranks))]
    assert visited == [place for place in ranking(case.ranks) if may[place]]


def long_queue(n: int = 4000) -> Queue:
    ranks, requests = np.zeros(n, layout.RANK), np.zeros(n, layout.REQUEST)
    ranks["key"] = np.random.default_rng(1).permutation(n)
    return Queue(ranks, requests, np.arange(n, dtype="i4"))


def test_a_window_of_a_long_queue_is_short():
    """Else everything would be sorted for a batch that takes a few."""
    case = long_queue()
    places, more = case.window(-1, FIRST_WINDOW)
    assert more and FIRST_WINDOW / 4 <= len(places) <= 8 * FIRST_WINDOW
    assert case.ranks["key"][places].tolist() == list(range(len(places)))


def test_the_next_batch_looks_a_quarter_further_than_the_last_has_come():
    case = long_queue()
    case.window(-1, FIRST_WINDOW)
    case.packing.visited = 20
    keep_visits(case.engine.visits, case.packing, case.orders[0], case.ranks)
    case.packing.windows = 0
    assert case.window(-1, FIRST_WINDOW) == (case.orders[0][:34].tolist(), True)  # 20 + 5 + 8, and the one at the bound


def test_a_window_with_a_key_that_is_no_number_is_refused():
    case = long_queue(100)
    case.ranks["key"][50] = np.nan
    case.window(-1, 100)
    assert case.packing.window_length == NOT_NUMBERS
