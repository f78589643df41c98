"""Router lost-gain on paper (docs/systems/routers.md). Each prefill token and each decode takes 1 s, the TTFT SLO is
100 s, the TPOT SLO 20 s; sums are over 100 s, and a prefill counts for 10 s at most: 0.1 of an engine's time."""

import pytest

from servegym.baselines.routers.engine_pace import (
    EMITTED,
    FINISHED,
    PREDICTED,
    RECENT_S,
    SEEN_FINISHED,
    SEEN_S,
    SEEN_TOKENS,
)
from servegym.baselines.routers.lost_gain import LATE, TPOT_SLO_S, TTFT_SLO_S
from servegym.baselines.routers.prefix_affinity import OF_TOKENS, WORK_S
from servegym.policy import REFUSE
from servegym.simulator.features.adapters import Adapters
from tests.baselines.router_cases import asked, engine, engines_of_adapters, waits
from tests.baselines.test_predicted_cost import SLOW
from tests.simulator.forming import linear

pytestmark = pytest.mark.nojit
NOW_S = 100_000.0  # long after the start, when sums are over all of the window
WEIGHTS = ("others", "own", "late", "queue", "pace", "memory_barrier", "session", "load", "recover", "stall")


def only(**settings: float) -> str:
    """The router without any cost but its own prefill, 0.1 or 0.2 on a slow engine, and what has a weight here."""
    limits = {"window_s": 100.0, "pace_limit": 0.5, "pace_sharpness": 40.0, "sharpness": 50.0}
    settings = dict.fromkeys(WEIGHTS, 0.0) | limits | settings
    return "lost-gain:" + ",".join(f"{name}={value}" for name, value in settings.items())


def new(prompt_tokens: int = 10, **more) -> dict:
    return waits(prompt_tokens, **{"arrival_s": NOW_S, "ttft_slo_s": 100.0, "tpot_slo_s": 20.0} | more)


def there(*record: dict, state: dict[int, float] | None = None, seen_s: float = NOW_S, **more) -> dict:
    """An engine at which the router has looked just now, unless seen_s says when."""
    return engine(*record, changed_s=NOW_S, state={SEEN_S: seen_s, **(state or {})}, **more)


def queued(tokens: int, **more) -> dict:
    """An engine that was sent so many tokens, of which nothing was cached."""
    return there(waits(tokens), state={WORK_S: float(tokens), OF_TOKENS: float(tokens)}, **more)


def choice(text: str, request: dict, *engines: dict, now_s: float = NOW_S, **more: int) -> int:
    return asked(text, request, *engines, now_s=now_s, **more)


def test_its_own_chance_to_be_slow():
    # 9 decodes / 0.9 of 20 s: at the limit, a chance of 1/2. Without it 0.4, 1 / (1 + e^4) = 0.018.
    busy, slow = there(decodes=8, decode_tokens=8), there(model=SLOW)
    assert choice(only(own=0.2), new(), busy, slow) == 0  # 0.1 + 0.098 against 0.2
    assert choice(only(own=0.21), new(), busy, slow) == 1
    assert choice(only(own=0.21, pace_limit=0.6), new(), busy, slow) == 0  # a chance of 0.018
    assert choice(only(own=0.21), new(tpot_slo_s=40.0), busy, slow) == 0


def test_those_that_it_makes_slow():
    # 8 x (0.5 - 0.018) = 3.86, whether they decode or wait.
    for busy in (there(decodes=8, decode_tokens=8), there(waits(1), waits(1), decodes=6, decode_tokens=6)):
        assert choice(only(others=0.026), new(), busy, there(model=SLOW)) == 0  # 0.100 + 0.098 against 0.2
        assert choice(only(others=0.027), new(), busy, there(model=SLOW)) == 1  # 0.104


def test_those_that_it_makes_late():
    # One waits: 85 s, a chance of 1 / (1 + e^7.5) = 0.001; with the request 95 s, 1 / (1 + e^2.5) = 0.076.
    assert choice(only(others=1.3), new(), queued(85), there(model=SLOW)) == 0  # 0.1 + 0.098 against 0.2
    assert choice(only(others=1.4), new(), queued(85), there(model=SLOW)) == 1  # 0.106


def test_where_all_are_slow_already_nothing_is_lost():
    # 31 s for each token without it: of what it takes from later ones nothing counts. With 7 decodes 0.1 + 0.9 do, but
    # for the chance that a first token is late anyway, 1 / (1 + e^1.5) = 0.18.
    assert choice(only(queue=1, others=10), new(), queued(90, decodes=30), there(model=SLOW)) == 0
    assert choice(only(queue=1, pace_limit=0.9), new(), queued(90, decodes=7), there(model=SLOW)) == 1


