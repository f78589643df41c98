"""Holding, tiers, scalers and incidents, worked by hand (set in scenes.py)."""

from typing import Any

import pytest

from .incidents import Incident
from .requests import Request
from .routers import Route, Router
from .scalers import Change, Scaler
from .scenes import SECONDS, row
from .schedulers.sarathi import SarathiFcfs
from .simulator import Log, Pool, StuckError, simulate_cluster
from .snapshots import EngineSnapshot
from .transfers import Link


def pool_of(role: str = "both", engines: int = 1, blocks: int = 1000, **more: Any) -> Pool:
    return Pool(engines, 1, blocks, 0.0, SarathiFcfs(512), SECONDS, SECONDS, role, **more)


def ran(log: Log, engine: int) -> list[tuple]:
    return [(i.start_s, i.end_s, i.batch) for i in log.iterations if i.engine == engine]


def way(log: Log, request: int) -> list[tuple]:
    return [(move.kind, move.time_s, move.engine) for move in log.moves if move.request == request]


class OneEach(Router):
    """Sends a request to an engine that has none, as far as it knows, and holds it if there is none."""

    line: int | None = None

    def route(self, r: Request, taking: list[EngineSnapshot], now_s: float) -> Route:
        empty = [snapshot.index for snapshot in taking if snapshot.requests == 0]
        return Route(empty[0] if empty else None, line=self.line)


class Fixed(Scaler):
    """Says the same whenever it is asked."""

    def __init__(self, interval_s: float, *changes: Change) -> None:
        self.interval_s, self.changes = interval_s, list(changes)
        self.asked_s: list[float] = []

    def decide(self, now_s: float, now: list[Change]) -> list[Change]:
        self.asked_s.append(now_s)
        return self.changes


def test_a_held_request_is_sent_when_there_is_news():
    # Engines 0 (until 5) and 1 (until 3): r2 and r3 are held. r2 goes to 1 at 3, until 5; there and then r3 goes to 0.
    rows = [row(4, 1), row(2, 1), row(1, 1), row(1, 1, 1.0)]
    log = simulate_cluster(rows, [pool_of(engines=2)], OneEach())
    assert way(log, 2) == [("held", 0, -1), ("arrival", 3, 1)]
    assert way(log, 3) == [("held", 1, -1), ("arrival", 5, 0)]
    # With signals of half a second: 3.5 and, r0's end being heard of at 5.5 as well as r2's at 6, 5.5.
    log = simulate_cluster(rows, [pool_of(engines=2)], OneEach(), signal_delay_s=0.5)
    assert way(log, 2)[1] == ("arrival", 3.5, 1) and way(log, 3)[1] == ("arrival", 5.5, 0)


def test_lines_are_asked_in_order_of_tiers_then_best_effort():
    # r1 to r4 are held behind r0; tiers by TPOT: r3, r4 (0.5 s) before r1, r2 (1 s).
    rows = [row(1, 1), *[row(1, 1, 1.0, tpot_slo_s=slo) for slo in (1.0, 1.0, 0.5, 0.5)]]
    log = simulate_cluster(rows, [pool_of(engines=2)], OneEach(), incidents=[Incident(0.5, 1, "fail")])
    assert [move.request for move in log.moves if move.kind == "arrival"] == [0, 3, 4, 1, 2]
    everybody = OneEach()
    everybody.line = 3  # best effort: in order of arrival
    log = simulate_cluster(rows, [pool_of(engines=2)], everybody, incidents=[Incident(0.5, 1, "fail")])
    assert [move.request for move in log.moves if move.kind == "arrival"] == [0, 1, 2, 3, 4]


def test_tiers():
    from .simulation import tiers_of

    requests = [Request(index=i, **row(1, 1, tpot_slo_s=float(slo))) for i, slo in enumerate([5, 3, 3, 9])]
    assert tiers_of(requests) == [3, 5, 9]
    requests = [Request(index=i, **row(1, 1, tpot_slo_s=float(i + 1))) for i in range(10)]
    assert tiers_of(requests) == [1, 2, 3, 4, 6, 7, 8, 10]  # places 0, 1, 2, 3, 5, 6, 7, 9


class Never(Router):
    def route(self, r: Request, taking: list[EngineSnapshot], now_s: float) -> Route:
        return Route(None)


def test_a_run_in_which_nothing_more_can_happen_ends():
    rows, pools = [row(1, 1)], [pool_of(engines=2)]
    with pytest.raises(StuckError):
        simulate_cluster(rows, pools, Never())
    with pytest.raises(StuckError):
        simulate_cluster(rows, pools, Never(), scaler=Fixed(1.0, (None, False), (None, False)))
    # With nobody to take it there is no error: it is not served.
    both_fail = [Incident(0.0, 0, "fail"), Incident(0.0, 1, "fail")]
    log = simulate_cluster(rows, pools, Never(), incidents=both_fail)
    assert log.finish_s == [None] and way(log, 0) == [("held", 0, -1)]


