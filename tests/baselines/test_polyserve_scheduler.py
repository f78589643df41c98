"""PolyServe's batches by hand: decodes, then prefills by deadline; chunks by the TPOT, or up to twice the budget."""

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.simulator.records.types import LIMITS, RANK, ROLE_PREFILL
from tests.simulator.forming import decode, formed, ranked, state, waiting_for_a_batch

pytestmark = pytest.mark.nojit


def policy(max_num_batched_tokens: int):
    return scheduler("polyserve").with_settings(max_num_batched_tokens=max_num_batched_tokens)


def test_decodes_then_prefills_by_deadline():
    rows = [state(9, ttft_slo_s=90.0), decode(arrival_s=1.0), state(4, ttft_slo_s=80.0), decode()]
    assert formed(policy(8), *rows, now_s=1.0).batch == [(3, 1), (1, 1), (2, 4), (0, 2)]


def test_prefills_that_cannot_be_in_time_come_last():
    # A batch takes 1 s + 1 s a token; in chunks of 4, 12 tokens take 3 x 5 s, 2 tokens 3 s. 15 is not before 15.
    rows = [state(12, ttft_slo_s=15.0), state(2, ttft_slo_s=50.0), state(12, ttft_slo_s=15.1)]
    assert [tier for tier, _ in ranked(policy(4), *rows).ranks] == [2, 1, 1]
    assert formed(policy(4), *rows).batch == [(2, 4)]
    assert formed(policy(4), *rows, now_s=1.0).batch == [(1, 2), (0, 2)]


def test_what_is_computed_already_counts():
    rows = [state(12, 0, 8, ttft_slo_s=5.1)]  # 4 left: 5 s
    assert ranked(policy(4), *rows).ranks[0][0] == 1


@pytest.mark.parametrize(("tpot_s", "tokens"), [(6.0, 3), (6.9, 3), (7.0, 4), (100.0, 14), (2.9, 0)])
def test_chunks_keep_to_the_tightest_tpot(tpot_s, tokens):
    # 2 decodes: 1 + 2 s, and 1 s a token; 16 tokens in all.
    rows = [decode(tpot_slo_s=tpot_s), decode(tpot_slo_s=50.0), state(30, tpot_slo_s=1.0)]
    prefill = [(2, tokens)] if tokens else []
    assert formed(policy(16), *rows).batch == [(0, 1), (1, 1), *prefill]


def test_late_decodes_bound_nothing():
    # The next token of the first was due at 2 + 4.
    rows = [decode(ttft_slo_s=2.0, tpot_slo_s=4.0), decode(tpot_slo_s=9.0), state(30)]
    assert formed(policy(16), *rows, now_s=5.9).batch == [(0, 1), (1, 1), (2, 1)]
    assert formed(policy(16), *rows, now_s=6.0).batch == [(0, 1), (1, 1), (2, 6)]


def test_more_decodes_than_the_budget_run():
    assert formed(policy(2), decode(), decode(), decode(), state(4)).batch == [(0, 1), (1, 1), (2, 1)]


def budget_of_a_prefill_engine(*queue: dict) -> int:
    """The limit on tokens under a budget of 4."""
    simulation = waiting_for_a_batch(policy(4), *queue)
    simulation.arrays.engines[0]["role"] = ROLE_PREFILL
    limits, ranks = np.zeros(1, LIMITS), np.zeros(len(queue), RANK)
    policy(4).function.entry(simulation.scheduler_context(0, 0.0), ranks, limits[0])
    return int(limits[0]["max_num_batched_tokens"])


@pytest.mark.parametrize(("left", "budget"), [(3, 4), (4, 4), (5, 5), (7, 7), (8, 4), (9, 4)])
def test_dynamic_chunking(left, budget):
    # What is left of the first one runs at once below twice the budget; others join it only up to the budget itself.
    assert budget_of_a_prefill_engine(state(left)) == budget
    assert budget_of_a_prefill_engine(state(6, ttft_slo_s=2000.0), state(left)) == budget
    assert budget_of_a_prefill_engine(state(left + 9, 0, 9), state(6, ttft_slo_s=2000.0)) == budget
