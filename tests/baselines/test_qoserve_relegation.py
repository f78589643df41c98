"""QoServe's eager relegation by hand (section 3.4, Algorithm 1; step 5 of "Rule, exactly" in docs/systems/qoserve.md).

A batch takes 1 s + 1 s a token, a block holds one token; `safety` is 1, alpha 0: prefills go by deadline.
"""

import pytest

from tests.baselines.qoserve_cases import Decided, decided, qoserve
from tests.simulator.forming import decode, formed, state

pytestmark = pytest.mark.nojit

NONE, RELEGATED = 0, 1
HIGH, LOW, LOWEST = 0, 1, 2


def relegating(*rows: dict, marks=(), outputs=(), iterations=(0.0, 0), now_s: float = 0.0, **settings) -> Decided:
    policy = qoserve(**({"alpha_s_per_token": 0} | settings))
    return decided(policy, *rows, marks=marks, outputs=outputs, iterations=iterations, now_s=now_s)


def marks_of(*rows: dict, **more) -> list[int]:
    return relegating(*rows, **more).marks


def batch(*rows: dict, **settings) -> list[tuple[int, int]]:
    return formed(qoserve(**({"alpha_s_per_token": 0} | settings)), *rows).batch


def test_late_is_at_the_end_of_the_iteration_or_before():
    # 4 tokens end at 5 s. A token at its deadline is late.
    assert marks_of(state(4, ttft_slo_s=5.5)) == [NONE]
    assert marks_of(state(4, ttft_slo_s=5)) == [RELEGATED]
    assert marks_of(state(4, ttft_slo_s=5.5), now_s=0.5) == [RELEGATED]
    assert marks_of(state(4, ttft_slo_s=3), now_s=90.0) == [RELEGATED]  # long past
    assert marks_of(state(4, ttlt_slo_s=5)) == [RELEGATED]
    assert marks_of(state(4, ttft_slo_s=5), relegation="off") == [NONE]


def test_only_this_iteration_counts():
    # 40 tokens cannot be done in 10 s; an iteration of 4 tokens ends at 5 s.
    assert marks_of(state(40, ttft_slo_s=10), largest_chunk_tokens=4) == [NONE]
    assert marks_of(state(40, ttft_slo_s=10)) == [RELEGATED]


def test_the_end_is_that_of_the_batch_so_far():
    # 4 + 3 tokens end at 8 s: in time alone, late behind the first.
    rows = state(4, ttft_slo_s=6), state(3, ttft_slo_s=8)
    assert marks_of(*rows) == [NONE, RELEGATED]
    # The first is relegated, so the second is alone.
    assert marks_of(state(4, ttft_slo_s=5), state(3, ttft_slo_s=8)) == [RELEGATED, NONE]
    # A decode counts: 1 + 1 + 4 = 6 s.
    assert marks_of(state(4, ttft_slo_s=6), decode()) == [RELEGATED, NONE]


def test_whose_turn_does_not_come_is_not_tested():
    rows = state(4, ttft_slo_s=6), state(3, ttft_slo_s=8)
    assert marks_of(*rows, largest_chunk_tokens=4) == [NONE, NONE]
    # The third gets the one token that is left of five: 6 s.
    three = state(4, ttft_slo_s=20), state(3, ttft_slo_s=2), state(3, ttft_slo_s=20)
    assert marks_of(*three, largest_chunk_tokens=5) == [NONE, RELEGATED, NONE]


def test_relegated_go_behind_and_stay_there():
    rows = state(4, ttft_slo_s=5), state(3, ttft_slo_s=100), state(2, ttft_slo_s=1)
    assert marks_of(*rows) == [RELEGATED, NONE, RELEGATED]
    # The one in time runs; then, as there is room, the relegated by their deadlines.
    assert batch(*rows) == [(1, 3), (2, 2), (0, 4)]
    assert marks_of(state(4), marks=(RELEGATED,)) == [RELEGATED]  # in time now, and not tested again
    assert relegating(*rows, marks=(1, 0, 1)).tiers[0] > relegating(*rows).tiers[1]


