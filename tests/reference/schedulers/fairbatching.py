"""docs/systems/fairbatching.md."""

from typing import Any

from ..decisions import Limits, Rank
from ..latency import Latency
from ..requests import Request
from .base import Scheduler


class FairBatching(Scheduler):
    def __init__(self, near: float = 2.0, eta: float | None = None, **limits: Any) -> None:
        super().__init__(**limits)
        self.near, self.eta = near, eta  # eta, s; None: 0.9 x the smallest TPOT SLO of the workload

    def prepare(self, requests: list[Request], estimator: Latency) -> None:
        super().prepare(requests, estimator)
        self.floor_s = 0.9 * min(r.tpot_slo_s for r in requests) if self.eta is None else self.eta

    def t_budget(self, queue: list[Request], now_s: float) -> float:
        t_c = self.estimator.batch([])
        slacks = [r.remain(now_s) for r in queue if r.remain(now_s) >= self.exec(r) + t_c]
        return max(min(slacks), self.floor_s) if slacks else self.floor_s

    def ranks(self, queue: list[Request], now_s: float) -> list[Rank]:
        near_s = self.near * self.t_budget(queue, now_s)

        def tier(r: Request) -> int:
            if not r.decoding:
                return 1
            return 0 if r.remain(now_s) < near_s or r.remain(now_s) < 0 else 2

        return [(tier(r), r.deadline(r.emitted + 1)) for r in queue]

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(time_budget_s=self.t_budget(queue, now_s))
