"""Routers on paper: docs/systems/routers.md, rule by rule. Each prefill token and each decode takes 1 s."""

import pytest

from servegym.baselines.registry import router_names
from servegym.simulator.records.random import uniform
from tests.baselines.router_cases import asked, engine, waits
from tests.simulator.forming import linear

pytestmark = pytest.mark.nojit
STREAM = 0x726F7574


@pytest.mark.parametrize("name", router_names())
def test_only_engines_that_take_it_are_named(name):
    idle = [engine(role=role) for role in ("decode", "both", "prefill", "decode")]
    for number in range(4):
        request = waits(10, arrival_s=float(number))
        earlier = [waits(1, arrival_s=0.0)] * number
        engines = [engine(*earlier, role="decode"), *idle[1:]]  # so that the request has this number
        assert asked(name, request, *engines) in (1, 2)
        assert asked(name, request, *engines, emitted=1) in (0, 3)


def test_round_robin_goes_by_the_number_of_the_request():
    before = [waits(1, arrival_s=0.0)] * 4
    # Request 4, and the engines at places 0, 1, 2 of those that take it are 0, 2, 3.
    engines = [engine(*before), engine(role="decode"), engine(role="prefill"), engine()]
    assert asked("round-robin", waits(1, arrival_s=1.0), *engines) == 2


def test_random_takes_the_place_that_its_number_says():
    for seed in (0, 1, 2, 3, 7):
        place = int(3 * uniform(seed, STREAM, 0))
        assert asked(f"random:seed={seed}", waits(1), engine(), engine(), engine()) == place


# One number


def test_min_load_counts_requests():
    assert (
        asked("min-load", waits(1), engine(requests=3), engine(requests=2, decode_tokens=999), engine(requests=4)) == 1
    )


def test_min_tokens_counts_prompts_without_a_token_and_the_context_of_decodes():
    engines = [engine(waits(30), decode_tokens=20), engine(waits(10), decode_tokens=39)]
    engines += [engine(waits(51)), engine(waits(9), decode_tokens=42)]
    assert asked("min-tokens", waits(100), *engines) == 1


@pytest.mark.parametrize("name", ["min-load", "min-tokens", "min-cycle-time", "gorouting"])
def test_ties_go_to_what_was_sent_a_request_longest_ago_then_to_the_lower_index(name):
    idle = [engine(), engine(), engine()]
    assert asked(name, waits(1), *idle) == 0
    assert asked(name, waits(1), *idle, sent=(3.0, 1.0, 2.0)) == 1
    assert asked(name, waits(1), *idle, sent=(3.0, 1.0, 0.0)) == 2
    decoders = [engine(role="decode"), engine(role="decode")]
    assert asked(name, waits(1), *decoders, emitted=1) == 0
    assert asked(name, waits(1), *decoders, emitted=1, sent=(2.0, 1.0)) == 1


def test_min_cycle_time_is_the_time_of_decodes_and_of_prompts_up_to_the_budget():
    # Budget 8: 3 decodes and a prefill of 5: 8 s. No decode and a prefill of 8: 8 s. 9 decodes and no room: 9 s.
    model = linear(c_p=1, b_d=1, a_d=0.125)
    busy = engine(waits(40), decodes=3, decode_tokens=16, model=model)  # and 0.125 x 16 = 2 s for the context
    prompts = engine(waits(40), model=model)
    full = engine(decodes=9, decode_tokens=0, model=model)
    assert asked("min-cycle-time:max_num_batched_tokens=8", waits(4), busy, prompts, full) == 1
    assert asked("min-cycle-time:max_num_batched_tokens=8", waits(4), busy, full) == 1
    short = engine(waits(1), decodes=3, decode_tokens=16, model=model)  # 3 + 2 + 1 + 2 = 8 s, the prompt too
    assert asked("min-cycle-time:max_num_batched_tokens=8", waits(2), full, short) == 1
    assert asked("min-cycle-time:max_num_batched_tokens=99", waits(4), prompts, short) == 1


def test_min_cycle_time_asks_the_estimator_of_each_engine():
    slow, fast = engine(model=linear(c_p=2)), engine(waits(5), model=linear(c_p=1))
    assert asked("min-cycle-time", waits(4), slow, fast) == 0  # 8 s and 9 s
    assert asked("min-cycle-time", waits(6), slow, fast) == 1  # 12 s and 11 s


