"""The requests that rank first, chosen without sorting the queue."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.simulator.records.types import IN_TASK, LEAVE_OUT, RANK, REQUEST
from tests.baselines.observations.seeing import choose

pytestmark = pytest.mark.nojit

TIERS = [-2, 0, 0, 1, int(LEAVE_OUT), int(IN_TASK)]


def chosen(ranks: list[tuple[int, float]], slots: int, decodes: tuple[int, ...] = (), beyond: int = 2) -> list[int]:
    requests = np.zeros(len(ranks), REQUEST)
    requests["prompt_tokens"] = 2
    for r in decodes:
        requests[r]["num_output_tokens"], requests[r]["computed_tokens"] = 1, 2
    plan = np.zeros(len(ranks), RANK)
    plan["tier"], plan["key"] = [tier for tier, _ in ranks], [key for _, key in ranks]
    before = plan.copy()
    room = min(slots, len(ranks))
    order = np.full(room + beyond, -7, "i4")
    filled = choose(requests, np.arange(len(ranks), dtype="i4"), plan, slots, order)
    assert (plan == before).all() and (order[room:] == -7).all()
    return order[:filled].tolist()


def sorted_places(ranks: list[tuple[int, float]], slots: int) -> list[int]:
    places = [place for place, (tier, _) in enumerate(ranks) if tier < LEAVE_OUT]
    return sorted(places, key=lambda place: (*ranks[place], place))[:slots]


rank = st.tuples(st.sampled_from(TIERS), st.one_of(st.integers(-3, 3).map(float), st.floats(allow_nan=False)))


@given(st.lists(rank, max_size=60), st.integers(0, 40), st.sets(st.integers(0, 59)))
@settings(max_examples=400, deadline=None)
def test_it_is_the_beginning_of_the_sorted_queue_prefills_before_decodes(ranks, slots, decodes):
    decodes = tuple(r for r in decodes if r < len(ranks))
    in_order = sorted_places(ranks, len(ranks))
    prefills = [place for place in in_order if place not in decodes][:slots]
    wanted = prefills + [place for place in in_order if place in decodes][: slots - len(prefills)]
    assert chosen(ranks, slots, decodes) == sorted(wanted, key=in_order.index)


def test_long_queues():
    random = np.random.default_rng(0)
    keys = random.integers(0, 300, 1000)
    for ranks in ([(0, float(key)) for key in keys], [(0, float(-k)) for k in range(1000)], [(0, 0.0)] * 1000):
        for slots in (1, 31, 32, 999, 1000, 2000):
            assert chosen(ranks, slots) == sorted_places(ranks, slots)


def test_ties_go_to_the_earlier_place_and_none_left_out_is_chosen():
    out = int(LEAVE_OUT)
    assert chosen([(0, 1.0), (out, 0.0), (0, 1.0), (-1, 9.0), (int(IN_TASK), 0.0)], 8) == [3, 0, 2]
    assert chosen([(out, 0.0)] * 3, 2) == [] and chosen([], 4) == [] and chosen([(0, 0.0)], 0) == []
