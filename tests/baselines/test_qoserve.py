"""QoServe by hand (section 3 of the paper; "Rule, exactly" in docs/systems/qoserve.md): chunks, priority, limits.

A batch takes 1 s + 1 s a token, a block holds one token; `safety` is 1 unless said. Relegation has a file of its own.
"""

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from tests.baselines.qoserve_cases import decided, qoserve
from tests.simulator.forming import SECONDS, decode, formed, linear, ranked, state

pytestmark = pytest.mark.nojit

DECODES, MUST_RUN, WAITING, BEHIND = 0, 1, 2, 2**40


def batch(*rows: dict, model=SECONDS, blocks: int = 1000, now_s: float = 0.0, **settings) -> list[tuple[int, int]]:
    return formed(qoserve(**settings), *rows, model=model, blocks=blocks, now_s=now_s).batch


def chatting(slack_s: float, tpot_slo_s: float = 4.0) -> dict:
    """An interactive decode whose second token has so much time at 0."""
    return decode(arrival_s=slack_s - tpot_slo_s - 8, ttft_slo_s=8, tpot_slo_s=tpot_slo_s)


# Dynamic chunking


def test_the_chunk_fills_the_smallest_slack():
    # 1 + 2 decodes + 9 tokens = 12 s, the smaller slack; both decodes run.
    assert batch(state(20), chatting(12), chatting(30)) == [(1, 1), (2, 1), (0, 9)]
    # Safety 1.5: 8 s. At 2 s 10 of 12 s are left.
    assert batch(state(20), chatting(12), safety=1.5) == [(1, 1), (0, 6)]
    assert batch(state(20), chatting(12), now_s=2.0) == [(1, 1), (0, 8)]


def test_slack_counts_from_the_deadline_of_the_next_token():
    # Two tokens are out: the third is due at 8 + 2 x 4 = 16 s.
    assert batch(state(20), state(3, 2, 4, ttft_slo_s=8, tpot_slo_s=4)) == [(1, 1), (0, 14)]


def test_without_decodes_the_largest_chunk():
    assert batch(state(20), largest_chunk_tokens=15) == [(0, 15)]
    assert decided(qoserve(), state(20)).limits.time_budget_s == np.inf


def test_the_largest_chunk_is_shared_and_beside_the_decodes():
    assert batch(chatting(100), state(3), state(9), largest_chunk_tokens=5) == [(0, 1), (1, 3), (2, 2)]


def test_no_slack_leaves_the_decodes_alone():
    # 1 + 1 s for the decode: nothing else fits in 2 s; nor in 0.5 s, but the decode runs all the same.
    for slack_s in (2.0, 0.5):
        assert batch(state(20), chatting(slack_s, tpot_slo_s=0.25)) == [(1, 1)]


def test_a_decode_that_will_not_catch_up_keeps_its_pace():
    rows = state(20), decode(ttft_slo_s=6, tpot_slo_s=4)  # next token due at 10
    # Up to one TBT late it is caught up: nothing beside it. Later it has its 4 s a token: 1 + 1 + 2.
    assert batch(*rows, now_s=14.0) == [(1, 1)]
    assert batch(*rows, now_s=14.5) == [(1, 1), (0, 2)]
    assert batch(*rows, now_s=14.5, late_limit=2) == [(1, 1)]
    assert batch(*rows, now_s=1e6, late_limit=1e9) == [(1, 1)]  # as printed
    assert batch(*rows, now_s=11.0, late_limit=0) == [(1, 1), (0, 2)]


def test_a_decode_judged_by_its_last_token_sets_no_slack():
    rows = state(20), decode(ttlt_slo_s=12, tpot_slo_s=4)
    assert batch(*rows) == [(1, 1), (0, 20)]


def test_paced_by_the_tokens_that_may_come():
    rows = state(20), decode(ttlt_slo_s=12)
    # Nothing finished: one token in 12 s. Mean 4, deviation 1: 4 + 2 - 1 = 5 tokens in 12 s.
    assert decided(qoserve(ttlt_slack="paced"), *rows).limits.time_budget_s == 12
    assert decided(qoserve(ttlt_slack="paced"), *rows, outputs=(3, 5)).limits.time_budget_s == pytest.approx(12 / 5)
    assert decided(qoserve(ttlt_slack="paced"), *rows, now_s=12.0).limits.time_budget_s == np.inf  # it is too late
    assert decided(qoserve(), *rows, outputs=(3, 5)).limits.time_budget_s == np.inf


