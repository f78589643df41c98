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
from .snapshots import EngineSnapshot, RouterState
from .transfers import Link


def pool_of(role: str = "both", engines: int = 1, blocks: int = 1000, **more: Any) -> Pool:
    return Pool(engines, 1, blocks, 0.0, SarathiFcfs(512), SECONDS, SECONDS, role, **more)


def way(log: Log, request: int) -> list[tuple]:
    return [(move.kind, move.time_s, move.engine) for move in log.moves if move.request == request]


class OneEach(Router):
    """A router that sends a request to an engine without requests, as far as it knows, else holds it."""

    line: int | None = None

    def route(self, r: Request, taking: list[EngineSnapshot], now_s: float) -> Route:
        empty = [snapshot.index for snapshot in taking if snapshot.requests == 0]
        return Route(empty[0] if empty else None, line=self.line)


class Fixed(Scaler):
    """A scaler that always decides the same."""

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
    # Without an engine that takes it, it is not served; there is no error.
    both_fail = [Incident(0.0, 0, "fail"), Incident(0.0, 1, "fail")]
    log = simulate_cluster(rows, pools, Never(), incidents=both_fail)
    assert log.finish_s == [None] and way(log, 0) == [("held", 0, -1)]


DISAGGREGATED = (pool_of("prefill", 2), pool_of("decode", 2))


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


class Recording(Router):
    def __init__(self) -> None:
        self.seen: list[tuple] = []

    def route(self, r: Request, taking: list[EngineSnapshot], now_s: float) -> Route:
        snapshot = self.snapshots[0]
        self.seen.append(
            (
                now_s, snapshot.version, snapshot.busy_until_s, len(snapshot.finished), snapshot.finished_tokens,
                snapshot.record_tokens,
            )
        )  # fmt: skip
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


def test_of_the_reports_four_are_kept():
    router_state = RouterState([EngineSnapshot(0, "both", 9, SECONDS, free_blocks=9)], signal_delay_s=3)

    def free_at(now_s: float) -> int:
        router_state.apply_signals(now_s)
        return router_state.snapshots[0].free_blocks

    for now_s in range(1, 6):
        router_state.report(0, now_s, now_s, (10 * now_s, 0))
    assert free_at(4) == 9  # that of 1 would be known, but 2 to 5 are kept
    assert free_at(5) == 20 and free_at(7.5) == 40
