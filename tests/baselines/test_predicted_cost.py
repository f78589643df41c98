"""Router predicted-cost on paper (docs/systems/routers.md). Each prefill token and each decode takes 1 s."""

import pytest

from servegym.baselines.routers.prefix_affinity import OF_TOKENS, WORK_S
from servegym.simulator.features.adapters import Adapters
from tests.baselines.router_cases import asked, engine, engines_of, engines_of_adapters, waits
from tests.simulator.forming import linear

pytestmark = pytest.mark.nojit
WEIGHTS = ("queue", "late", "pace", "pace_barrier", "memory_barrier", "load", "stall")
SLOW = linear(c_p=2, b_d=1)  # 20 s for the request, which elsewhere takes 10


def only(**weights: float) -> str:
    """The router without any cost but its own prefill and what has a weight here."""
    settings = dict.fromkeys(WEIGHTS, 0.0) | weights
    return "predicted-cost:" + ",".join(f"{name}={value}" for name, value in settings.items())


def new(prompt_tokens: int = 10, **more) -> dict:
    return waits(prompt_tokens, **{"ttft_slo_s": 100.0, "tpot_slo_s": 20.0} | more)


def queued(tokens: int, **more) -> dict:
    """An engine that was sent so many tokens, of which nothing was cached."""
    return engine(waits(tokens), state={WORK_S: float(tokens), OF_TOKENS: float(tokens)}, **more)


def test_its_own_prefill_and_what_it_waits_for():
    # 0.2 against 0.1 + queue x wait / 100 s.
    slow = engine(model=SLOW)
    assert asked(only(queue=1), new(), slow, queued(9)) == 1
    assert asked(only(queue=1), new(), slow, queued(11)) == 0
    assert asked(only(queue=2), new(), slow, queued(4)) == 1
    assert asked(only(queue=2), new(), slow, queued(6)) == 0
    assert asked(only(queue=0), new(), slow, queued(99)) == 1


def test_what_is_cached_is_not_its_own():
    # 4 x 4 of 20 tokens are there: 0.04 + 0.14 against 0.2.
    request = new(20, chunks=[0, 1, 2, 3])
    assert asked(only(queue=1), request, queued(14, has=4), engine()) == 0
    assert asked(only(queue=1), request, queued(17, has=4), engine()) == 1


def test_a_session_stays_until_its_queue_is_too_long():
    # Each request is queued with what was not cached: as prefix-affinity, whose first tokens these weights ask for.
    sent = (0, 8, [0, 1]), (0, 8, [5, 6]), (1, 12, [0, 1, 2]), (2, 12, [0, 1, 9]), (3, 8, [0, 7])
    assert engines_of(only(queue=1), *sent) == [0, 1, 0, 0, 1]


def test_the_chance_to_be_late():
    # 80 + 10 s of 100: late by -0.1, a chance of 1 / (1 + e^0.6) = 0.354; 20 s: by -0.8, 1 / (1 + e^4.8) = 0.008.
    engines = queued(80), engine(model=SLOW)
    assert asked(only(late=0.2), new(), *engines) == 0  # 0.1 + 0.071 against 0.2 + 0.002
    assert asked(only(late=0.4), new(), *engines) == 1  # 0.1 + 0.142 against 0.2 + 0.003
    assert asked(only(late=0.4, sharpness=50), new(), *engines) == 0  # 1 / (1 + e^5) = 0.007
    # Decodes are beside it: 90 s and 9 more, late by -0.01, 0.485: 0.1 + 0.097.
    assert asked(only(late=0.2), new(), queued(80, decodes=9, decode_tokens=9), engine(model=SLOW)) == 0
    assert asked(only(late=0.22), new(), queued(80, decodes=9, decode_tokens=9), engine(model=SLOW)) == 1


def test_a_class_with_a_ttlt_slo_has_all_of_it():
    # Late by -0.9 of 1000 s, and not by -0.1 of 100: a chance of 0.004, where an interactive one goes to the other.
    engines = queued(80), engine(model=SLOW)
    assert [asked(only(late=0.4), new(ttlt_slo_s=slo_s), *engines) for slo_s in (1000.0, float("inf"))] == [0, 1]


def test_the_pace_of_all_that_decode_and_will():
    # 5 decodes, and 2 that wait, and it: 8 of 20 s, 0.4, against 0.1 + 0.05 for being slow.
    busy = engine(waits(1), waits(1), decodes=5, decode_tokens=5)
    assert asked(only(pace=1), new(), busy, engine(model=SLOW)) == 1
    assert asked(only(pace=0.2), new(), busy, engine(model=SLOW)) == 0  # 0.08 against 0.11
    assert asked(only(pace=0.4), new(), busy, engine(model=SLOW)) == 1  # 0.16 against 0.12
    assert asked(only(pace=0.4), new(tpot_slo_s=200.0), busy, engine(model=SLOW)) == 0


