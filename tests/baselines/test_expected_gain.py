"""Expected gain by hand (docs/systems/expected_gain.md).

A batch takes t_c = 0.25 s and 1 s a token, and eta is 0.5 s. Answers are expected to be 10 tokens long, and a decode
has weight 1. Nothing is kept in reserve, and all tokens may be late but one, where nothing is said of it.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from servegym.baselines.registry import scheduler
from servegym.baselines.schedulers.expected_gain import tokens_in_time
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.profile import load_profile
from servegym.simulator.records.types import BATCH, LEAVE_OUT, LIMITS
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import decode, formed, linear, ranked, state, waiting_for_a_batch
from tests.simulator.scenes import requests, scene

pytestmark = pytest.mark.nojit

MODEL = linear(c_p=1, b_d=1, t_c=0.25)
ALL = {"gamma": 10.0}  # everybody is urgent


def policy(**settings):
    chosen = {"gamma": 1.0, "eta": 0.5, "output_tokens": 10.0, "most_late": 1.0, "reserve": 0.0} | settings
    return scheduler("expected-gain").with_settings(**chosen)


def ranks(*queue: dict, model=MODEL, **settings) -> list[tuple[int, float]]:
    return ranked(policy(**settings), *queue, model=model).ranks


def first_of(*queue: dict, **settings) -> int:
    return formed(policy(**settings), *queue, model=MODEL).batch[0][0]


@pytest.mark.parametrize(("slack_s", "gained_s", "tokens"), [
    (0.0, 1.0, 9.0),  # due when it is out is late
    (0.1, 1.0, 10.0),
    (5.0, 1.0, 10.0),
    (-5.0, 1.0, 4.0),  # the first is 5 s late, the sixth due when it is out, the seventh in time
    (-4.9, 1.0, 5.0),
    (-5.0, 0.5, 0.0),
    (5.0, -0.5, 10.0),
    (4.0, -0.5, 8.0),  # the eighth is 0.5 s early
    (0.0, -0.5, 0.0),
    (-5.0, -0.5, 0.0),
    (5.0, 0.0, 10.0),
    (0.0, 0.0, 0.0),
    (-1e12, 1e-12, 0.0),
    (math.inf, math.inf, 10.0),
    (math.inf, -0.5, 10.0),
])  # fmt: skip
def test_tokens_expected_in_time(slack_s, gained_s, tokens):
    assert tokens_in_time(slack_s, gained_s, 10.0) == pytest.approx(tokens, rel=1e-12)


def test_a_prompt_in_time_is_worth_its_first_token_and_an_answer():
    # 4 s and t_c are 4.25 s: slack 0.25. With a TPOT SLO of 1.5 s a token gains 1 s.
    prompt = state(4, ttft_slo_s=4.5, tpot_slo_s=1.5, first_token_gain=6.0)
    assert ranks(prompt, **ALL) == [(0, pytest.approx(-(6 + 10) / 4))]


@pytest.mark.parametrize(("most_late", "tokens"), [(1.0, 4), (0.51, 4), (0.5, 5), (0.4, 0), (0.0, 0)])
def test_what_is_late_for_more_than_a_share_of_its_tokens_is_worth_nothing(most_late, tokens):
    """5 s late, and a token gains 1 s: it has caught up after half of 10 tokens. Where that is too many it has all the
    room there is; batches of t_c gain 1.25 s, so it has caught up after 4 of 10."""
    prompt = state(4, ttft_slo_s=4.25, arrival_s=-5.0, tpot_slo_s=1.5)
    worth = (0, pytest.approx(-tokens / 4)) if tokens else (2, 4.0)
    assert ranks(prompt, most_late=most_late, **ALL) == [worth]
    # Requests that fall behind are not counted: 4 s to spare, 0.5 s less with each, so 8 of 10 are in time.
    assert tokens_in_time(4.0, -0.5, 10.0, 0.1) == 8.0


def slowest(**values: float) -> LatencyModel:
    """A batch takes as long as its slowest request."""
    zeros = dict.fromkeys(("alpha_1", "alpha_2", "gamma_1", "gamma_2"), 0.0)
    return LatencyModel.from_values("slowest", {**zeros, "t_c": 0.25, **values})


def test_a_prompt_takes_less_in_chunks_where_the_estimator_says_so():
    # 16 tokens take 4 s; of 4 a batch lasts 0.5 s, and four of them 2 s, so 1.75 s beyond t_c: slack 0.5.
    prompt = state(16, ttft_slo_s=2.5, tpot_slo_s=1.5, first_token_gain=6.0)
    assert ranks(prompt, model=slowest(alpha_1=1 / 64), **ALL) == [(0, pytest.approx(-(6 + 10) / 1.75))]
    # Of a time that is linear in tokens chunks are no part, as each has t_c of its own.
    assert ranks(prompt, model=linear(c_p=0.125, t_c=0.25), **ALL) == [(0, pytest.approx(-(6 + 10) / 2))]


ESTIMATORS = [
    load_profile(name).estimator
    for name in ("a100-llama3-8b", "a6000-llama3.1-8b", "a100-qwen1.5-7b", "a100-qwen3-30b-a3b")
]
CUBIC = LatencyModel.from_values("polynomial", {"c_3": 1e-13, "c_2": 2e-9, "c_1": 6e-5, "t_c": 0.01})
PROMPTS = st.lists(st.tuples(st.integers(1, 40_000), st.integers(0, 4000)), min_size=1, max_size=6)  # left, cached


def prefill_s(model: LatencyModel, tokens: int, cached: int) -> float:
    batch = np.zeros(1, BATCH)
    batch["prefill_requests"], batch["prefill_tokens"], batch["prefill_tokens_squared"] = 1, tokens, tokens**2
    batch["prefill_cached_tokens"], batch["prefill_tokens_cached"] = cached, tokens * cached
    batch["longest_prefill_tokens"] = tokens
    return float(model.evaluate(batch)[0])


@examples(max_examples=30, deadline=None)
@given(st.sampled_from([*ESTIMATORS, CUBIC]), st.floats(0.005, 0.5), PROMPTS)
def test_prompts_take_what_is_less_of_one_batch_and_chunks(model, eta, prompts):
    """To the last bit, whichever of them are estimated in chunks and in whatever order they came."""
    queue = [state(left + cached, computed=cached) for left, cached in prompts]
    simulation = waiting_for_a_batch(policy(eta=eta), *queue, blocks=10**6, model=model)
    arrays = simulation.arrays
    context = simulation.scheduler_context(0, 0.0)
    simulation.scenario.scheduler.function(context, arrays.ranks, np.zeros(1, LIMITS)[0])
    found_s = arrays.ranks["exec_s"][: len(queue)].copy()
    model.exec_s(arrays.requests, context.queue, model.coefficients, arrays.ranks)
    whole_s, constant_s = arrays.ranks["exec_s"], float(model.evaluate(np.zeros(1, BATCH))[0])
    fitting, most = 0, 40_001
    while most - fitting > 1:
        middle = (fitting + most) // 2
        fitting, most = (middle, most) if prefill_s(model, middle, 0) <= eta else (fitting, middle)
    for position, (left, cached) in enumerate(prompts):
        expected_s = float(whole_s[position])
        if 0 < fitting < left:
            first_s, last_s = prefill_s(model, fitting, cached), prefill_s(model, fitting, cached + left - fitting)
            expected_s = min(expected_s, left / fitting * (first_s + last_s) / 2 - constant_s)
        assert found_s[position] == expected_s


def test_work_is_what_a_batch_of_it_takes():
    # Each decode takes 1 s and is due in 2.5 s; three take 3 x 2.5 / 2.25 s one by one, together 1 x 2.5 / 2.25 s.
    running = [decode(ttft_slo_s=100, tpot_slo_s=1.5, first_token_s=1.0) for _ in range(3)]
    for model, tier in ((linear(b_d=1, t_c=0.25), 0), (slowest(gamma_2=1), 1)):
        assert [first for first, _ in ranks(*running, model=model)] == [tier] * 3


def test_where_there_is_room_what_is_late_catches_up_faster():
    # 1.5 s late, and a batch of eta gains 1/16 s: worth nothing. Alone a batch lasts t_c and gains 5/16: 5 are late.
    late = state(1, ttft_slo_s=1.25, arrival_s=-1.5, tpot_slo_s=0.5625, first_token_gain=6.0)
    assert ranks(late, **ALL) == [(0, pytest.approx(-5 / 1))]
    # Beside 1/8 s of work that is in time however long batches are they last 3/8 s and gain 3/16: 9 are late.
    late, sure, model = late | {"arrival_s": -2.375}, state(1, ttft_slo_s=10), linear(c_p=0.125, b_d=0.125, t_c=0.25)
    assert ranks(late, sure, model=model, **ALL)[0] == (0, pytest.approx(-1 / 0.125))
    # Beside 1 s of it, eta.
    assert ranks(late, sure | {"prompt_tokens": 8}, model=model, **ALL)[0][0] == LEAVE_OUT


def test_with_a_ttlt_slo_what_comes_before_it_counts():
    # Slack 8 - 4.25 s, and a token takes 0.5 s: the eighth is out 0.25 s before.
    prompt = state(4, ttlt_slo_s=8.0, first_token_gain=1.0)
    assert ranks(prompt, **ALL) == [(0, pytest.approx(-(1 + 8) / 4))]


def test_where_there_is_time_the_earliest_deadline_goes_first():
    far, near = state(2, ttft_slo_s=200), state(1, ttft_slo_s=100)
    assert ranks(far, near) == [(1, 200.0), (1, 100.0)] and first_of(far, near) == 1
    # 3 s of work take 3 x 3.2 / (3.2 - 0.25) = 3.25 s in batches of 3.2 s, and 3.24 s in those of 3.3 s.
    assert [tier for tier, _ in ranks(far, state(1, ttft_slo_s=3.2))] == [1, 0]
    assert [tier for tier, _ in ranks(far, state(1, ttft_slo_s=3.3))] == [1, 1]


def test_a_batch_lasts_until_the_next_deadline_but_at_least_eta():
    running = decode(ttft_slo_s=100, tpot_slo_s=1.5, first_token_s=1.0)
    for settings, remain_s in (({}, 2.5), ({"deadlines": "slo"}, 101.5)):
        limits = ranked(policy(**settings), state(2, ttft_slo_s=200), running, model=MODEL).limits
        assert limits.time_budget_s == remain_s
    assert ranked(policy(), state(2, ttft_slo_s=0.3), running, model=MODEL).limits.time_budget_s == 0.5


def test_work_that_takes_no_time_has_a_rank():
    ((tier, key),) = ranks(state(4, ttft_slo_s=0.5, arrival_s=-1.0), model=linear(t_c=0.25), **ALL)
    assert tier == 0 and math.isfinite(key)


def test_answers_are_taken_to_be_as_long_as_those_that_have_ended():
    """A first request has 4 tokens; the next one of its application is expected to have 4, not 10."""
    workload = requests(arrival_s=[0, 50], prompt_tokens=[1, 4], output_tokens=[4, 2], ttft_slo_s=6.0, tpot_slo_s=1.5)
    simulation = Simulation(scene(workload, policy(**ALL), MODEL))
    while simulation.arrays.status[0].now_s < 50:
        assert simulation.step()
    simulation.step()
    assert simulation.arrays.ranks[0].key == pytest.approx(-(1 + 4) / 4)


def test_what_is_worth_nothing_is_left_out_while_one_is_urgent():
    late, inside = state(4, ttft_slo_s=4, arrival_s=-300.0, tpot_slo_s=1.5), state(4, ttft_slo_s=10, tpot_slo_s=1.5)
    assert ranks(late, inside, **ALL) == [(LEAVE_OUT, 0.0), (0, pytest.approx(-11 / 4))]  # it is not listed
    assert formed(policy(**ALL), late, inside, model=MODEL).batch == [(1, 4)]
    # Its deadline does not make the batch short, and its work is none that others wait for.
    assert ranked(policy(**ALL), late, inside, model=MODEL).limits.time_budget_s == 10.0
    assert ranks(late, state(1, ttft_slo_s=3.2), gamma=1.0)[1][0] == 1


def test_where_none_is_urgent_it_goes_last_or_is_left_out_all_the_same():
    late, far = state(4, ttft_slo_s=4, arrival_s=-300.0, tpot_slo_s=1.5), state(4, ttft_slo_s=100, tpot_slo_s=1.5)
    assert ranks(late, far) == [(2, 4.0), (1, 100.0)]
    assert formed(policy(), late, far, model=linear(c_p=0.03125, b_d=1, t_c=0.25)).batch == [(1, 4), (0, 4)]
    # In batches of eta, not until the next deadline in 100 s: a request that comes meanwhile would wait so long.
    assert ranked(policy(), late, far, model=MODEL).limits.time_budget_s == 0.5
    assert ranked(policy(hopeless="leave-out"), late, far, model=MODEL).limits.time_budget_s == 100.0
    assert ranks(late, far, hopeless="leave-out") == [(LEAVE_OUT, 0.0), (1, 100.0)]


def test_a_batch_leaves_a_reserve_before_the_next_deadline():
    """Not of eta, which is less than the interval between deadlines as it is."""
    running = decode(ttft_slo_s=100, tpot_slo_s=1.5, first_token_s=1.0)  # due in 2.5 s
    for reserve, budget_s in ((0.0, 2.5), (0.1, 2.25), (0.5, 1.25)):
        assert ranked(policy(reserve=reserve), running, model=MODEL).limits.time_budget_s == budget_s
    soon = decode(ttft_slo_s=100, tpot_slo_s=1.5, first_token_s=-0.9)  # in 0.6 s, less than eta and the reserve
    assert ranked(policy(reserve=0.5), soon, model=MODEL).limits.time_budget_s == 0.5