class Least(Router):
    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        return min(snapshots, key=lambda snapshot: (snapshot.requests, snapshot.index))


def test_an_engine_fails_and_returns():
    # r0 (4) and r2 (2) run on engine 0 from 0 to 7, r1 (8) on 1 until 9. At 5 engine 0 fails: both go to 1, where they
    # are computed from 9 on: 1 + 4 + 2. Of r3 (at 6) engine 0 takes notice when it is back, at 6.
    rows = [row(4, 1), row(8, 1), row(2, 1), row(1, 1, 6.0)]
    log = simulate_cluster(rows, [pool_of(engines=2)], Least(), incidents=[
        Incident(5.0, 0, "fail"), Incident(6.0, 0, "return")])  # fmt: skip
    assert way(log, 0) == [("arrival", 0, 0), ("recalled", 5, 0), ("arrival", 5, 1)]
    assert ran(log, 1) == [(0, 9, [(1, 8)]), (9, 16, [(0, 4), (2, 2)])]
    assert ran(log, 0)[1:] == [(6, 8, [(3, 1)])]
    assert [e.failures for e in log.engines] == [1, 0] and log.engines[0].recalled == 2
    assert log.reroutes == [1, 0, 1, 0]
    assert [e.service_s for e in log.engines] == [15, 16]
    assert log.engines[0].busy_s == 7


def test_tokens_out_stay_out():
    # r0: 0-5, 5-7; at 8 (in its second decode) the engine fails. 4 + 2 tokens are prefilled elsewhere: 8 to 15, the
    # third token; 15-17 the fourth.
    log = simulate_cluster([row(4, 4)], [pool_of(engines=2)], incidents=[Incident(8.0, 0, "fail")])
    assert log.emission_s == [[5, 7, 15, 17]] and ran(log, 1) == [(8, 15, [(0, 6)]), (15, 17, [(0, 1)])]
    assert log.engines[0].lost_tokens == 5


def test_one_engine_keeps_its_queue():
    # 0-5, then it decodes from 5; at 6 it fails, at 8 it is back: 5 tokens anew.
    incidents = [Incident(6.0, 0, "fail"), Incident(8.0, 0, "return")]
    log = simulate_cluster([row(4, 2), row(1, 1, 7.0)], [pool_of()], incidents=incidents)
    assert ran(log, 0)[-1] == (8, 15, [(0, 5), (1, 1)]) and log.emission_s == [[5, 15], [15]]
    assert log.engines[0].recalled == 0 and log.engines[0].service_s == 13


def test_a_drained_engine_works_on_and_is_out_of_service_when_it_is_done():
    # r0 on 0 until 5, r1 on 1. From 1 on engine 0 takes nothing: r2 and r3 go to 1. At 5 it is out of service.
    rows = [row(4, 1), row(1, 1), row(1, 1, 2.0), row(1, 1, 3.0)]
    log = simulate_cluster(rows, [pool_of(engines=2)], Least(), incidents=[Incident(1.0, 0, "drain")])
    assert [way(log, r)[0][2] for r in range(4)] == [0, 1, 1, 1]
    assert [e.service_s for e in log.engines] == [5, log.end_s]


DISAGGREGATED = (pool_of("prefill", 2), pool_of("decode", 2))


def test_a_failed_prefill_engine_takes_back_what_has_left_it():
    # 0-3: r0 (2) on engine 0. Its KV takes 4 s to engine 2; at 5 engine 0 fails, and r0 (2 + 1 tokens) is prefilled on
    # engine 1: 5 to 9, its second token. KV (3 tokens) again: 13, on 2 (request 0 of 2 engines).
    log = simulate_cluster([row(2, 3)], [*DISAGGREGATED], link=Link(latency_s=4), incidents=[Incident(5.0, 0, "fail")])
    assert way(log, 0) == [
        ("arrival", 0, 0), ("departed", 3, 0), ("recalled", 5, 0), ("arrival", 5, 1), ("departed", 9, 1),
        ("received", 13, 2),
    ]  # fmt: skip
    assert log.emission_s == [[3, 9, 15]] and log.engines[0].lost_tokens == 2


def test_a_failed_decode_engine_is_sent_nothing_more():
    # As above, but engine 2 fails: the KV is still on engine 0 and goes to 3, 5 to 9.
    log = simulate_cluster([row(2, 3)], [*DISAGGREGATED], link=Link(latency_s=4), incidents=[Incident(5.0, 2, "fail")])
    assert way(log, 0) == [("arrival", 0, 0), ("departed", 3, 0), ("received", 9, 3)]
    assert log.emission_s == [[3, 11, 13]] and log.reroutes == [0]


def test_a_link_that_a_failure_frees_is_used():
    # r0 and r1 come from engines 0 and 1, both at 3, over one link: r0 to 2 from 3 on, r1 to 3 after it, at 7. At 5
    # engine 0 fails: the link is free for r1, 5 to 9.
    rows = [row(2, 2), row(2, 2)]
    log = simulate_cluster(rows, [*DISAGGREGATED], link=Link(latency_s=4, shared=True), incidents=[
        Incident(5.0, 0, "fail")])  # fmt: skip
    assert way(log, 1)[-1] == ("received", 9, 3)


