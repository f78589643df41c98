"""SlideBatching by hand (ProServe, Algorithm 1, section 4).

A batch takes t_c = 1 s and 1 s a token. Three prompts wait, at time 0:

    place   exec   remain   weight of the next token   density = weight / exec
    A  0       4       10                          8                         2
    B  1       2      100                          6                         3
    C  2       3        8                          3                         1

Sum of exec 9; by remain C, A, B with sums 3, 7, 9; all can still make it; t_min = 8.
"""

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.baselines.schedulers.slide_batching import ETA
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.types import MISFIT_STOP
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import decode, formed, linear, ranked, state
from tests.simulator.scenes import requests

pytestmark = pytest.mark.nojit

A, B, C = 0, 1, 2
URGENT, NORMAL = 0, 1


def slide(**settings):
    return scheduler("slide-batching").with_settings(**({"eta": 0.5} | settings))


def queue() -> list[dict]:
    return [
        state(4, ttft_slo_s=10, first_token_gain=8.0),
        state(2, ttft_slo_s=100, first_token_gain=6.0),
        state(3, ttft_slo_s=8, first_token_gain=3.0),
    ]


def tiers(*rows: dict, model=None, now_s: float = 0.0, **settings) -> list[int]:
    more = {} if model is None else {"model": model}
    return [tier for tier, _ in ranked(slide(**settings), *(rows or queue()), now_s=now_s, **more).ranks]


def batch(*rows: dict, **settings) -> list[tuple[int, int]]:
    return formed(slide(**settings), *(rows or queue())).batch


def time_budget_s(*rows: dict, now_s: float = 0.0, **settings) -> float:
    return float(ranked(slide(**settings), *(rows or queue()), now_s=now_s).limits.time_budget_s)


# t_min and t_budget


def test_the_budget_is_the_least_remain_but_at_least_eta():
    assert time_budget_s() == 8
    assert time_budget_s(now_s=2.5) == 5.5
    # eta is a search's 5 to 500 ms: no remain below it makes a smaller budget.
    late = state(1, ttft_slo_s=0.25), state(3, ttft_slo_s=20)
    assert time_budget_s(*late, eta=0.5) == 0.5
    assert time_budget_s(*late, eta=0.125) == 0.25


def test_hopeless_requests_set_the_budget_or_not():
    # 2 < 5 + 1: it cannot make it; the other can, 8 >= 3 + 1.
    rows = state(5, ttft_slo_s=2), state(3, ttft_slo_s=8)
    assert time_budget_s(*rows) == 2 and time_budget_s(*rows, hopeless="exclude") == 8
    # Densities 1 / 5 and 1 / 3, both urgent (2 / 1 x 8): 1 of the second; or 3 of it, then 4 of the first.
    assert batch(*rows) == [(1, 1)] and batch(*rows, hopeless="exclude") == [(1, 3), (0, 4)]


def test_remain_equal_to_what_is_needed_can_still_make_it():
    assert time_budget_s(state(5, ttft_slo_s=6), hopeless="exclude") == 6
    assert time_budget_s(state(5, ttft_slo_s=np.nextafter(6, 0)), hopeless="exclude") == 0.5


def test_all_hopeless():
    rows = state(5, ttft_slo_s=1, first_token_gain=1.0), state(5, ttft_slo_s=2, first_token_gain=2.0)
    assert time_budget_s(*rows) == 1 and time_budget_s(*rows, now_s=50.0) == 0.5
    assert time_budget_s(*rows, hopeless="exclude") == 0.5
    # 0.5, or 1, <= t_c: all are urgent; no token fits, so the denser runs one.
    for hopeless in ("include", "exclude"):
        assert tiers(*rows, hopeless=hopeless) == [URGENT, URGENT] and batch(*rows, hopeless=hopeless) == [(1, 1)]


def test_zero_slack():
    # remain 0: not enough for anything; the budget is eta either way.
    assert time_budget_s(state(5, ttft_slo_s=4), now_s=4.0) == 0.5
    assert time_budget_s(state(5, ttft_slo_s=4), now_s=4.0, hopeless="exclude") == 0.5


