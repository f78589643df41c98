"""Medha's chunking by hand: a batch takes 1 s + 1 s a token unless said otherwise, a block holds one token."""

import pytest

from servegym.baselines.registry import scheduler
from tests.simulator.forming import decode, formed, linear, ranked, state

pytestmark = pytest.mark.nojit


def medha(**settings):
    return scheduler("medha").with_settings(**({"tbt_s": 8, "safety": 1} | settings))


def batch(*rows: dict, **settings) -> list[tuple[int, int]]:
    return formed(medha(**settings), *rows).batch


def test_a_chunk_holds_the_time_between_tokens():
    # 1 + one decode + 6 tokens = 8 s, though the decode's own deadline is 2000 s away.
    assert batch(state(20), decode()) == [(1, 1), (0, 6)]
    assert batch(state(20)) == [(0, 7)]  # without decodes too


def test_safety_divides_the_time():
    assert batch(state(20), safety=2) == [(0, 3)]


def test_chunks_shrink_as_the_context_grows():
    # 0.5 s a token + 0.25 s for each token computed x token cached: c (0.5 + 0.25 cached) <= 6.
    policy, model = medha(tbt_s=6), linear(c_p=0.5, b_p=0.25)
    chunks = [formed(policy, state(40, computed=cached), model=model).batch[0][1] for cached in (0, 2, 4, 10, 22)]
    assert chunks == [12, 6, 4, 2, 1]


def test_in_order_of_arrival_whatever_the_deadline():
    rows = state(4, arrival_s=-1.0, ttft_slo_s=1000), state(4, arrival_s=-2.0, ttft_slo_s=1000), state(4, ttft_slo_s=1)
    assert batch(*rows) == [(1, 4), (0, 3)]
    assert batch(state(4), state(4)) == [(0, 4), (1, 3)]  # ties by place


def test_decodes_always_run_and_leave_nothing():
    # Nine decodes take 10 s: over 8, but they are not cut; no prefill fits.
    assert batch(state(4), *[decode() for _ in range(9)]) == [(place, 1) for place in range(1, 10)]


def test_the_largest_chunk_is_shared_and_beside_the_decodes():
    assert batch(decode(), state(3), state(9), tbt_s=10, largest_chunk_tokens=5) == [(0, 1), (1, 3), (2, 2)]
    limits = ranked(medha(largest_chunk_tokens=5, max_num_seqs=7), decode(), decode(), state(1)).limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs, limits.time_budget_s, limits.untimed_decodes) == (
        7, 7, 8, 1,
    )  # fmt: skip


def test_the_time_is_by_default_the_smallest_tpot_slo():
    rows = state(1, tpot_slo_s=0.5), state(1, tpot_slo_s=0.25)
    assert ranked(scheduler("medha").with_settings(safety=2), *rows).limits.time_budget_s == 0.125
