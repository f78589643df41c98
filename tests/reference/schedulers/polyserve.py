"""docs/systems/polyserve.md, "scheduler polyserve"."""

from typing import Any

from ..decisions import Limits, Rank
from ..requests import INF, Request
from .base import Scheduler


class PolyServe(Scheduler):
    def __init__(self, max_num_batched_tokens: int = 1024, margin: float = 0.0, **limits: Any) -> None:
        super().__init__(**limits)
        self.budget, self.margin = max_num_batched_tokens, margin

    def rank(self, r: Request, now_s: float) -> Rank:
        if r.decoding:
            return (0, r.arrival_s)
        due_s, q = r.deadline(r.emitted + 1), min(r.left, self.budget)
        batch_s = self.estimator.batch([(q, r.cached + (r.left - q) / 2, False)])
        return (1 if now_s + max(1.0, r.left / self.budget) * batch_s < due_s else 2, due_s)

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        decodes = [r for r in queue if r.decoding]
        prefills = [r for r in queue if not r.decoding]
        budget = max(self.budget, len(decodes) * self.engine.decode_tokens)
        if self.engine.role == "prefill" and prefills:
            left = min(prefills, key=lambda r: self.rank(r, now_s)).left
            if left < 2 * self.budget:
                budget = max(self.budget, left)
        on_time = [r.tpot_slo_s for r in decodes if now_s < r.deadline(r.emitted + 1)]
        return Limits(
            max_num_batched_tokens=budget, time_budget_s=(1 - self.margin) * min(on_time, default=INF),
            untimed_decodes=True, misfit_ends_filling=True,
        )  # fmt: skip