def test_eta_is_by_default_a_share_of_the_smallest_tpot_slo():
    rows = state(3, ttft_slo_s=1, tpot_slo_s=0.5), state(3, ttft_slo_s=1, tpot_slo_s=0.25)
    assert ranked(scheduler("slide-batching:gamma=2"), *rows, now_s=9.0).limits.time_budget_s == ETA.factor * 0.25
    xllm = scheduler("slide-batching:variant=xllm,hopeless=include")
    assert ranked(xllm, *rows, now_s=9.0).limits.time_budget_s == 0.65 * 0.25
    assert 0.5 < ETA.factor < 1, "above 1 every decode is late"


# phi


def test_phi_a():
    # 8 / 7 x 9 = 10.29: A (10) and C (8) are urgent, B (100) is not.
    rank = ranked(slide(), *queue())
    assert rank.ranks == [(URGENT, -2), (NORMAL, 100), (URGENT, -1)] and rank.victim_ranks == rank.ranks
    assert batch() == [(A, 4), (C, 3)]  # 1 + 4 + 3 = 8 s
    # gamma 0.5: 5.14, all are normal: by remain.
    assert tiers(gamma=0.5) == [NORMAL] * 3 and batch(gamma=0.5) == [(C, 3), (A, 4)]
    # gamma 10: 102.9, B too.
    assert tiers(gamma=10) == [URGENT] * 3 and batch(gamma=10) == [(B, 2), (A, 4), (C, 1)]


def test_phi_c():
    # 8 / 7 x (7, 9, 3) = 8, 10.3, 3.4 for A, B, C: none has less left.
    assert tiers(load="c") == [NORMAL] * 3 and batch(load="c") == [(C, 3), (A, 4)]
    # gamma 1.3: 10.4, 13.4, 4.5: A (10) is urgent, C (8) is not.
    assert tiers(load="c", gamma=1.3) == [URGENT, NORMAL, NORMAL] and batch(load="c", gamma=1.3) == [(A, 4), (C, 3)]


def test_phi_c_counts_ties_by_place():
    # Both remain 12, exec 8 each: 12 / 11 x 8 = 8.7 for the first, 12 / 11 x 16 = 17.5 for the second.
    assert tiers(state(8, ttft_slo_s=12), state(8, ttft_slo_s=12), load="c") == [NORMAL, URGENT]


def test_phi_p():
    # gamma 0.85: phi a 8.7, only C is urgent; phi p = 9 + 3 x 1 = 12, 10.2: A is too.
    assert tiers(gamma=0.85) == [NORMAL, NORMAL, URGENT]
    assert tiers(gamma=0.85, load="p") == [URGENT, NORMAL, URGENT]
    assert tiers(load="p", gamma=0.5) == [NORMAL] * 3


def test_the_urgent_boundary_is_strict():
    # Two prompts of 2, remain 5 and 50: phi p = 4 + 2 = 6; phi a = 5 / 4 x 4 = 5: 5 is not below 5.
    rows = state(2, ttft_slo_s=5), state(2, ttft_slo_s=50)
    assert tiers(*rows) == [NORMAL, NORMAL]
    assert tiers(*rows, now_s=0.5) == [URGENT, NORMAL]  # 4.5 < 4.5 / 3.5 x 4 = 5.1
    assert tiers(*rows, load="p") == [URGENT, NORMAL]
    assert tiers(state(2, ttft_slo_s=6), rows[1], load="p") == [NORMAL, NORMAL]
    # phi c, one alone: 2 x 2 = 4 with a budget of 2, one that is hopeless and has 2 < 4 left.
    assert tiers(state(2, ttft_slo_s=2), load="c") == [URGENT]


@pytest.mark.parametrize(("load", "urgent"), [("a", URGENT), ("c", URGENT), ("p", NORMAL)])
def test_a_budget_within_the_constant_part_makes_all_urgent(load, urgent):
    # t_c = 8 is the whole budget of 8 s.
    model = linear(c_p=1, b_d=1, t_c=8)
    rows = [state(4, ttft_slo_s=10), state(2, ttft_slo_s=100), state(3, ttft_slo_s=8)]
    # phi p: 9 + 3 x 8 = 33.
    expected = [URGENT, urgent, URGENT]
    assert tiers(*rows, model=model, load=load) == expected