# GoRouting: the request has 10 tokens and 100 s to its first token, so that L is below 10 s and H above 80 s


def new(prompt_tokens: int = 10, **more) -> dict:
    return waits(prompt_tokens, **{"ttft_slo_s": 100.0} | more)


def test_an_idle_engine_first():
    assert asked("gorouting", new(), engine(waits(20)), engine(waits(9)), engine(waits(50)), engine(waits(8))) == 3
    # 10 s is not below 0.1 x 100 s: none is idle, and the fullest of those not too full is taken.
    assert asked("gorouting", new(), engine(waits(20)), engine(waits(10)), engine(waits(50))) == 2
    assert asked("gorouting:mu=0.3", new(), engine(waits(20)), engine(waits(10)), engine(waits(50))) == 1


def test_else_the_fullest_that_is_not_too_full():
    assert asked("gorouting", new(), engine(waits(20)), engine(waits(70)), engine(waits(71))) == 1  # 80 s is not above
    assert asked("gorouting:lambda=0.9", new(), engine(waits(20)), engine(waits(70)), engine(waits(71))) == 2


def test_else_the_least_full():
    assert asked("gorouting", new(), engine(waits(85)), engine(waits(75)), engine(waits(80))) == 1


def test_only_where_it_adds_nearly_most_gain():
    """With the request engine 1 ends at 60 s, too late for one of its own: it adds 1 - the weight of that one."""
    for weight, candidate in ((0.05, True), (0.2, False)):
        mine = waits(50, ttft_slo_s=60.0, weight=weight)
        assert asked("gorouting", new(), engine(waits(20)), engine(mine)) == (1 if candidate else 0)
        assert asked("gorouting:alpha=0.7", new(), engine(waits(20)), engine(mine)) == 1
    # At 0 s the deadline of 60 s is met by 59 s of work.
    just = waits(49, ttft_slo_s=60.0, weight=0.2)
    assert asked("gorouting", new(), engine(waits(20)), engine(just)) == 1


def test_it_is_not_in_time_where_it_ends_at_its_deadline():
    assert asked("gorouting", new(), engine(waits(90)), engine(waits(89))) == 1
    assert asked("gorouting:fallback=least-loaded", new(), engine(waits(93)), engine(waits(90)), engine(waits(91))) == 1


def test_where_it_gains_nothing_at_random_or_at_the_least_loaded():
    engines = [engine(waits(90)), engine(waits(95)), engine(waits(80))]
    late = new(ttft_slo_s=5.0)
    before = 3  # it is request 3
    for seed in range(4):
        assert asked(f"gorouting:seed={seed}", late, *engines) == int(3 * uniform(seed, STREAM, before))
    assert asked("gorouting:fallback=least-loaded", late, *engines) == 2


def test_time_since_the_record_changed_counts_as_work_done():
    # At 30 s: 50 - 20 = 30 s of work left, against 35 s; the request came at 30 s and has 100 s.
    engines = [engine(waits(50), changed_s=10.0), engine(waits(35), changed_s=30.0)]
    request = new(arrival_s=30.0)
    assert asked("gorouting", request, *engines, now_s=30.0) == 1
    engines[0] = engine(waits(50), changed_s=16.0)  # 36 s
    assert asked("gorouting", request, *engines, now_s=30.0) == 0
    engines[0] = engine(waits(50), changed_s=-90.0)  # nothing left: an idle engine
    assert asked("gorouting", request, *engines, now_s=30.0) == 0


def test_decodes_take_time_once_or_in_every_batch():
    # Once: 20 + 5 x 1 = 25 s. In every batch of at most 30 s: 30 / 25 x 20 = 24 s.
    tight = {"tpot_slo_s": 30.0}
    with_decodes = engine(waits(20, **tight), decodes=5, decode_tokens=5)
    request = new(**tight)
    assert asked("gorouting", request, with_decodes, engine(waits(24, **tight))) == 0
    assert asked("gorouting", request, with_decodes, engine(waits(26, **tight))) == 1
    recurring = "gorouting:decodes=recurring"
    assert asked(recurring, request, with_decodes, engine(waits(23, **tight))) == 0
    assert asked(recurring, request, with_decodes, engine(waits(25, **tight))) == 1
    # 30 decodes leave no time for prefills in a batch of 30 s.
    full = engine(waits(1, **tight), decodes=30, decode_tokens=30)
    assert asked(f"{recurring},fallback=least-loaded", request, full, engine(waits(95))) == 1
    assert asked("gorouting", request, full, engine(waits(50))) == 1