def test_kv_is_held_until_a_decode_engine_takes_it():
    incidents = [Incident(1.0, 2, "fail"), Incident(1.0, 3, "fail"), Incident(20.0, 3, "return")]
    log = simulate_cluster([row(2, 2)], [*DISAGGREGATED], incidents=incidents)
    assert way(log, 0) == [("arrival", 0, 0), ("departed", 3, 0), ("held", 3, -1), ("received", 20, 3)]
    # If its prefill engine fails meanwhile it is taken back from there, and prefilled on 1.
    log = simulate_cluster([row(2, 2)], [*DISAGGREGATED], incidents=[*incidents[:2], Incident(9.0, 0, "fail")])
    assert way(log, 0)[3:] == [("recalled", 9, 0), ("arrival", 9, 1)] and log.emission_s == [[3, 13]]


def test_an_engine_that_goes_from_the_pool_into_a_tier_loses_its_requests():
    # r0 and r2 on engine 0 from 0 to 7 (5 tokens in all), r1 on 1. At 4 the scaler moves 0 into a tier: both go to the
    # router, and by turns to 0 and 0 again: they are computed anew.
    rows = [row(4, 1), row(1, 1), row(1, 1)]
    log = simulate_cluster(rows, [pool_of(engines=2)], scaler=Fixed(4.0, (0, False), (None, False)))
    assert ran(log, 0) == [(0, 6, [(0, 4), (2, 1)]), (4, 10, [(0, 4), (2, 1)])]
    assert [m.kind for m in log.moves if m.request == 0] == ["arrival", "recalled", "arrival"]
    # In service while in a tier: 4 to 10.
    assert [e.service_s for e in log.engines] == [6, 0] and log.end_s == 10
    assert log.engines[0].recalled == 2 and log.engines[0].lost_tokens == 0 and log.engines[0].busy_s == 10


def test_a_scaler_is_asked_while_something_else_is_to_happen():
    scaler = Fixed(4.0, (None, False), (None, False))
    log = simulate_cluster([row(4, 1), row(1, 1, 10.0)], [pool_of(engines=2)], scaler=scaler)
    assert scaler.asked_s == [4, 8, 12] and log.end_s == 12


def test_closing_and_opening():
    # Engine 1 is closed at 1: r1 and r2 go to 0.
    scaler = Fixed(1.0, (None, False), (None, True))
    rows = [row(4, 1), row(1, 1, 2.0), row(1, 1, 3.0)]
    log = simulate_cluster(rows, [pool_of(engines=2)], scaler=scaler)
    assert [way(log, r)[0] for r in range(3)] == [("arrival", 0, 0), ("arrival", 2, 0), ("arrival", 3, 0)]


class Claims(Router):
    """Moves the engine it names into the tier of the request."""

    def route(self, r: Request, taking: list[EngineSnapshot], now_s: float) -> Route:
        return Route(taking[-1].index, tier=r.tier)


def test_a_router_moves_an_engine():
    # r0 waits for nobody: engine 1 (the last) comes into tier 0. r1 comes at 1: it is there already.
    log = simulate_cluster([row(4, 1), row(1, 1, 1.0)], [pool_of(engines=2)], Claims())
    assert [(m.kind, m.time_s, m.request, m.engine) for m in log.moves] == [
        ("moved", 0, -1, 1), ("arrival", 0, 0, 1), ("arrival", 1, 1, 1),
    ]  # fmt: skip


class Recording(Router):
    def __init__(self) -> None:
        self.seen: list[tuple] = []

    def route(self, r: Request, taking: list[EngineSnapshot], now_s: float) -> Route:
        snapshot = self.snapshots[0]
        self.seen.append(
            (
                now_s,
                snapshot.version,
                snapshot.busy_until_s,
                len(snapshot.finished),
                snapshot.finished_tokens,
                snapshot.record_tokens,
            )
        )
        return Route(0)


def test_what_a_router_knows():
    # r0 (4, 3 tokens): 0-5, 5-7, 7-9. At 1: one sent, busy until 5. At 6: the first token heard of, busy until 7. At 9
    # r0 has finished: one more; free since 9.
    router = Recording()
    rows = [row(4, 3), row(1, 1, 1.0), row(1, 1, 6.0), row(1, 1, 30.0)]
    simulate_cluster(rows, [pool_of(engines=2)], router)
    # 5-7 are r0's decode and r1's prompt: 1 + 1 + 1 s, 5-8; then 8-11 r0 and r2.
    assert router.seen[:3] == [(0, 0, 0, 0, 0, 0), (1, 1, 5, 0, 0, 4), (6, 3, 8, 0, 0, 1)]
    # By 30: 3 sendings, 3 first and 3 last tokens.
    assert router.seen[3] == (30, 9, 11, 3, 5, 0)
