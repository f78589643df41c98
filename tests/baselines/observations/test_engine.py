"""An engine as a controller sees it, by hand: a batch takes 1 s and 1 s a token, a KV block holds one token."""

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from tests.baselines.observations.seeing import at_batch
from tests.simulator.forming import decode, linear, state, waiting_for_a_batch

pytestmark = pytest.mark.nojit

EDF = scheduler("edf")


def seen(*rows: dict, **setting) -> dict[str, float]:
    return at_batch(waiting_for_a_batch(EDF, *rows, **setting), slots=4)[0]


def test_an_engine_by_hand():
    # At 10 s:             exec  due in  span  gain of the next token
    # a prefill waits         4       6    16     8
    # one is begun            2     -10    10     6    late, and hopeless
    # a decode                1      86    40     1
    # a decode                1       6     8     1
    got = seen(
        state(4, ttft_slo_s=16, tpot_slo_s=50, first_token_gain=8.0),
        state(5, computed=3, ttft_slo_s=10, tpot_slo_s=50, first_token_gain=6.0, arrival_s=-10),
        decode(ttft_slo_s=91, tpot_slo_s=5, decode_token_gain=1.0),
        decode(ttft_slo_s=15, tpot_slo_s=1, decode_token_gain=1.0),
        now_s=10.0,
        blocks=18,
    )
    assert got["engine.queued"] == pytest.approx((2 + 1 / 4) / 12)  # log2(5), straight between 4 and 8
    assert got["engine.decoding"] == 0.5 and got["engine.waiting"] == 0.25 and got["engine.again"] == 0
    assert got["engine.late"] == 0.25 and got["engine.hopeless"] == 0.25
    # The tick is the smallest TPOT SLO, 1 s.
    assert got["engine.constant"] == 0.5
    assert got["engine.decode_work"] == 0.75  # 1 + 2 s
    assert got["engine.prefill_work"] == pytest.approx(6 / 19)  # a mean span of 13 s
    assert got["engine.longest_prefill"] == pytest.approx(4 / 5)
    assert got["engine.least_slack"] == pytest.approx(6 / 7)
    assert got["engine.least_prefill_slack"] == -0.5  # -10 of 10
    assert got["engine.mean_prefill_slack"] == pytest.approx((6 / 22 - 10 / 20) / 2)
    assert got["engine.least_decode_slack"] == pytest.approx(6 / 14)
    assert got["engine.mean_decode_slack"] == pytest.approx((86 / 126 + 6 / 14) / 2)
    # Due within 9 s, all work and a constant part: the first prefill and the second decode, 5 of 8 s and 9 of 16.
    assert got["engine.urgent_work"] == 5 / 8 and got["engine.urgent_gain"] == 9 / 16
    assert got["engine.hopeless_gain"] == 6 / 16
    assert got["engine.urgent_density"] == pytest.approx((9 / 5) / (9 / 5 + 16 / 8))
    assert got["engine.mean_gain"] == 0.5
    assert got["engine.free_kv"] == pytest.approx((18 - 3 - 3 - 3) / 18)
    assert got["engine.wanted_kv"] == pytest.approx(4 / 22)
    assert got["engine.prefill_tokens"] == pytest.approx((2 + 3 / 4) / 20)  # log2(7)
    assert got["engine.decode_context"] == pytest.approx(2 / 20)
    assert got["engine.estimate_scale"] == 0.5


def test_hopeless_is_what_could_not_be_out_strictly_before_its_deadline():
    needed = state(5, ttft_slo_s=6)  # 5 s and the constant part
    assert seen(needed)["engine.hopeless"] == 1 and seen(needed)["engine.least_slack"] == 1
    more = state(5, ttft_slo_s=np.nextafter(6, 7))
    assert seen(more)["engine.hopeless"] == 0 and seen(more)["engine.late"] == 0
    assert seen(more, now_s=float(np.nextafter(6, 7)))["engine.late"] == 1


def test_a_request_that_was_evicted_is_there_again():
    got = seen(state(5, emitted=3, evicted=1), decode())
    assert got["engine.again"] == 0.5 and got["engine.waiting"] == 0.5
    assert got["engine.prefill_tokens"] == pytest.approx((3 + 1 / 8) / 20)  # 5 and 3 to be computed again: log2(9)


def test_without_interactive_requests_the_tick_is_the_smallest_ttlt():
    got = seen(state(2, ttlt_slo_s=3.0), state(2, ttlt_slo_s=40.0))
    assert got["engine.constant"] == 0.25 and got["engine.longest_prefill"] == pytest.approx(2 / 5)


def test_only_prefills_and_only_decodes():
    got = seen(state(5))
    assert got["engine.decode_work"] == got["engine.mean_decode_slack"] == got["engine.decode_context"] == 0
    assert got["engine.least_decode_slack"] == 1
    got = seen(decode())
    assert got["engine.prefill_work"] == got["engine.mean_prefill_slack"] == got["engine.prefill_tokens"] == 0
    assert got["engine.least_prefill_slack"] == 1


def test_work_that_takes_no_time():
    got = seen(state(5), decode(), model=linear(t_c=0.0))
    assert got["engine.prefill_work"] == got["engine.urgent_work"] == got["engine.constant"] == 0
