"""Expected gain: docs/systems/expected_gain.md."""

import math
from typing import Any

from ..decisions import LEFT_OUT, Decision, Limits, Rank
from ..engines import Engine
from ..packer import largest
from ..requests import INF, Request
from .proserve import SlideBatching


class ExpectedGain(SlideBatching):
    """Expected gain, with the time budget and the urgency of SlideBatching."""

    def __init__(
        self,
        gamma: float = 2.0,
        output_tokens: float = 200.0,
        deadlines: str = "early-first-token",
        most_late: float = 0.75,
        hopeless: str = "last",  # leave-out
        reserve: float = 0.05,
        **options: Any,
    ) -> None:
        super().__init__(gamma=gamma, deadlines=deadlines, **options)
        self.output_tokens, self.leave_out = output_tokens, hopeless == "leave-out"
        self.most_late, self.reserve = most_late, reserve

    def t_budget(self, queue: list[Request], now_s: float) -> float:
        left_s = min((self.remain(r, now_s) for r in queue), default=0.0)
        return max((1 - self.reserve) * left_s, self.floor_s)

    def exec(self, r: Request) -> float:
        """Return EXEC in one batch, or in chunks of batches of eta if they take less."""
        whole_s, chunk = super().exec(r), self.chunk
        if chunk == 0 or r.left <= chunk:
            return whole_s
        first_s = self.estimator.batch([(chunk, r.cached, False)])
        last_s = self.estimator.batch([(chunk, r.cached + r.left - chunk, False)])
        return min(whole_s, r.left / chunk * (first_s + last_s) / 2 - self.t_c)

    def work(self, requests: list[Request]) -> float:
        return self.estimator.batch([r.shape(r.left) for r in requests]) - self.t_c

    def loads(self, queue: list[Request], now_s: float, t_budget: float) -> list[float]:
        share = t_budget / (t_budget - self.t_c) if t_budget < INF else 1.0
        return [share * self.work(queue)] * len(queue)

    def in_time(self, r: Request, slack_s: float, pace_s: float) -> float:
        """Return the tokens expected in time."""
        group = self.engine.by_application[r.application]
        left = group.mean_output_tokens if group.outputs else self.output_tokens
        interval_s = r.tpot_slo_s if r.interactive else 0.0
        gained_s = interval_s - pace_s
        if slack_s > 0:
            return left if gained_s >= 0 else min(left, math.ceil(slack_s / -gained_s))
        if gained_s <= 0 or -slack_s >= self.most_late * (left * gained_s):
            return 0.0
        caught_up = left - math.floor(-slack_s / gained_s) - 1
        return caught_up if caught_up > 1e-6 else 0.0

    def gain(self, r: Request, now_s: float, pace_s: float) -> float:
        slack_s = self.remain(r, now_s) - self.exec(r) - self.t_c
        first = r.weight_of(1) if r.emitted == 0 and slack_s > 0 else 0.0
        return r.weight_of(2) * self.in_time(r, slack_s, pace_s) + first

    def pace_s(self, queue: list[Request], now_s: float) -> float:
        sure = [r for r in queue if self.gain(r, now_s, self.floor_s) > 0]
        return min(self.floor_s, self.t_c + self.work(sure))

    def ranks(self, queue: list[Request], now_s: float) -> list[Rank]:
        pace_s, worthy = self.pace_s(queue, now_s), self.worthy(queue, now_s)
        urgent = self.urgent(worthy, now_s, self.t_budget(worthy, now_s))
        hurried = {r.index for r, is_urgent in zip(worthy, urgent, strict=True) if is_urgent}
        there = {r.index for r in worthy}
        others = LEFT_OUT if hurried or (self.leave_out and worthy) else 2
        ranks: list[Rank] = []
        for r in queue:
            if r.index in hurried:
                ranks.append((0, -self.gain(r, now_s, pace_s) / max(self.exec(r), 1e-9)))
            elif r.index in there:
                ranks.append((1, self.remain(r, now_s)))
            else:
                ranks.append((others, r.left))
        return ranks

    def worthy(self, queue: list[Request], now_s: float) -> list[Request]:
        pace_s = self.pace_s(queue, now_s)
        return [r for r in queue if self.gain(r, now_s, pace_s) > 0]

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        with_hopeless = any(tier == 2 for tier, _ in self.ranks(queue, now_s))
        budget_s = self.floor_s if with_hopeless else self.t_budget(self.worthy(queue, now_s), now_s)
        return Limits(time_budget_s=budget_s, evict_for="all", step_tokens=self.step_tokens)

    def decide(self, engine: Engine, now_s: float) -> Decision:
        longest = max(r.left for r in engine.queue)
        self.chunk = largest(longest, lambda c: self.estimator.batch([(c, 0, False)]) <= self.floor_s)
        decision = super().decide(engine, now_s)

        def victim_ranks() -> list[Rank]:
            """Rank victims when memory is first short; a request already admitted to this batch holds some."""
            pairs = zip(engine.queue, decision.ranks, strict=True)
            return [((2 if rank[0] >= 2 else 0) + (0 if r.running else 1), rank[1]) for r, rank in pairs]

        decision.victim_ranks = victim_ranks
        return decision