def test_all_hopeless_run_by_deadline():
    rows = [state(4, ttft_slo_s=slo_s) for slo_s in (3, 1, 2)]
    assert marks_of(*rows) == [RELEGATED] * 3
    assert batch(*rows, largest_chunk_tokens=9) == [(1, 4), (2, 4), (0, 1)]


def test_an_empty_queue_of_prefills():
    assert marks_of(decode(), decode()) == [NONE, NONE]


def test_the_slack_of_decodes_shortens_the_chunk_that_is_tested():
    # The decode has 6 s: 4 tokens of 40 fit and end at 6 s.
    slack = decode(ttft_slo_s=2, tpot_slo_s=4)
    assert marks_of(slack, state(40, ttft_slo_s=7)) == [NONE, NONE]
    assert marks_of(slack, state(40, ttft_slo_s=6)) == [NONE, RELEGATED]


def test_where_nothing_fits_the_first_is_tested_and_no_more():
    # The decode has 2 s, which it takes: no token fits. A batch without them ends at 2 s.
    slack = decode(ttft_slo_s=1, tpot_slo_s=1)
    assert marks_of(slack, state(4, ttft_slo_s=3), state(4, ttft_slo_s=1.5)) == [NONE, NONE, RELEGATED]
    assert marks_of(slack, state(4, ttft_slo_s=2), state(4, ttft_slo_s=3)) == [NONE, RELEGATED, NONE]
    assert marks_of(slack, state(4, ttft_slo_s=3), state(4, ttft_slo_s=9, arrival_s=-8.0)) == [NONE, NONE, RELEGATED]


def test_the_least_chunk_counts_in_the_end():
    # The decode has 2 s; 5 tokens run all the same and end at 7 s, 3 of the first and 2 of the second.
    rows = decode(ttft_slo_s=1, tpot_slo_s=1), state(3, ttft_slo_s=6), state(9, ttft_slo_s=7.5)
    assert marks_of(*rows) == [NONE, NONE, NONE]  # none fits: only the first is tested, with the decode's 2 s
    assert marks_of(*rows, least_chunk_tokens=5) == [NONE, NONE, NONE]
    assert marks_of(*rows, least_chunk_tokens=5, now_s=0.5) == [NONE, NONE, RELEGATED]
    assert marks_of(*rows, least_chunk_tokens=5, now_s=1.0) == [NONE, RELEGATED, RELEGATED]  # at 6 s and 8 s


def test_a_lost_answer_is_late_by_its_next_token():
    # Its first token was in time; the third is due at 2 + 2 x 4 = 10 s, and its 5 + 2 tokens take 8 s.
    lost = state(5, emitted=2, ttft_slo_s=2, tpot_slo_s=4)
    assert marks_of(lost) == [NONE] and marks_of(lost, now_s=2.0) == [RELEGATED]


# Importance


def test_less_important_ones_go_with_a_late_one():
    rows = [state(4, ttft_slo_s=5, priority=HIGH), state(3, priority=LOW), state(2, priority=HIGH)]
    rows += [state(1, priority=LOWEST)]
    assert marks_of(*rows) == [RELEGATED, RELEGATED, NONE, RELEGATED]
    assert batch(*rows) == [(2, 2), (0, 4), (1, 3), (3, 1)]
    assert marks_of(*rows, importance="spare") == [NONE] * 4
    assert marks_of(*rows, importance="ignore") == [RELEGATED, NONE, NONE, NONE]


def test_spared_it_takes_its_part_of_the_batch():
    # 1 + 4 + 3 = 8 s with the late one in front, 4 s without.
    rows = state(4, ttft_slo_s=5, priority=HIGH), state(3, ttft_slo_s=8, priority=LOW), state(1, priority=LOWEST)
    assert batch(*rows, importance="spare") == [(0, 4), (1, 3), (2, 1)]
    assert marks_of(*rows, importance="spare") == [NONE, NONE, NONE]
    assert marks_of(*rows[:2], importance="spare") == [NONE, RELEGATED]  # it has no lower one itself
    assert marks_of(*rows[:2], importance="ignore") == [RELEGATED, NONE]


