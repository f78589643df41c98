"""Clusters, worked by hand: each case with its working (scenes.py has what they are set in)."""

import pytest

from .latency import Linear
from .requests import INF, Request
from .routers import GoRouting, MinCycleTime, MinLoad, MinTokens, Router, smallest
from .scenes import SECONDS, row
from .schedulers.sarathi import SarathiFcfs
from .simulator import Log, Pool, simulate_cluster
from .snapshots import EngineSnapshot, RouterState
from .transfers import Link


def pool(role: str = "both", engines: int = 1, blocks: int = 1000, watermark: float = 0.0) -> Pool:
    return Pool(engines, 1, blocks, watermark, SarathiFcfs(512), SECONDS, SECONDS, role)


def ran(log: Log, engine: int) -> list[tuple]:
    return [(i.start_s, i.end_s, i.batch) for i in log.iterations if i.engine == engine]


def way(log: Log, request: int) -> list[tuple]:
    return [(move.kind, move.time_s, move.engine) for move in log.moves if move.request == request]


def test_from_prefill_to_decode():
    # 0-7: both prompts (4 + 2). r1 has all its tokens; r0 departs, its 4 tokens take 1 + 4 x 2 / 4 = 3 s, then it
    # decodes: 10-12 and 12-14. r2 is computed meanwhile (9-11).
    rows = [row(4, 3), row(2, 1), row(1, 1, 9.0)]
    log = simulate_cluster(rows, [pool("prefill"), pool("decode")], link=Link(2, 4, 1))
    assert way(log, 0) == [("arrival", 0, 0), ("departed", 7, 0), ("received", 10, 1)]
    assert way(log, 1) == [("arrival", 0, 0)]
    assert ran(log, 0) == [(0, 7, [(0, 4), (1, 2)]), (9, 11, [(2, 1)])]
    assert ran(log, 1) == [(10, 12, [(0, 1)]), (12, 14, [(0, 1)])]
    # Its 4 blocks are taken on both engines until 10: 1 more in the batch that starts at 9.
    assert [i.free_blocks for i in log.iterations if i.engine == 0] == [994, 995]
    assert log.emission_s == [[7, 12, 14], [7], [11]]


def test_a_transfer_waits_for_memory_and_an_engine_for_a_transfer():
    # 0-9: r0 and r1 (3 + 5) on 9 blocks. At 9 both depart to a decode engine of 7: r0's KV is there at once, r1's 5
    # do not fit beside its 3. r0 decodes until 17, with 4, 5, 6 blocks at 11, 13, 15. At 17 r1 is sent: 17-19. r2 (6)
    # finds 9 - 5 blocks: 4 tokens, 9-14. Then it needs 6 and only r1's KV is in its way: it waits, until 17.
    rows = [row(3, 5), row(5, 2), row(6, 1, 1.0)]
    log = simulate_cluster(rows, [pool("prefill", blocks=9), pool("decode", blocks=7)])
    assert ran(log, 0) == [(0, 9, [(0, 3), (1, 5)]), (9, 14, [(2, 4)]), (17, 20, [(2, 2)])]
    decoded = [(9, 11), (11, 13), (13, 15), (15, 17)]
    assert ran(log, 1) == [(start, end, [(0, 1)]) for start, end in decoded] + [(17, 19, [(1, 1)])]
    assert way(log, 1) == [("arrival", 0, 0), ("departed", 9, 0), ("received", 17, 1)]
    assert log.evictions == 0


def test_the_watermark_holds_for_transfers():
    # r0 and r1 (2 + 2): 0-5. On a decode engine of 8 blocks, 4 of them watermark, r1 needs 2 + 4 beside r0's 2, and has
    # exactly that: both arrive at 5. With 7 blocks (3 of watermark, 3.5 rounded down) too: 2 + 3 of 5. With 6 and a
    # watermark of 0.6 (3 blocks) it has 4 of 5 and waits until r0 is out, at 7.
    for blocks, watermark, arrival_s in ((8, 0.5, 5), (7, 0.5, 5), (6, 0.6, 7)):
        pools = [pool("prefill"), pool("decode", blocks=blocks, watermark=watermark)]
        log = simulate_cluster([row(2, 2), row(2, 2)], pools)
        assert way(log, 1)[-1] == ("received", arrival_s, 1), blocks


def test_own_links_and_a_shared_one():
    # 0-5: three prompts (2 + 1 + 1), to decode engines 1, 2 and (request 2 of 2 engines) 1 again; 3 s each. A shared
    # link sends r0 first, as it joins first; then both lines have one whose first token came at 5: that to the lower
    # engine.
    def received(shared: bool) -> list[tuple]:
        rows = [row(2, 2), row(1, 2), row(1, 2)]
        log = simulate_cluster(rows, [pool("prefill"), pool("decode", 2)], link=Link(latency_s=3, shared=shared))
        return [(move.request, move.engine, move.time_s) for move in log.moves if move.kind == "received"]

    assert received(shared=False) == [(0, 1, 8), (1, 2, 8), (2, 1, 11)]
    assert received(shared=True) == [(0, 1, 8), (2, 1, 11), (1, 2, 14)]


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