# density


def test_density_order_and_ties():
    # All urgent. Densities: 6 / 3 = 2, 1 / 1 (a decode), 4 / 2 = 2, 8 / 2 = 4. Ties by place.
    rows = [state(3, first_token_gain=6.0), decode(decode_token_gain=1.0), state(2, first_token_gain=4.0),
            state(2, first_token_gain=8.0)]  # fmt: skip
    rank = ranked(slide(ablation="only-density"), *rows)
    assert rank.ranks == [(URGENT, -2), (URGENT, -1), (URGENT, -2), (URGENT, -4)]
    assert [r for r, _ in batch(*rows, ablation="only-density")] == [3, 0, 2, 1]


def test_density_is_of_the_next_token():
    # Evicted with a token out: its context of 3 + 1 is to be computed, for a later token's weight.
    rows = [state(3, 1, first_token_gain=100.0, decode_token_gain=2.0)]
    assert ranked(slide(ablation="only-density"), *rows).ranks == [(URGENT, -0.5)]


def test_normal_requests_rank_by_remain_after_all_urgent_ones():
    rank = ranked(slide(ablation="only-deadline"), *queue(), now_s=1.0)
    assert rank.ranks == [(NORMAL, 9), (NORMAL, 99), (NORMAL, 7)]


# Ablations


def test_ablations():
    assert batch(ablation="only-deadline") == [(C, 3), (A, 4)]
    assert batch(ablation="only-density") == [(B, 2), (A, 4), (C, 1)]
    limits = ranked(slide(ablation="no-latency", max_num_batched_tokens=8), *queue()).limits
    assert (limits.max_num_batched_tokens, limits.time_budget_s) == (8, 0)  # 0: it is not set
    assert tiers(ablation="no-latency") == [URGENT, NORMAL, URGENT]  # the order stays
    assert batch(ablation="no-latency", max_num_batched_tokens=8) == [(A, 4), (C, 3), (B, 1)]


def test_limits():
    limits = ranked(slide(max_num_batched_tokens=8), *queue()).limits
    assert (limits.time_budget_s, limits.max_num_batched_tokens, limits.smallest_chunk_tokens, limits.misfit) == (
        8, 0, 0, 0,
    )  # fmt: skip


# What deadlines count from


@pytest.mark.parametrize(("deadlines", "remains"), [
    # SLO 10, then 4 a token. Its first token came early, at 2; late, at 13; none yet; under way.
    ("slo", [14, 14, 10, 14]),
    ("early-first-token", [6, 14, 10, 14]),
    ("first-token", [6, 17, 10, 14]),
])  # fmt: skip
def test_what_deadlines_count_from(deadlines, remains):
    slos = {"ttft_slo_s": 10, "tpot_slo_s": 4}
    rows = [decode(first_token_s=2, **slos), decode(first_token_s=13, **slos), state(3, **slos), decode(**slos)]
    by_deadline = slide(ablation="only-deadline", deadlines=deadlines)
    assert ranked(by_deadline, *rows).ranks == [(NORMAL, remain) for remain in remains]
    # Evicted after three tokens: for the fourth.
    evicted = state(3, 3, first_token_s=2, **slos)
    assert ranked(by_deadline, evicted).ranks == [(NORMAL, 22 if deadlines == "slo" else 14)]
    # All tokens of a TTLT class have one deadline.
    whole = decode(first_token_s=2, ttlt_slo_s=30, **slos)
    assert ranked(by_deadline, whole).ranks == [(NORMAL, 30)]


def test_the_budget_is_by_the_deadlines_counted():
    rows = decode(ttft_slo_s=10, tpot_slo_s=4, first_token_s=2), state(3, ttft_slo_s=40)
    assert time_budget_s(*rows) == 14 and time_budget_s(*rows, deadlines="early-first-token") == 6
    assert time_budget_s(*rows, deadlines="first-token", now_s=5.5) == 0.5


# xllm


def test_the_authors_code_by_default():
    chosen = scheduler("slide-batching:variant=xllm").chosen()
    assert (chosen["hopeless"], chosen["deadlines"]) == ("exclude", "first-token")
    chosen = scheduler("slide-batching").chosen()
    assert (chosen["hopeless"], chosen["deadlines"]) == ("include", "slo")


