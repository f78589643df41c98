"""SLOs-Serve's plan by hand: a batch takes 1 s + 1 s a token, so a batch of t seconds has t - 1 prefill tokens."""

import pytest

from servegym.baselines.registry import scheduler
from servegym.baselines.schedulers.slos_serve import BEST_EFFORT, DUE, EARLY, PREFILL
from servegym.baselines.schedulers.slos_serve_plan import ACCEPTED, DECLINED, UNDECIDED
from tests.baselines.qoserve_cases import decided
from tests.simulator.forming import state

pytestmark = pytest.mark.nojit


def tiers(*rows: dict, marks: tuple[int, ...] = (), **settings) -> list[int]:
    policy = scheduler("slos-serve").with_settings(**({"deadlines": "slo", "output_tokens": 1} | settings))
    return decided(policy, *rows, marks=marks).tiers


def new(prompt: int, ttft_s: float, tpot_s: float = 1000.0) -> dict:
    return state(prompt, ttft_slo_s=ttft_s, tpot_slo_s=tpot_s)


def decode(ttft_s: float, tpot_s: float) -> dict:
    return state(3, 1, 3, ttft_slo_s=ttft_s, tpot_slo_s=tpot_s)


def test_alone_a_request_is_accepted_if_its_prompt_is_in_time():
    assert tiers(new(4, 5.0)) == [PREFILL]  # 1 + 4 = 5 s
    assert tiers(new(5, 5.0)) == [BEST_EFFORT]


def test_as_many_as_possible_are_accepted():
    # Until 7 s there are 6 tokens: for the first, or for the two others.
    assert tiers(new(6, 7.0), new(3, 7.0), new(3, 7.0)) == [BEST_EFFORT, PREFILL, PREFILL]


def test_of_as_many_those_that_leave_most_to_spare():
    assert tiers(new(6, 7.0), new(5, 7.0)) == [BEST_EFFORT, PREFILL]
    assert tiers(new(5, 7.0), new(5, 7.0)) == [PREFILL, BEST_EFFORT]  # the earlier at equality


def test_what_is_to_spare_is_kept_for_later_deadlines():
    # 4 tokens by 5 s of which 3 are spared. Then the first decodes: 1 is due in 5 s, with 3 tokens of prefill.
    assert tiers(new(1, 5.0), new(6, 10.0)) == [PREFILL, PREFILL]
    assert tiers(new(1, 5.0), new(7, 10.0)) == [PREFILL, BEST_EFFORT]


def test_accepted_requests_decode_at_their_pace():
    # The first decodes from 3 s on, a token in each batch of 4 s, with 4 - 1 - 1 = 2 tokens of prefill: 4 by 11 s.
    assert tiers(new(2, 3.0, 4.0), new(4, 11.0)) == [PREFILL, PREFILL]
    assert tiers(new(2, 3.0, 4.0), new(5, 11.0)).count(PREFILL) == 1
    assert tiers(new(2, 3.0, 1.5)) == [BEST_EFFORT]  # a decode alone takes 2 s


def test_the_token_budget_limits_batches():
    # Of 2 tokens in 3 s: until 7 s two such batches.
    assert tiers(new(4, 7.0), max_num_batched_tokens=2) == [PREFILL]
    assert tiers(new(5, 7.0), max_num_batched_tokens=2) == [BEST_EFFORT]


def test_memory_limits_what_is_accepted():
    rows = [new(400, 2000.0, 5000.0) for _ in range(3)]
    assert tiers(*rows) == [PREFILL, PREFILL, BEST_EFFORT]  # 401 blocks each, of 1000
    assert tiers(*rows, output_tokens=150) == [PREFILL, BEST_EFFORT, BEST_EFFORT]


def test_what_was_accepted_is_not_given_up_for_new_ones():
    marks = (ACCEPTED, UNDECIDED, UNDECIDED)
    assert tiers(new(6, 7.0), new(3, 7.0), new(3, 7.0), marks=marks) == [PREFILL, BEST_EFFORT, BEST_EFFORT]


def test_what_was_declined_stays_so():
    assert tiers(new(1, 7.0), marks=(DECLINED,)) == [BEST_EFFORT]


def test_an_accepted_request_that_cannot_be_in_time_any_more_makes_room():
    assert tiers(new(9, 7.0), new(3, 7.0), marks=(ACCEPTED, UNDECIDED)) == [BEST_EFFORT, PREFILL]
    assert tiers(new(9, 7.0), marks=(ACCEPTED,)) == [PREFILL]  # as nothing is new there is no plan


def test_decodes_run_when_they_are_due():
    # Second tokens are due at 6 s and 13 s: the budget is 6 s, and the second one may wait until 9 s.
    rows = decode(2.0, 4.0), decode(9.0, 4.0)
    assert tiers(*rows, marks=(ACCEPTED, ACCEPTED)) == [DUE, EARLY]
    assert tiers(*rows, marks=(ACCEPTED, DECLINED)) == [DUE, BEST_EFFORT]
    assert tiers(*rows, marks=(DECLINED, ACCEPTED)) == [BEST_EFFORT, DUE]


def test_a_batch_ends_when_a_decode_is_due_and_never_before_its_own_pace():
    policy = scheduler("slos-serve").with_settings(deadlines="slo")
    for now_s, budget_s in ((0.0, 6.0), (5.0, 4.0)):  # due at 6 s; in 1 s, and yet a token takes its 4 s
        limits = decided(policy, decode(2.0, 4.0), marks=(ACCEPTED,), now_s=now_s).limits
        assert limits["time_budget_s"] == budget_s