def test_contexts_shrink_the_chunk():
    # c (1 + 0.5 cached) <= 12 - 0: a chunk of 12 with nothing cached, of 6 with 2.
    model = linear(c_p=1, b_p=0.5)
    assert batch(chatting(12), state(40), model=model) == [(0, 1), (1, 12)]
    assert batch(chatting(12), state(40, computed=2), model=model) == [(0, 1), (1, 6)]


def test_off_is_a_fixed_budget_decodes_included():
    assert batch(state(400), chatting(3), dynamic_chunking="off") == [(1, 1), (0, 255)]
    limits = decided(qoserve(dynamic_chunking="off", max_num_batched_tokens=7, max_num_seqs=9), chatting(3)).limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs, limits.time_budget_s, limits.untimed_decodes) == (
        7, 9, 0, 0,
    )  # fmt: skip


def test_a_least_chunk_runs_whatever_the_slack():
    # 2 s are for the decode; 5 tokens run all the same, shared by both prompts. More than that only within the slack.
    rows = chatting(2.0), state(3), state(20)
    assert batch(*rows) == [(0, 1)]
    assert batch(*rows, least_chunk_tokens=5, relegation="off") == [(0, 1), (1, 3), (2, 2)]
    assert batch(chatting(9.0), state(3), state(20), least_chunk_tokens=5, relegation="off") == [(0, 1), (1, 3), (2, 4)]
    limits = decided(qoserve(least_chunk_tokens=5), *rows).limits
    assert (limits.untimed_prefill_tokens, limits.time_budget_s, limits.untimed_decodes) == (5, 2, 1)


# Dynamic chunking of the public code


def code_tokens(slack_s: float, decodes: int = 1, blocks: int = 5000) -> int:
    rows = [chatting(slack_s)] * decodes
    return decided(qoserve(dynamic_chunking="code"), *rows, blocks=blocks).limits.max_num_batched_tokens


def test_code_takes_the_largest_size_within_the_slack():
    # 1 s + 512 tokens, times 1.2: 615.6 s.
    assert code_tokens(615.7) == 512 and code_tokens(615.5) == 256
    assert code_tokens(1e6) == 2552 and code_tokens(1.2 * 2049 + 0.1) == 2048 and code_tokens(1.2 * 1025 + 0.1) == 1024
    assert code_tokens(5) == 128 and code_tokens(1.2 * 129 + 0.1) == 128


def test_code_without_slack_is_the_smallest_size():
    assert code_tokens(0) == 128 and code_tokens(-50) == 128
    # It is not paced: 100 s late is late.
    assert batch(state(400), chatting(-100), dynamic_chunking="code") == [(1, 1), (0, 127)]


def test_code_with_little_memory():
    # A decode holds 3 blocks: 1000 are free of 1003, and 999 of 1002.
    assert code_tokens(1e6, blocks=1003) == 2552 and code_tokens(1e6, blocks=1002) == 512
    assert code_tokens(5, blocks=1002) == 128


def test_code_never_cuts_decodes():
    assert code_tokens(5, decodes=130) == 130


# Hybrid priority


def test_priority_is_the_deadline_and_the_work_left():
    rows = (
        state(10, ttft_slo_s=50),
        state(10, computed=4, ttft_slo_s=50, arrival_s=2.0),
        state(10, ttft_slo_s=1, ttlt_slo_s=40),
    )
    assert decided(qoserve(alpha_s_per_token=2), *rows).keys == [70, 64, 60]
    assert decided(qoserve(alpha_s_per_token=0), *rows).keys == [50, 52, 40]  # EDF


def test_priority_counts_the_tokens_that_may_come():
    whole, chat = state(10, ttlt_slo_s=40), state(10, ttft_slo_s=40)
    lost = state(10, emitted=3, ttlt_slo_s=40)  # evicted: 13 to prefill
    keys = decided(qoserve(alpha_s_per_token=2), whole, chat, lost, outputs=(3, 5)).keys
    assert keys == [40 + 2 * (10 + 6), 40 + 2 * 10, 40 + 2 * (13 + 6 - 3)]
    # Longer than ever expected: nothing is taken off.
    long = state(10, emitted=9, ttlt_slo_s=40)
    assert decided(qoserve(alpha_s_per_token=2), long, outputs=(3, 5)).keys == [40 + 2 * 19]


def test_alpha_by_load():
    settings = {"alpha_s_per_token": 2, "low_load_alpha_s_per_token": 1, "low_load_tokens": 20}
    rows = state(9, ttft_slo_s=50), state(12, computed=2, ttft_slo_s=50), decode()
    assert decided(qoserve(**settings), *rows).keys[:2] == [59, 60]  # 19 tokens wait
    assert decided(qoserve(**settings), *rows, state(1)).keys[:2] == [68, 70]  # 20
    # Relegated ones do not count.
    assert decided(qoserve(**settings), *rows, state(9), marks=(0, 0, 0, 1)).keys[:2] == [59, 60]