def test_the_constant_part_of_batches_counts_by_how_many_there_are():
    # Batches of 11 s, 1 s of which is constant: 11 / 10 x 20 = 22 s, 22.5 s on the engine without.
    tight = {"tpot_slo_s": 11.0}
    model = linear(c_p=1, b_d=1, t_c=1)
    request = new(**tight)
    assert asked("gorouting", request, engine(waits(20, **tight), model=model), engine(waits(21, **tight))) == 0
    assert asked("gorouting", request, engine(waits(20, **tight), model=model), engine(waits(23, **tight))) == 1
    # The least budget is eta: with 0.5 s, all of which the constant part takes, nothing is estimated to end.
    hopeless = {"tpot_slo_s": 0.25}
    two = [engine(waits(1), model=model), engine(waits(60))]
    assert asked("gorouting:eta=0.5", new(**hopeless), *two) == 1


# GoRouting on prefill engines: one request after the other, each with its own finish


def prefiller(*record: dict, **more) -> dict:
    return engine(*record, role="prefill", **more)


def test_a_prefill_engine_runs_one_after_the_other():
    """Where all were late together, the first is in time: it adds 1, as elsewhere, and goes to the fuller engine."""
    mine = waits(50, ttft_slo_s=60.0, weight=0.2)
    assert asked("gorouting", new(), prefiller(waits(20)), prefiller(mine)) == 1
    # With a nearer deadline it goes before it, and makes it late; in order of arrival it comes after, late itself.
    urgent = new(ttft_slo_s=55.0)
    assert asked("gorouting:mu=0", urgent, prefiller(waits(20)), prefiller(mine)) == 0
    assert asked("gorouting:mu=0,alpha=0.7,lambda=2", urgent, prefiller(waits(20)), prefiller(mine)) == 1
    assert asked("gorouting:mu=0,alpha=0.7,lambda=2,local_order=arrival", urgent, prefiller(waits(20)),
                 prefiller(mine)) == 0  # fmt: skip


def test_a_prefill_engine_with_slide_batching():
    """30 s of work, due before 30: urgent, and the denser first, where by deadline it would be the other."""
    asking = "gorouting:mu=0,lambda=2,fallback=least-loaded,local_order"
    mine = new(ttft_slo_s=22.0)  # 10 tokens of weight 1: density 0.1
    heavy, light = prefiller(waits(19, ttft_slo_s=25.0, weight=10.0)), prefiller(waits(20, ttft_slo_s=21.0, weight=0.5))
    # By deadline it goes before the heavy one, which is late then (29): 9 are lost; and after the light one, late
    # itself (30): nothing is gained anywhere, and the first engine has less to do.
    assert asked(f"{asking}=deadline", mine, heavy, light) == 0
    # By density (10 / 19, 0.025) after the heavy one, late: 0; before the light one, which is late then (30): 0.5.
    assert asked(f"{asking}=slide-batching", mine, heavy, light) == 1
    # Due at 30 the light one is not urgent, and in time after it: 1, where before it was 0.5 of both.
    later = prefiller(waits(20, ttft_slo_s=30.5, weight=0.5))
    assert asked(f"{asking}=slide-batching,alpha=1", mine, light, later) == 1


def test_each_prefill_has_the_constant_part():
    # Two of 10 s and 1 s each: 22 s; one of 21 s and 1 s: 22 s, and a tie; one of 22 s: 23 s.
    model = linear(c_p=1, t_c=1)
    two = prefiller(waits(10), waits(10), model=model)
    assert asked("gorouting", new(), two, prefiller(waits(21), model=model), sent=(2.0, 1.0)) == 1
    assert asked("gorouting", new(), two, prefiller(waits(20), model=model)) == 0
    assert asked("gorouting", new(), two, prefiller(waits(22), model=model)) == 1


def test_the_decode_engine_with_most_memory():
    memory = [engine(role="decode", free_blocks=blocks) for blocks in (10, 30, 20)]
    assert asked("gorouting", new(), *memory, emitted=1) == 1