def test_above_its_limit_pace_costs_more():
    # 16 of 20 s: 0.1 above 0.7; 0.1 x 2 against 0.1.
    busy = engine(decodes=15, decode_tokens=15)
    assert asked(only(pace_barrier=2), new(), busy, engine(model=SLOW)) == 1
    assert asked(only(pace_barrier=0.5), new(), busy, engine(model=SLOW)) == 0
    assert asked(only(pace_barrier=2, pace_limit=0.9), new(), busy, engine(model=SLOW)) == 0


def test_memory_in_use_above_its_limit_costs():
    # Of 5000 blocks 4600 are used, 90 wait and 10 are its own: 0.04 above 0.9.
    full = engine(waits(90), free_blocks=400)
    assert asked(only(memory_barrier=3), new(), full, engine(model=SLOW)) == 1  # 0.1 + 0.12 against 0.2
    assert asked(only(memory_barrier=2), new(), full, engine(model=SLOW)) == 0
    assert asked(only(memory_barrier=3, memory_limit=0.95), new(), full, engine(model=SLOW)) == 0


def test_requests_beside_the_mean():
    # 6 and 2, mean 4: 0.1 + 1.5 x load against 0.2 + 0.5 x load.
    engines = engine(requests=6), engine(requests=2, model=SLOW)
    assert asked(only(load=0.09), new(), *engines) == 0
    assert asked(only(load=0.11), new(), *engines) == 1
    # A mean below 1 counts as 1: 0.1 + load against 0.2.
    assert asked(only(load=0.09), new(), engine(requests=1), engine(model=SLOW)) == 0
    assert asked(only(load=0.11), new(), engine(requests=1), engine(model=SLOW)) == 1


def test_on_a_prefill_engine_nothing_decodes():
    engines = engine(role="prefill", decodes=50, decode_tokens=50), engine(role="prefill", model=SLOW)
    assert asked(only(pace=5, pace_barrier=50), new(), *engines) == 0


def test_a_decode_engine_by_its_pace_and_memory():
    fast, slow = ({"role": "decode", "model": linear(c_p=1, b_d=b_d)} for b_d in (1, 2))
    # 6 s against 2 x 2 s; waits for prefills do not count.
    decoders = engine(**fast, decodes=5, decode_tokens=5), engine(**slow, decodes=1, decode_tokens=1)
    assert asked(only(pace=1, queue=5, late=20), new(), *decoders, emitted=1) == 1
    full = engine(**slow, decodes=1, decode_tokens=1, free_blocks=100)  # 0.08 above 0.9
    assert asked(only(pace=1, memory_barrier=2), new(), decoders[0], full, emitted=1) == 0  # 0.3 against 0.2 + 0.16


def test_the_time_to_bring_in_its_adapter_is_its_own():
    # 4 s of prefill, 3 s more for an adapter that is nowhere, 1 s for one that is in host memory; ties by turns.
    adapters = [1, 2, 1, 2, 3, 1, 2, 3, 4, 2]
    assert engines_of_adapters(only(), adapters, Adapters(1, 2.0, 1.0, 2), 100.0) == [0, 1, 0, 1, 0, 0, 1, 0, 1, 1]
    # Host memory has no other than device memory: 3 at the first engine takes the place of 1.
    assert engines_of_adapters(only(), adapters[:6], Adapters(1, 2.0, 1.0), 100.0) == [0, 1, 0, 1, 0, 1]
    assert engines_of_adapters(only(), [0, 0, 1, 0], Adapters(1, 2.0, 1.0), 100.0) == [0, 1, 0, 1]


def test_each_request_there_waits_while_an_adapter_is_loaded():
    # All at once: the last one costs 9 + 3 x 5 s at the first engine, 9 + 1 x 5 s at the second. Else ties, by turns.
    adapters = [1, 1, 1, 2, 3]
    assert engines_of_adapters(only(stall=1), adapters, Adapters(1, 4.0, 1.0), 0.0) == [0, 0, 0, 1, 1]
    assert engines_of_adapters(only(), adapters, Adapters(1, 4.0, 1.0), 0.0) == [0, 0, 0, 1, 0]


def test_others_wait_for_that_adapter():
    # All at once: 5 + 4 + 4 s at the first engine, where only 4 + 4 s are prefills, and 5 + 4 s at the second.
    assert engines_of_adapters(only(queue=1), [1, 1], Adapters(1, 4.0, 1.0), 0.0) == [0, 1]
    # With half the weight for the queue 8.5 s and 9 s.
    assert engines_of_adapters(only(queue=0.5), [1, 1], Adapters(1, 4.0, 1.0), 0.0) == [0, 0]