def test_where_all_are_late_already_nothing_is_lost():
    # A queue of 200 s: 0.1 + 2 if engines have been on time, 0 if they have been late.
    work = {WORK_S: 200.0, OF_TOKENS: 200.0}
    assert choice(only(queue=1, others=10), new(), queued(200), there(model=SLOW)) == 1
    assert choice(only(queue=1, others=10), new(), there(waits(200), state={LATE: 1.0, **work}), there(model=SLOW)) == 0


def test_the_share_of_late_requests_is_averaged():
    # A look after 230 s, and e^-2.3 is 0.1: 0.1 x 0 + 0.9 x 1 are late now. It costs 0.1 x 0.1 + 0.9 x `recover`.
    half, work = linear(c_p=1, b_d=2), {WORK_S: 300.0, OF_TOKENS: 300.0, PREDICTED: 1e9, EMITTED: 1e9}
    drowned = there(waits(300), state=work, seen_s=NOW_S - 230.0)
    assert choice(only(recover=0.09), new(), drowned, there(model=half)) == 0  # 0.01 + 0.081 against 0.1
    assert choice(only(recover=0.11), new(), drowned, there(model=half)) == 1


def test_what_is_late_anyway_goes_where_all_are_slow():
    # Its own chances cost 6 there, and the others 0; elsewhere it would make 4 of 8 others slow.
    router, drowned = only(late=5, own=1, others=1), queued(300, decodes=30)
    assert choice(router, new(), drowned, there(decodes=8)) == 1
    assert choice(router, new(), drowned, queued(300, decodes=7)) == 0


def test_fast_engines_are_to_recover():
    # All are late at the first engine: 0 is lost there, and `recover` x 1 if the other one decodes at half its speed.
    half, work = linear(c_p=1, b_d=2), {LATE: 1.0, WORK_S: 300.0, OF_TOKENS: 300.0}
    drowned = there(waits(300), state=work)
    assert choice(only(recover=0.09), new(), drowned, there(model=half)) == 0  # against 0.1
    assert choice(only(recover=0.11), new(), drowned, there(model=half)) == 1
    assert choice(only(recover=9), new(), queued(300, model=half), there()) == 0


def test_prefills_slow_decodes_down():
    # 30 s of prefills, its own 10 and 6 decodes: 6 / 0.6 of 20 s, 0.5; 8 / 0.9 there, 0.44.
    router, sent = only(pace=5, pace_limit=2), there(decodes=5, state={RECENT_S: 30.0})
    assert choice(router, new(), sent, there(decodes=7)) == 1
    # After 100 s they are 30 / e = 11: 6 / 0.79, 0.38.
    before = NOW_S - 100.0
    engines = [
        there(decodes=n, state={RECENT_S: s, EMITTED: 1e9, PREDICTED: 1e9}, seen_s=before)
        for n, s in ((5, 30.0), (7, 0.0))
    ]  # fmt: skip
    assert choice(router, new(), *engines) == 0
    # A longer one counts for no more: 9 / 0.9, a chance of 0.5, and not 9 / 0.8, 0.92. 0.2 + 0.2 against 0.4.
    assert choice(only(own=0.4), new(20), there(decodes=8, decode_tokens=8), there(model=SLOW)) == 0
    # They take 0.9 at most: 8 / 0.11 and 6 / 0.1, not 6 / 0.05.
    engines = [there(decodes=n, state={RECENT_S: s}) for n, s in ((7, 79.0), (5, 85.0))]
    assert choice(only(pace=5), new(tpot_slo_s=1000.0), *engines) == 1


def test_early_prefills_count_over_the_time_since_the_start():
    # At 10 s the weights sum up to 100 x (1 - 1 / e^0.1) = 9.5 s. 3 s of 9.5 and its own 0.5: 6 / 0.63; 9 / 0.95.
    engines = [
        engine(decodes=n, changed_s=10.0, state={SEEN_S: 10.0, RECENT_S: s}) for n, s in ((5, 3.0), (8, 0.0))
    ]  # fmt: skip
    router, request = only(pace=5, pace_limit=2), new(arrival_s=10.0, prompt_tokens=1)
    assert choice(router, request, *engines, now_s=10.0) == 1  # own: 1 s of 9.5
    assert choice(router, request, *(there(decodes=n, state={RECENT_S: s}) for n, s in ((5, 3.0), (8, 0.0)))) == 0


def test_what_came_out_corrects_what_was_predicted():
    # (1400 + 700) / (3500 + 700) = 0.5: 10 / 0.9 / 2 of 20 s, 0.28; 6 / 0.9, 0.33.
    router, faster = only(pace=5, pace_limit=2), {PREDICTED: 1400.0, EMITTED: 3500.0}
    assert choice(router, new(), there(decodes=9), there(decodes=5)) == 1
    assert choice(router, new(), there(decodes=9, state=faster), there(decodes=5)) == 0
    # An engine counts as slower by 1.5 at most: 6 / 0.9 x 1.5 is 10, more than 8 / 0.9 and less than 10 / 0.9.
    slower = there(decodes=5, state={PREDICTED: 1e9})
    assert [choice(router, new(), slower, there(decodes=n)) for n in (7, 9)] == [1, 0]