def test_xllm_has_no_time_budget_when_none_can_make_it():
    rows = state(200, ttft_slo_s=2, first_token_gain=9.0), state(60, ttft_slo_s=2)
    limits = ranked(slide(variant="xllm"), *rows).limits
    assert (limits.time_budget_s, limits.max_num_batched_tokens) == (np.inf, 10240)
    # phi is the sum of exec then, 260 x gamma: remain 2 is below it unless gamma is small.
    assert tiers(*rows, variant="xllm") == [URGENT, URGENT] and batch(*rows, variant="xllm") == [(0, 200), (1, 60)]
    by_phi_c = {"variant": "xllm", "gamma": 0.1, "load": "c"}  # phi c: 20 and 26
    assert tiers(state(200, ttft_slo_s=19.5), state(60, ttft_slo_s=26), **by_phi_c) == [URGENT, NORMAL]
    assert ranked(slide(variant="xllm", ablation="no-latency"), *rows).limits.max_num_batched_tokens == 512


def test_xllm_order():
    # All urgent: decodes by density, then starved by remain, then the others by density. SLO 10 x 0.5: starved below
    # remain -5.
    rows = [
        state(2, ttft_slo_s=10, first_token_gain=9.0),  # remain 0
        state(2, ttft_slo_s=10, first_token_gain=1.0, arrival_s=-6.0),  # -6: starved
        state(2, ttft_slo_s=10, first_token_gain=2.0, arrival_s=-5.0),  # -5: not below -5
        decode(ttft_slo_s=10, tpot_slo_s=4, decode_token_gain=1.0),  # 4
        decode(ttft_slo_s=10, tpot_slo_s=4, decode_token_gain=3.0),
        state(3, 1, 2, ttft_slo_s=0.5, tpot_slo_s=4, arrival_s=2.5, decode_token_gain=4.0),  # a prefill, TPOT: -3 < -2
    ]
    xllm = slide(variant="xllm", ablation="only-density", starve_threshold=0.5)
    rank = ranked(xllm, *rows, now_s=10.0)
    assert rank.ranks == [(0, -4.5), (-1, -6), (0, -1), (-2, -1), (-2, -3), (-1, -3)]
    assert ranked(slide(ablation="only-density"), *rows, now_s=10.0).ranks[3] == (0, -1)


def test_xllm_leaves_normal_requests_by_remain():
    rank = ranked(slide(variant="xllm", gamma=0.5), decode(), *queue())
    assert rank.ranks == [(NORMAL, 2000), (NORMAL, 10), (NORMAL, 100), (NORMAL, 8)]


def test_xllm_stops_at_what_does_not_fit():
    limits = ranked(slide(variant="xllm"), *queue()).limits
    assert (limits.misfit, limits.smallest_chunk_tokens) == (MISFIT_STOP, 51)
    # 61 s: 1 + 40, then 20 of 60 are a chunk too small, and the 5 behind it are not reached.
    rows = [state(40, ttft_slo_s=61, first_token_gain=99.0), state(60, first_token_gain=9.0), state(5)]
    assert batch(*rows, variant="xllm") == [(0, 40)]
    assert batch(*rows) == [(0, 40), (1, 20)]
    # 51 of 60 are enough.
    rows[0] = state(9, ttft_slo_s=61, first_token_gain=99.0)
    assert batch(*rows, variant="xllm") == [(0, 9), (1, 51)]


def test_progress_comes_to_an_end():
    """Two hopeless requests that need all of memory each, and no time for either: one must not undo the other forever.

    The evicted one prefills cheaply, so it is denser than the one about to decode, and ranks first.
    """
    model = linear(c_p=1 / 128, a_d=1 / 64, b_d=1 / 64, t_c=1 / 64)
    workload = requests(prompt_tokens=[1, 1], output_tokens=3, ttft_slo_s=1 / 64, tpot_slo_s=1 / 64)
    deployment = Deployment(model, model, total_blocks=3, block_tokens=1, watermark=0.0)
    scenario = Scenario(workload, deployment, scheduler("slide-batching"), until_s=50.0)
    assert Simulation(scenario).run().summary["finished"] == 2
