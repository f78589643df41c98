"""Clusters, worked by hand: each case with its working (scenes.py has what they are set in)."""

import pytest

from .latency import Linear
from .requests import INF, Request
from .routers import GoRouting, MinCycleTime, MinLoad, MinTokens, Router, smallest
from .scenes import SECONDS, row
from .schedulers.sarathi import SarathiFcfs
from .simulator import Pool, simulate_cluster
from .snapshots import EngineSnapshot, RouterState


def pool(role: str = "both", engines: int = 1, blocks: int = 1000, watermark: float = 0.0) -> Pool:
    return Pool(engines, 1, blocks, watermark, SarathiFcfs(512), SECONDS, SECONDS, role)


@pytest.mark.parametrize(("delay_s", "engine"), [(0, 0), (0.5, 0), (1, 1), (4, 1)])
def test_signals_take_their_time(delay_s, engine):
    # r0 to engine 0, r1 to engine 1, r2 (one request each) to engine 0, which was sent one longest ago. Engine 0 has
    # done with r0 at 5 and r2 at 8, engine 1 is busy until 22. At 8.5 r3 finds 0 and 1 requests: engine 0. As long as
    # the end of r2 is not heard of it finds 1 and 1 (or 2 and 1): engine 1, which was sent one longest ago (or has
    # fewer).
    rows = [row(4, 1), row(20, 1, 1.0), row(2, 1, 2.0), row(1, 1, 8.5)]
    log = simulate_cluster(rows, [pool(engines=2)], MinLoad(), signal_delay_s=delay_s)
    assert [move.engine for move in log.moves] == [0, 1, 0, engine]


def test_of_the_reports_four_are_kept():
    router_state = RouterState([EngineSnapshot(0, "both", 9, SECONDS, free_blocks=9)], signal_delay_s=3)

    def free_at(now_s: float) -> int:
        router_state.apply_signals(now_s)
        return router_state.snapshots[0].free_blocks

    for now_s in range(1, 6):
        router_state.report(0, now_s, now_s, (10 * now_s, 0))
    assert free_at(4) == 9  # that of 1 would be known, but 2 to 5 are kept
    assert free_at(5) == 20 and free_at(7.5) == 40


def snapshot(index: int = 0, role: str = "both", record: tuple = (), decodes: int = 0, **more) -> EngineSnapshot:
    fit = more.pop("fit", SECONDS)
    return EngineSnapshot(index, role, 100, fit, 100, record=list(record), decoding=[None] * decodes, **more)


def request(prompt: int, **more) -> Request:
    return Request(index=more.pop("index", 0), **row(prompt, 10, **more))


def test_ties():
    never, early, late = snapshot(2), snapshot(1, sent=3), snapshot(0, sent=5)
    assert smallest([late, early, never], lambda v: 1) is never
    assert smallest([late, early], lambda v: 1) is early
    assert smallest([late, snapshot(3)], lambda v: v.index) is late


def test_tokens_and_cycle_times():
    long, short = snapshot(0, record=(request(9),)), snapshot(1, record=(request(3),), decodes=2, decode_tokens=5)
    assert MinTokens().choose(request(1), [long, short], 0) is short  # 9, 3 + 5
    # 1 + min(9 + 1, 6) = 7; 1 + 2 x (1 + 0.5 x 2.5) + min(3 + 1, 6 - 2) = 9.5. Budget 2: 1 + 2; 1 + 4.5 and no prefill.
    fit = Linear(0, 0, 1, 0.5, 1, 1)
    long.fit = short.fit = fit
    assert [MinCycleTime(6).cycle_s(request(1), v) for v in (long, short)] == [7, 9.5]
    assert [MinCycleTime(2).cycle_s(request(1), v) for v in (long, short)] == [3, 5.5]


def gorouting(**settings) -> GoRouting:
    router: Router = GoRouting(eta=0.25, **settings)
    router.prepare([], [])
    return router


def test_gorouting_estimates():
    # At 2 a queue record of 4 tokens, due at 12, changed last at 1.5, 2 decodes of 3 tokens each; r has 2 tokens.
    # Budget: min(10, TPOT SLOs 6 and 8) = 6. Once: 6 / (6 - 1) x (4 + 2) + 2 x 1 - 0.5. Recurring: 6 / (6 - 1 - 2) x
    # 6 - 0.5.
    q, r = request(4, ttft_slo_s=12.0, tpot_slo_s=6.0), request(2, tpot_slo_s=8.0)
    here = snapshot(record=(q,), decodes=2, decode_tokens=6, changed_s=1.5)
    assert gorouting().exec_s(here, [q, r], r, 2) == pytest.approx(7.2 + 2 - 0.5)
    assert gorouting(decodes="recurring").exec_s(here, [q, r], r, 2) == 12 - 0.5
    # Later the smallest remain decides, until nothing is left of the budget: 11 - t = 1 = t_c at 11.
    assert gorouting().exec_s(here, [q], r, 10) == max(0, 2 / (2 - 1) * 4 + 2 - 8.5)
    assert gorouting().exec_s(here, [q], r, 11) == INF
    # A prefill engine: (4 + 1) + (2 + 1) - 0.5, and each has its own finish.
    there = snapshot(role="prefill", record=(q,), changed_s=1.5)
    assert gorouting().exec_s(there, [q, r], r, 2) == 7.5
    hurried = request(2, ttft_slo_s=4.75)  # due at 4.75: first in order of deadlines it ends at 2 + 2.5, and q at 9.5
    assert gorouting().gain(there, [q, hurried], hurried, 2) == 2
    assert gorouting(local_order="arrival").gain(there, [q, hurried], hurried, 2) == 1  # q ends at 6.5, it at 9.5
    # All are done at 9.5: it, due at 4.75, is urgent, and q, due at 12, is not. Due at 9 both are, and the denser is
    # first: of weight 1, over 2 tokens not 4, it ends at 4.5, the other at 9.5, late. At weight 3 that ends at 6.5.
    assert gorouting(local_order="slide-batching").gain(there, [q, hurried], hurried, 2) == 2
    for weight in (1.0, 3.0):
        both = [request(4, ttft_slo_s=9.0), request(2, ttft_slo_s=9.0)]
        both[0].first_token_gain = weight
        assert gorouting(local_order="slide-batching").gain(there, both, both[1], 2) == weight
