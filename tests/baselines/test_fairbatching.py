"""FairBatching by hand: near decodes, prefills, other decodes, each by deadline; a batch lasts the smallest slack.

A batch takes t_c = 1 s and 1 s a token. A decode needs 1 + 1 = 2 s.
"""

import pytest

from servegym.baselines.registry import scheduler
from tests.simulator.forming import decode, formed, linear, ranked, state

pytestmark = pytest.mark.nojit

NEAR, PREFILL, OTHER = 0, 1, 2


def fair(**settings):
    return scheduler("fairbatching").with_settings(**({"eta": 0.5} | settings))


def due(in_s: float, **more) -> dict:
    """A decode whose next token, its second, is due then."""
    return decode(ttft_slo_s=in_s / 2, tpot_slo_s=in_s / 2, **more)


def budget_s(*rows: dict, now_s: float = 0.0, **settings) -> float:
    return float(ranked(fair(**settings), *rows, now_s=now_s).limits.time_budget_s)


def test_near_decodes_then_prefills_then_other_decodes():
    # The smallest slack is 6; a decode is near below 12.
    rows = [due(30), state(3, ttft_slo_s=50), due(11.5), due(6), state(2, ttft_slo_s=40), due(12)]
    rank = ranked(fair(), *rows)
    assert rank.limits.time_budget_s == 6
    assert rank.ranks == [(OTHER, 30), (PREFILL, 50), (NEAR, 11.5), (NEAR, 6), (PREFILL, 40), (OTHER, 12)]
    assert rank.victim_ranks == rank.ranks
    # 6 s: 1 + the two near ones + 2 of the prompt due at 40 + 1 of the other.
    assert formed(fair(), *rows).batch == [(3, 1), (2, 1), (4, 2), (1, 1)]


def test_a_decode_at_the_boundary_is_not_near():
    rows = due(8), due(4)
    assert [tier for tier, _ in ranked(fair(), *rows).ranks] == [OTHER, NEAR]
    assert [tier for tier, _ in ranked(fair(near=2.01), *rows).ranks] == [NEAR, NEAR]
    assert [tier for tier, _ in ranked(fair(near=1), *rows).ranks] == [OTHER, OTHER]  # 4 < 4 is false


def test_near_0_is_for_late_decodes_only_and_a_large_one_for_all():
    rows = [due(9), state(5, ttft_slo_s=20), due(3)]
    assert [tier for tier, _ in ranked(fair(near=0), *rows, now_s=3.0).ranks] == [OTHER, PREFILL, OTHER]
    assert [tier for tier, _ in ranked(fair(near=0), *rows, now_s=3.5).ranks] == [OTHER, PREFILL, NEAR]
    assert [tier for tier, _ in ranked(fair(near=1e6), *rows).ranks] == [NEAR, PREFILL, NEAR]


def test_the_budget_counts_prefills_too_and_only_what_can_be_met():
    assert budget_s(due(9), state(5, ttft_slo_s=7)) == 7
    assert budget_s(due(9), state(6, ttft_slo_s=7)) == 7  # 7 >= 6 + 1: just
    assert budget_s(due(9), state(7, ttft_slo_s=7)) == 9  # hopeless
    assert budget_s(due(9), state(5, ttft_slo_s=7), now_s=1.5) == 7.5


def test_eta_is_the_least_budget():
    assert budget_s(due(4), now_s=1.75) == 2.25
    assert budget_s(due(4), now_s=2.0) == 2
    assert budget_s(due(4), due(100), now_s=2.0, eta=0.5) == 2
    # Half a second of slack is less than a decode needs, so the model must be faster for a slack below eta.
    fast = linear(c_p=0.01, b_d=0.01, t_c=0.01)
    assert ranked(fair(), due(4), model=fast, now_s=3.75).limits.time_budget_s == 0.5


def test_all_hopeless():
    rows = [due(4), state(5, ttft_slo_s=2), due(2)]
    rank = ranked(fair(), *rows, now_s=10.0)
    assert rank.limits.time_budget_s == 0.5
    assert rank.ranks == [(NEAR, 4), (PREFILL, 2), (NEAR, 2)]
    # Nothing fits half a second, so the first ranked runs.
    assert formed(fair(), *rows, now_s=10.0).batch == [(2, 1)]


def test_zero_slack():
    assert budget_s(due(4), now_s=4.0) == 0.5
    assert ranked(fair(), due(4), now_s=4.0).ranks == [(NEAR, 4)]  # 0 < 2 x 0.5


def test_ties_go_by_place():
    rows = [state(3, ttft_slo_s=30), due(30), state(2, ttft_slo_s=30), due(5), due(5)]
    assert formed(fair(), *rows, blocks=100).batch == [(3, 1), (4, 1), (0, 2)]


def test_an_evicted_request_is_a_prefill_with_the_deadline_of_its_next_token():
    assert ranked(fair(), state(3, 2, ttft_slo_s=10, tpot_slo_s=4)).ranks == [(PREFILL, 18)]


def test_eta_is_by_default_a_share_of_the_smallest_tpot_slo():
    rows = state(3, ttft_slo_s=1, tpot_slo_s=0.5), state(3, ttft_slo_s=1, tpot_slo_s=0.25)
    assert ranked(scheduler("fairbatching"), *rows).limits.time_budget_s == 0.9 * 0.25


def test_limits():
    limits = ranked(fair(), due(9)).limits
    assert (limits.time_budget_s, limits.max_num_batched_tokens, limits.max_num_seqs, limits.misfit) == (9, 0, 0, 0)
