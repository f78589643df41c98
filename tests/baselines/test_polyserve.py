"""PolyServe by hand: which engine the router names, and when."""

import pytest

from servegym.baselines.registry import router, scheduler
from servegym.baselines.routers.polyserve_forecast import FIELDS
from servegym.errors import DeploymentError
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation
from tests.baselines.polyserve_cases import decided, decoding, engine, request
from tests.simulator.forming import linear
from tests.simulator.scenes import requests

pytestmark = pytest.mark.nojit

# 2 requests of 55 tokens, 5 to come: KV is 2 x (54 + 5) = 118 when they leave; an iteration takes 1 + 0.2 + 1.18.
SOME = decoding(2, 50, 5)
# 40 of them: 2360, and 1 + 4 + 23.6 s: too long for any tier.
FULL = engine(1, decoding(40, 50, 5), busy_until_s=1.0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_future_of_an_engine(order):
    # One of 5 + 8 tokens has 2 to come, one of 20 + 4 has 6. In 2 iterations: 12 + 2 + 23 + 2 = 39, in 6: 23 + 6. With
    # one more, of no tokens, that stays: 41 and 35. An iteration: 1 + 0.2 + 0.39.
    running = [decoding(1, 5, 8)[0], decoding(1, 20, 4)[0]]
    state = decided(request(3), engine(1, [running[k] for k in order])).state
    assert state[0, :4].tolist() == pytest.approx([1, 39, 41, 1.59])


def test_what_waits_counts_as_if_it_decoded():
    # 30 prompt tokens, 10 to come: 29 + 10 at the end. Beside one of 13 tokens with 2: 12 + 2 + 29 + 2 = 45 in 2.
    state = decided(request(3), engine(1, decoding(1, 5, 8), [request(30)], clear_s=1.0, s_per_token=1.0)).state
    assert state[0, 1:3].tolist() == [45, 49]


def test_an_answer_is_as_long_as_those_finished():
    # 25 tokens in 2 answers: 13 each. 3 of 13 are out: 10 to come; 15 are out: 1. In 1: 10 + 20, in 10: 9 + 10.
    done = engine(1, finished=2, finished_tokens=25)
    state = decided(request(3), done, engine(1, decoding(1, 7, 3) + decoding(1, 5, 15))).state
    assert state[1, 1:3].tolist() == [30, 31]


def test_the_fullest_that_is_in_time():
    # 20 tokens: in a chunk of up to 30 beside 2 decodes (1.2 + 1.18 + 3 < 6) they take 4.38 s, alone 3 s.
    engines = engine(1), engine(1, SOME)
    assert decided(request(20), *engines).engine == 1
    assert decided(request(20, ttft_s=4.4), *engines).engine == 1
    assert decided(request(20, ttft_s=4.3), *engines).engine == 0
    assert decided(request(20, ttft_s=3.1), *engines).engine == 0


def test_the_wait_for_the_running_iteration():
    engines = engine(1), engine(1, SOME, busy_until_s=7.0)
    assert decided(request(20, ttft_s=11.4), *engines, now_s=5.0).engine == 1  # 7 + 4.38
    assert decided(request(20, ttft_s=11.3), *engines, now_s=5.0).engine == 0


def test_chunks_that_can_be_kept():
    # 4 of 25 tokens in the tier of 3 s, 5 to come: KV 116, 1 + 0.4 + 1.16 = 2.56: chunks of 4, 2.96 s each.
    # So 20 tokens take 14.8 s.
    tight = engine(0, decoding(4, 20, 5, tpot_s=3.0))
    assert decided(request(20, 3.0, 14.9), tight).engine == 0
    assert decided(request(20, 3.0, 14.7), tight, busy(0)).engine == -1
    # 17 tokens are 5 chunks as well, 16 are 4.
    assert decided(request(17, 3.0, 14.7), tight, busy(0)).engine == -1
    assert decided(request(16, 3.0, 14.7), tight).engine == 0


def test_iterations_below_the_tpot():
    # With 20 tokens more KV is at most 4 x 29 + 5 + 19 = 140: 1 + 0.5 + 1.4 = 2.9 s. With 30: 150, 3.0 s: too long.
    tight = engine(0, decoding(4, 20, 5, tpot_s=3.0))
    assert decided(request(20, 3.0), tight).engine == 0
    assert decided(request(30, 3.0), tight, busy(0)).engine == -1


def test_memory_with_a_reserve():
    # KV of at most 118 + 5 + 19 = 142, and 3 last blocks: 145.
    engines = engine(1), engine(1, SOME)
    assert decided(request(20), *engines, total_blocks=153).engine == 1  # 0.95 x 153 = 145.35
    assert decided(request(20), *engines, total_blocks=152).engine == 0
    assert decided(request(20), *engines, total_blocks=145, memory_reserve=0.0).engine == 1


def busy(tier: int) -> dict:
    """An engine that is full and busy, so that a request may be held."""
    return {**FULL, "tier": tier}


def test_lazy_promotion_then_the_pool_then_the_line():
    # 20 tokens fit the engine of the tighter tier, in 2.9 s an iteration; 40 do not, in 3.1 s.
    tight, pool = engine(0, decoding(4, 20, 5, tpot_s=3.0)), engine(-1)
    own = engine(1, SOME)
    assert decided(request(20), pool, tight, own).engine == 2
    promoted = decided(request(20), pool, tight, FULL)
    assert (promoted.engine, promoted.tier) == (1, -1)
    joined = decided(request(40), pool, tight, FULL)
    assert (joined.engine, joined.tier) == (0, 1)
    held = decided(request(40), tight, FULL)
    assert (held.engine, held.line) == (-1, 1)
    # One of the tighter tier does not use a looser one.
    held = decided(request(40, 3.0), tight, own, FULL)
    assert (held.engine, held.line) == (-1, 0)


def test_the_emptiest_of_the_pool_joins():
    engines = engine(-1, SOME), engine(-1, decoding(1, 50, 5)), engine(-1, decoding(1, 9, 5)), FULL
    assert decided(request(40), *engines)[:2] == (1, 1)


def test_a_pending_engine_of_the_tier_goes_before_the_pool():
    pending = {"closed": 1, "pending": 1}
    mine = engine(0, decoding(2, 50, 5, tpot_s=6.0), **pending)
    assert decided(request(20), FULL, engine(), mine)[:2] == (2, 1)
    # The fullest of two; not one whose requests are of another tier (the first of them counts), nor a drained one.
    assert decided(request(20), FULL, engine(), mine, engine(0, decoding(3, 50, 5), **pending))[:2] == (3, 1)
    others = decoding(1, 50, 5, tpot_s=3.0)
    assert decided(request(20), FULL, engine(), engine(0, others + SOME, **pending))[:2] == (1, 1)
    assert decided(request(20, tpot_s=3.0), engine(0, FULL["running"]), engine(), mine)[:2] == (1, 0)
    assert decided(request(20), FULL, engine(), engine(0, SOME, closed=1))[:2] == (1, 1)
    # It has to be in time there: in chunks beside the two 20 tokens take 4.38 s, alone 3 s.
    assert decided(request(20, ttft_s=4.3), FULL, engine(), mine)[:2] == (1, 1)
    # Where the tier has room it does not grow.
    assert decided(request(20), engine(1), engine(), mine)[:2] == (0, -1)


def test_best_effort():
    # 20 tokens take 3 s at least: with a TTFT of 3 s nothing helps. (3 s is not before 3 s.)
    late = request(20, ttft_s=3.0)
    assert decided(late, engine(1), engine(-1), FULL)[:2] == (1, -1)  # the pool, and it stays there
    assert decided(late, engine(0), engine(1, SOME), FULL)[:2] == (1, -1)  # from the loosest tier on, by iterations
    assert decided(late, engine(0), FULL)[:2] == (0, -1)
    held = decided(late, FULL)
    assert (held.engine, held.line) == (-1, 2)
    assert decided(late, FULL, now_s=1.0).engine == 0  # none is busy any more


def test_a_slow_request_has_an_idle_engine():
    # An iteration of 1.1 s + 0.01 s a token is 3.1 s or more with 200 tokens: never in 3 s, and served all the same.
    assert decided(request(200, 3.0), engine(0), FULL).engine == 0


def test_queue_records_by_deadline():
    # Engine 0 has 16 tokens waiting and does a token in 0.2 s at present; alone 16 take 1 + 1.6 s, in 1 chunk of 32.
    def where(due_s: float, other_s: float) -> int:
        first = engine(1, record=[request(16, ttft_s=other_s)], clear_s=3.2, s_per_token=0.2)
        return decided(request(16, ttft_s=due_s), first, engine(1)).engine

    # A decode is beside it: K = 15 + 10 (10 to come), 1.1 + 0.25 + 0.1 q, q up to 31: 4.45 s, so 4.45 / 31 a token. Its
    # own 16 tokens: 2.95 s; those before it 16 x 0.14355 = 2.297 s.
    assert where(5.3, 4.0) == 0
    assert where(5.2, 4.0) == 1  # behind the other: 5.247 s
    assert where(3.0, 50.0) == 0  # before the other
    assert where(3.0, 5.0) == 1  # which then is done at 5.247 s
    assert where(3.0, 2.0) == 1  # 2 s: the other is first, late as it will be


def test_what_is_sent_is_noted():
    noted = decided(request(16), engine(1)).state[0]
    assert noted[[FIELDS.index("clear_s"), FIELDS.index("s_per_token")]].tolist() == pytest.approx(
        [16 * 4.2 / 32, 4.2 / 32]  # chunks of 32 take 1 + 3.2 s
    )


def test_decode_engines():
    # 20 + 1 tokens: with SOME KV of at most 118 + 5 + 20 = 143, 1 + 0.3 + 1.43 = 2.73 s. Its next is due at 4 + 6.
    new = request(20, ttft_s=4.0, emitted=1, computed=20)
    some, idle = engine(1, SOME, role="decode", busy_until_s=7.2), engine(1, role="decode")
    assert decided(new, idle, some, now_s=5.0).engine == 1
    some["more"]["busy_until_s"] = 7.3
    assert decided(new, idle, some, now_s=5.0).engine == 0
    late = decided(new, some, now_s=9.0)  # alone it takes 1.1 + 0.29 s: too late for 10; iterations stay below 6 s
    assert (late.engine, late.tier) == (0, -1)


def test_prefill_engines_serve_all_tiers():
    # 64 tokens in chunks of 32, 4.2 s each: 8.4 s, 0.13125 a token. Engine 0 has as many before it: done at 16.8.
    waits = engine(1, record=[request(64, ttft_s=10.0)], role="prefill", clear_s=8.4, s_per_token=0.13125)
    idle, pool = engine(0, role="prefill"), engine(-1, role="prefill")
    assert decided(request(64, 3.0, 16.9), pool, waits, idle).engine == 1
    assert decided(request(64, 3.0, 16.7), pool, waits, idle).engine == 2
    assert decided(request(64, 3.0, 16.7), pool, waits)[:2] == (0, 0)
    assert decided(request(64, 3.0, 16.7), waits, busy_until(1.0))[::2] == (-1, 2)  # held behind all others
    # Too late for anything: where nobody waits for his first token.
    assert decided(request(64, 3.0, 8.3), waits, idle).engine == 1


def busy_until(time_s: float) -> dict:
    return engine(1, record=[request(64, ttft_s=10.0)], role="prefill", clear_s=8.4, s_per_token=0.13125,
                  busy_until_s=time_s)  # fmt: skip


def test_what_a_decode_engine_gives_up_is_prefilled_again():
    """Too late for its tier, request 2 decodes at the engine of the pool; that engine is then given to the tier of
    request 3, and request 2 goes back to prefill, with a token out."""
    workload = requests(
        prompt_tokens=3, output_tokens=[1, 1, 2, 2], ttft_slo_s=1 / 64, tpot_slo_s=[1 / 64, 1 / 64, 1 / 64, 15 / 64]
    )
    prefill, decode = linear(c_p=1 / 192, b_d=1 / 64, t_c=1 / 128), linear(c_p=1 / 64, b_d=1 / 64, t_c=1 / 64)

    def ran(prefill_blocks: int) -> Simulation:
        pools = (
            Deployment(prefill, prefill, prefill_blocks, block_tokens=1, watermark=0.0, role="prefill"),
            Deployment(decode, decode, 4, block_tokens=1, watermark=0.0, role="decode"),
        )
        simulation = Simulation(Scenario(workload, Cluster(pools), scheduler("distserve"), router=router("polyserve")))
        simulation.run()
        return simulation

    simulation = ran(4)
    assert simulation.result().requests["reroutes"].tolist() == [0, 0, 1, 0]
    assert simulation.result().summary["finished"] == 4
    with pytest.raises(DeploymentError, match=r"3 prompt \+ 2 output tokens do not fit the KV cache"):
        ran(3)  # request 2 would wait for ever
