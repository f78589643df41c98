"""Router lost-gain on paper (docs/systems/routers.md). Each prefill token and each decode takes 1 s, the TTFT SLO is
100 s, the TPOT SLO 20 s; prefills count over 100 s, each for 10 s at most: 0.1 of an engine's time."""

import pytest

from servegym.baselines.routers.lost_gain import RECENT_AT_S, RECENT_S, TPOT_SLO_S
from servegym.policy import REFUSE
from servegym.simulator.features.adapters import Adapters
from tests.baselines.router_cases import asked, engine, engines_of_adapters, waits
from tests.baselines.test_predicted_cost import SLOW, new, queued

pytestmark = pytest.mark.nojit


def only(**settings: float) -> str:
    """The router without any cost but its own prefill, 0.1 or 0.2 on a slow engine, and what has a weight here."""
    weights = dict.fromkeys(("others", "own", "late", "queue", "pace", "memory", "load", "stall"), 0.0)
    settings = weights | {"window_s": 100.0, "pace_limit": 0.5} | settings
    return "lost-gain:" + ",".join(f"{name}={value}" for name, value in settings.items())


def test_its_own_chance_to_be_slow():
    # 9 decodes / 0.9 of 20 s: at the limit, a chance of 1/2. Without it 0.4, 1 / (1 + e^4) = 0.018.
    busy, slow = engine(decodes=8, decode_tokens=8), engine(model=SLOW)
    assert asked(only(own=0.2), new(), busy, slow) == 0  # 0.1 + 0.098 against 0.2
    assert asked(only(own=0.21), new(), busy, slow) == 1
    assert asked(only(own=0.21, pace_limit=0.6), new(), busy, slow) == 0  # a chance of 0.018
    assert asked(only(own=0.21), new(tpot_slo_s=40.0), busy, slow) == 0


def test_those_that_it_makes_slow():
    # 8 x (0.5 - 0.018) = 3.86, whether they decode or wait.
    for busy in (engine(decodes=8, decode_tokens=8), engine(waits(1), waits(1), decodes=6, decode_tokens=6)):
        assert asked(only(others=0.026), new(), busy, engine(model=SLOW)) == 0  # 0.100 + 0.098 against 0.2
        assert asked(only(others=0.027), new(), busy, engine(model=SLOW)) == 1  # 0.104


def test_where_all_are_slow_already_nothing_is_lost():
    # 31 s for each token without it: of what it takes from later ones nothing counts. With 7 decodes 0.1 + 0.9 do.
    assert asked(only(queue=1, others=10), new(), queued(90, decodes=30), engine(model=SLOW)) == 0
    assert asked(only(queue=1, pace_limit=0.9), new(), queued(90, decodes=7), engine(model=SLOW)) == 1


def test_what_is_late_anyway_goes_where_all_are_slow():
    # Its own chance costs 1 there, and the others 0; elsewhere it would make 4 of 8 others slow.
    router, drowned = only(late=5, own=1, others=1), queued(300, decodes=30)
    assert asked(router, new(), drowned, engine(decodes=8)) == 1
    assert asked(router, new(), drowned, queued(300, decodes=7)) == 0


def test_prefills_slow_decodes_down():
    # 30 s of prefills, its own 10 and 6 decodes: 6 / 0.6 of 20 s, 0.5; 8 / 0.9 there, 0.44.
    sent = engine(decodes=5, state={RECENT_S: 30.0, RECENT_AT_S: 0.0})
    assert asked(only(pace=5, pace_limit=2), new(), sent, engine(decodes=7)) == 1
    # 100 s later they are 30 / e = 11: 6 / 0.79, 0.38.
    assert asked(only(pace=5, pace_limit=2), new(), sent, engine(decodes=7), now_s=100.0) == 0
    # A longer one counts for no more: 9 / 0.9, a chance of 0.5, and not 9 / 0.8, 0.92. 0.2 + 0.2 against 0.4.
    assert asked(only(own=0.4), new(20), engine(decodes=8, decode_tokens=8), engine(model=SLOW)) == 0
    # They take 0.9 at most: 8 / 0.11 and 6 / 0.1, not 6 / 0.05.
    engines = [engine(decodes=n, state={RECENT_S: s, RECENT_AT_S: 0.0}) for n, s in ((7, 79.0), (5, 85.0))]
    assert asked(only(pace=5), new(tpot_slo_s=1000.0), *engines) == 1


def test_blocks_that_are_missing():
    # 90 wait and 10 are its own, 50 are free of 5000: 0.01.
    full = engine(waits(90), free_blocks=50)
    assert asked(only(memory=9), new(), full, engine(model=SLOW)) == 0
    assert asked(only(memory=11), new(), full, engine(model=SLOW)) == 1
    assert asked(only(memory=99), new(), engine(waits(90), free_blocks=100), engine(model=SLOW)) == 0


def test_on_a_prefill_engine_nothing_is_slow():
    engines = engine(role="prefill", decodes=50), engine(role="prefill", model=SLOW)
    assert asked(only(pace=5, own=20, others=10, pace_limit=0), new(), *engines) == 0


def test_it_refuses_what_has_little_chance():
    # 90 + 10 of 100 s: a chance of 1/2. 83 + 10 + 7 s, and (8 + 1) / 0.9 of 20 s between tokens: 1/4.
    for chance, there in ((0.5, queued(90)), (0.25, queued(83, decodes=7, decode_tokens=7))):
        assert asked(only(refuse=chance - 0.01), new(), there) == 0
        assert asked(only(refuse=chance + 0.01), new(), there) == REFUSE
    assert asked(only(refuse=1), new(session_engine=1), queued(90)) == 0  # a later turn
    assert asked(only(refuse=1), new(), engine(role="decode", decodes=50), emitted=1) == 0


def test_the_time_to_bring_in_its_adapter_is_its_own():
    # 4 s of prefill, 3 s more for an adapter that is nowhere, 1 s for one that is in host memory; ties by turns.
    adapters = [1, 2, 1, 2, 3, 1, 2, 3, 4, 2]
    assert engines_of_adapters(only(), adapters, Adapters(1, 2.0, 1.0, 2), 100.0) == [0, 1, 0, 1, 0, 0, 1, 0, 1, 1]


def test_each_request_there_waits_while_an_adapter_is_loaded():
    # All at once: the last one costs 9 + 3 x 5 s at the first engine, 9 + 1 x 5 s at the second. Else nearly the same:
    # the first engine is a little later, so there is a little less to lose there.
    adapters = [1, 1, 1, 2, 3]
    assert engines_of_adapters(only(stall=1), adapters, Adapters(1, 4.0, 1.0), 0.0) == [0, 0, 0, 1, 1]
    assert engines_of_adapters(only(), adapters, Adapters(1, 4.0, 1.0), 0.0) == [0, 0, 0, 0, 0]


def test_others_are_slow_by_their_own_slos():
    # 9 decodes / 0.9: 0.1 SLOs of the request, and half an SLO of those there, 20 s; 8 x (0.5 - 0.018) are made slow.
    slack = new(tpot_slo_s=100.0)
    busy, slow = engine(decodes=8, decode_tokens=8, state={TPOT_SLO_S: 20.0}), engine(model=SLOW)
    assert asked(only(others=0.026), slack, busy, slow) == 0
    assert asked(only(others=0.027), slack, busy, slow) == 1
    assert asked(only(others=0.027), slack, engine(decodes=8, decode_tokens=8), slow) == 0  # nothing known: as its own
