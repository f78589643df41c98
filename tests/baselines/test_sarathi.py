"""Sarathi-Serve by hand: decodes first, then prefill chunks, under a static token budget."""

import pytest

from servegym.baselines.registry import scheduler
from tests.simulator.forming import decode, formed, ranked, state

pytestmark = pytest.mark.nojit

BOTH = pytest.mark.parametrize("name", ["sarathi-fcfs", "sarathi-priority"])


def budget(name: str, tokens: int, **more: int):
    return scheduler(name).with_settings(max_num_batched_tokens=tokens, **more)


@BOTH
def test_decodes_go_first_in_order_of_arrival(name):
    rows = [state(9), decode(priority=2), state(9, 0, 4), decode(priority=0)]
    assert formed(budget(name, 6), *rows).batch == [(1, 1), (3, 1), (0, 4)]


def test_prefills_by_arrival_or_by_priority():
    rows = [state(4, priority=1), state(5, priority=0), decode(priority=1), state(2, priority=0)]
    assert formed(budget("sarathi-fcfs", 7), *rows).batch == [(2, 1), (0, 4), (1, 2)]
    assert formed(budget("sarathi-priority", 7), *rows).batch == [(2, 1), (1, 5), (3, 1)]
    assert formed(budget("sarathi-priority", 20), *rows).batch == [(2, 1), (1, 5), (3, 2), (0, 4)]


def test_priority_does_not_put_a_chunk_before_a_decode():
    rows = [state(4, priority=-5), decode(priority=9)]
    assert formed(budget("sarathi-priority", 3), *rows).batch == [(1, 1), (0, 2)]


@BOTH
def test_ties_in_arrival_go_by_place(name):
    rows = [state(3, arrival_s=1.0), state(3, arrival_s=1.0), state(3, arrival_s=0.5)]
    assert [key for _, key in ranked(scheduler(name), *rows, now_s=1.0).ranks] == [1.0, 1.0, 0.5]
    assert formed(budget(name, 5), *rows, now_s=1.0).batch == [(2, 3), (0, 2)]


@BOTH
def test_an_evicted_request_prefills_with_the_others(name):
    # Its context of 3 + 2 tokens is to be computed again: no decode, and no place before the earlier arrival.
    assert formed(budget(name, 6), state(2), state(3, 2)).batch == [(0, 2), (1, 4)]


@BOTH
def test_limits(name):
    limits = ranked(budget(name, 33, max_num_seqs=5), state(3)).limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == (33, 5)
    assert ranked(scheduler(name), state(3)).limits.max_num_seqs == 128
    rows = [state(3), decode(), state(3), state(3)]
    assert formed(budget(name, 20, max_num_seqs=2), *rows).batch == [(1, 1), (0, 3)]


@BOTH
def test_more_decodes_than_the_budget(name):
    assert formed(budget(name, 2), decode(), decode(), decode(), state(4)).batch == [(0, 1), (1, 1)]


@BOTH
def test_the_latest_prefill_gives_up_memory_first(name):
    rows = [decode(), state(9, 0, 3), state(9, 0, 2)]
    assert formed(budget(name, 99), *rows, blocks=8) == ([(0, 1)], [2], 1)