def test_long_work_gives_way_and_ties_go_by_place():
    rows = state(9, ttft_slo_s=20), state(2, ttft_slo_s=22)
    assert batch(*rows, alpha_s_per_token=1) == [(1, 2), (0, 9)]
    assert batch(*rows, alpha_s_per_token=0) == [(0, 9), (1, 2)]
    assert batch(state(4), state(4), state(4), largest_chunk_tokens=9) == [(0, 4), (1, 4), (2, 1)]


def test_all_off_is_sarathi_edf():
    rows = state(20, ttft_slo_s=60), chatting(30), state(9, ttlt_slo_s=50), state(30, computed=4, ttft_slo_s=45)
    off = qoserve(
        dynamic_chunking="off", max_num_batched_tokens=30, relegation="off", alpha_s_per_token=0,
        selective_preemption="off",
    )  # fmt: skip
    expected = formed(scheduler("sarathi-edf:max_num_batched_tokens=30"), *rows).batch
    assert formed(off, *rows).batch == expected == [(1, 1), (3, 26), (2, 3)]


# Selective preemption

BEGUN = {"computed": 2, "ttft_slo_s": 12}  # 6 tokens left: 7 s


def test_a_begun_prefill_that_cannot_wait_goes_first():
    # A waiting one is due earlier. An iteration of 5 tokens takes 6 s: 12 <= 6 + 7.
    rows = state(3, ttft_slo_s=9), state(8, **BEGUN)
    assert decided(qoserve(largest_chunk_tokens=5), *rows).tiers == [WAITING, MUST_RUN]
    assert batch(*rows, largest_chunk_tokens=5, alpha_s_per_token=0) == [(1, 5)]
    assert batch(*rows, largest_chunk_tokens=5, alpha_s_per_token=0, selective_preemption="off") == [(0, 3), (1, 2)]


def test_it_waits_where_it_can_or_has_nothing_to_save():
    def tier(largest_chunk_tokens: int, now_s: float = 0.0, row: dict | None = None) -> int:
        settings = qoserve(largest_chunk_tokens=largest_chunk_tokens, relegation="off")
        return decided(settings, row or state(8, **BEGUN), now_s=now_s).tiers[0]

    assert tier(4) == MUST_RUN  # 5 + 7: at 12 s, not before
    assert tier(3) == WAITING  # 4 + 7: 11 s
    assert tier(3, now_s=1.0) == MUST_RUN
    assert tier(9, now_s=4.5) == MUST_RUN  # done at 11.5 at best
    assert tier(9, now_s=5.0) == WAITING  # at 12, too late
    assert tier(5, row=state(6, ttft_slo_s=12)) == WAITING  # not begun


def test_the_slack_bounds_the_iteration():
    # 100 tokens would take 102 s, but the decode has 4.5 s: 4.5 + 7 < 12. With 5 s it is 12.
    for slack_s, tier in ((4.5, WAITING), (5, MUST_RUN)):
        rows = chatting(slack_s), state(8, **BEGUN), state(200)
        assert decided(qoserve(largest_chunk_tokens=100), *rows).tiers == [DECODES, tier, WAITING]
    # Less slack than the decode takes: an iteration of 2 s, 2 + 7 < 12; with a least chunk of 3 tokens 5 s, 5 + 7 = 12.
    rows = chatting(0.5), state(8, **BEGUN), state(200)
    assert decided(qoserve(), *rows).tiers[1] == WAITING
    assert decided(qoserve(least_chunk_tokens=3), *rows).tiers[1] == MUST_RUN


def test_a_relegated_prefill_is_passed_over():
    assert decided(qoserve(largest_chunk_tokens=5), state(8, **BEGUN), marks=(1,)).tiers == [BEHIND]


# The rest


def test_decodes_by_arrival_and_victims_in_reverse():
    rows = decode(arrival_s=-1.0), decode(arrival_s=-3.0), state(5)
    assert decided(qoserve(), *rows).tiers == [DECODES, DECODES, WAITING]
    assert batch(*rows) == [(1, 1), (0, 1), (2, 5)]
    rank = ranked(qoserve(), *rows)
    assert rank.victim_ranks == rank.ranks


def test_a_relegated_request_decodes_with_the_others():
    assert decided(qoserve(), decode(), marks=(1,)).tiers == [DECODES]