def test_a_look_counts_what_has_changed_since_the_last_one():
    # In 10 s 10 decodes at 10 s should emit 10 tokens, and 1410 came out, or 10: 710 / 2110 = 0.34 of 11 / 0.9, or all.
    router, before = only(pace=5, pace_limit=2), NOW_S - 10.0
    for tokens, expected in ((2000 + 1410, 0), (2000 + 10, 1)):
        looked = there(decodes=10, output_tokens=tokens, state={SEEN_TOKENS: 2000.0}, seen_s=before)
        assert choice(router, new(), looked, there(decodes=5)) == expected


def test_memory_in_use_above_its_limit_costs():
    # 90 wait and 10 are its own, 50 are free of 5000: 1.01 of the blocks, with 1100 free 0.8.
    full, slow = there(waits(90), free_blocks=50), there(model=SLOW)
    assert choice(only(memory_barrier=0.8, memory_limit=0.9), new(), full, slow) == 0  # 0.1 + 0.088 against 0.2
    assert choice(only(memory_barrier=1.0, memory_limit=0.9), new(), full, slow) == 1
    assert choice(only(memory_barrier=99, memory_limit=0.8), new(), there(waits(90), free_blocks=1100), slow) == 0
    # What later requests lose: nothing, where all are slow already.
    assert choice(only(memory_barrier=9), new(), there(waits(90), decodes=30, free_blocks=50), slow) == 0


def test_another_engine_than_that_of_its_session_costs():
    engines = there(), there(model=SLOW)
    assert choice(only(session=0.09), new(session_engine=1), *engines) == 0  # 0.1 + 0.09 against 0.2
    assert choice(only(session=0.11), new(session_engine=1), *engines) == 1
    assert choice(only(session=0.11), new(), *engines) == 0


def test_it_waits_for_blocks():
    # 5 blocks are missing. Requests have 10 each, and 5 of them finished in 100 s: 0.5 a second, so it takes 10 s.
    full = there(decodes=2, decode_tokens=20, free_blocks=5, state={FINISHED: 5.0})
    assert choice(only(queue=0.9), new(), full, there(model=SLOW)) == 0  # 0.1 + 0.09 against 0.2
    assert choice(only(queue=1.1), new(), full, there(model=SLOW)) == 1
    finished = {"finished": 12, "state": {FINISHED: 3.0, SEEN_FINISHED: 10.0}}  # two more
    again = there(decodes=2, decode_tokens=20, free_blocks=5, **finished)
    assert [choice(only(queue=q), new(), again, there(model=SLOW)) for q in (0.9, 1.1)] == [0, 1]


def test_on_a_prefill_engine_nothing_is_slow():
    engines = there(role="prefill", decodes=50), there(role="prefill", model=SLOW)
    assert choice(only(pace=5, own=20, others=10, pace_limit=0), new(), *engines) == 0


def test_it_refuses_what_has_little_chance():
    # 90 + 10 of 100 s: a chance of 1/2. 83 + 10 + 7 s, and (8 + 1) / 0.9 of 20 s between tokens: 1/4.
    for chance, full in ((0.5, queued(90)), (0.25, queued(83, decodes=7, decode_tokens=7))):
        assert choice(only(refuse=chance - 0.01), new(), full) == 0
        assert choice(only(refuse=chance + 0.01), new(), full) == REFUSE
    assert choice(only(refuse=1), new(session_engine=1), queued(90)) == 0  # a later turn
    assert choice(only(refuse=1), new(), there(role="decode", decodes=50), emitted=1) == 0


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
    busy, slow = there(decodes=8, decode_tokens=8, state={TPOT_SLO_S: 20.0}), there(model=SLOW)
    assert choice(only(others=0.026), slack, busy, slow) == 0
    assert choice(only(others=0.027), slack, busy, slow) == 1
    assert choice(only(others=0.027), slack, there(decodes=8, decode_tokens=8), slow) == 0  # nothing known: as its own
    # One waits, 85 s, with a TTFT SLO of 100 s: of a request with one of 400 s, 0.076 x others as above.
    patient, late = new(ttft_slo_s=400.0), there(waits(85), state={WORK_S: 85.0, OF_TOKENS: 85.0, TTFT_SLO_S: 100.0})
    assert choice(only(others=0.3), patient, late, slow) == 0  # 0.025 + 0.023 against 0.05
    assert choice(only(others=0.4), patient, late, slow) == 1
    assert choice(only(others=0.4), patient, queued(85), slow) == 0