@pytest.mark.parametrize("importance", ["low-first", "spare", "ignore"])
def test_high_importance_is_relegated_where_no_lower_is_left(importance):
    late, high = state(4, ttft_slo_s=5, priority=HIGH), state(3, priority=HIGH)
    assert marks_of(late, high, importance=importance) == [RELEGATED, NONE]
    # A low one that is relegated already, or decodes, is not left.
    low = state(3, priority=LOW)
    assert marks_of(late, low, marks=(0, 1), importance=importance) == [RELEGATED, RELEGATED]
    assert marks_of(late, decode(priority=LOW), importance=importance) == [RELEGATED, NONE]


@pytest.mark.parametrize("importance", ["low-first", "spare", "ignore"])
def test_a_late_one_of_low_importance_is_relegated_alone(importance):
    rows = state(4, ttft_slo_s=5, priority=LOW), state(3, priority=LOW), state(2, priority=HIGH)
    assert marks_of(*rows, importance=importance) == [RELEGATED, NONE, NONE]


def test_one_already_taken_does_not_go():
    # The low one is in time, ranks first and is taken; the high one behind it is late: 1 + 3 + 4 = 8 s.
    rows = state(3, ttft_slo_s=6, priority=LOW), state(4, ttft_slo_s=8, priority=HIGH)
    assert marks_of(*rows) == [NONE, RELEGATED]
    # One as early, but at a later place, goes.
    rows = state(4, ttft_slo_s=5, priority=HIGH), state(3, ttft_slo_s=5, priority=LOW)
    assert marks_of(*rows) == [RELEGATED, RELEGATED]


def test_the_order_among_the_relegated():
    rows = (
        state(4, ttft_slo_s=5, priority=HIGH),
        state(3, ttft_slo_s=90, priority=LOW),
        state(2, ttft_slo_s=80, priority=2),
    )
    assert batch(*rows) == [(0, 4), (2, 2), (1, 3)]
    assert batch(*rows, relegated_order="low-first") == [(2, 2), (1, 3), (0, 4)]


# Relegation of the public code


def test_code_goes_by_work_over_throughput():
    # 10 tokens in 20 s: 2 s a token. 4 tokens need 8 s: late if after the deadline, not at it.
    assert marks_of(state(4, ttft_slo_s=8), relegation="code", iterations=(20.0, 10)) == [NONE]
    assert marks_of(state(4, ttft_slo_s=7.5), relegation="code", iterations=(20.0, 10)) == [RELEGATED]
    # Whole answers: 4 + 6 tokens that may come.
    whole = {"outputs": (3, 5), "relegation": "code", "iterations": (20.0, 10)}
    assert marks_of(state(4, ttlt_slo_s=20), **whole) == [NONE]
    assert marks_of(state(4, ttlt_slo_s=19.5), **whole) == [RELEGATED]


def test_code_before_the_first_iteration_goes_by_the_deadline():
    assert marks_of(state(4, ttft_slo_s=5), relegation="code") == [NONE]
    assert marks_of(state(4, ttft_slo_s=5), relegation="code", now_s=5.0) == [NONE]
    assert marks_of(state(4, ttft_slo_s=5), relegation="code", now_s=5.5) == [RELEGATED]


def test_code_spares_what_holds_memory():
    assert marks_of(state(4, computed=1, ttft_slo_s=5), relegation="code", now_s=50.0) == [NONE]
    assert marks_of(state(4, computed=1, ttft_slo_s=5), now_s=50.0) == [RELEGATED]


# Many at once


def test_a_long_queue_is_gone_through_in_rank_order():
    """90 prompts of one token, due at 30.5 - k / 4 s: of the first in turn, which end at 2, 3, ... s, some are late."""
    due_s = [30.5 - k / 4 for k in range(90)]
    end_s, late = 1.0, []
    for k in reversed(range(90)):
        if due_s[k] <= end_s + 1:
            late.append(k)
        else:
            end_s += 1
    assert 30 < len(late) < 75
    marks = marks_of(*[state(1, ttft_slo_s=20.0, arrival_s=due - 20) for due in due_s])
    assert [k for k in reversed(range(90)) if marks[k] == RELEGATED] == late
