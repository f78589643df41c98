"""docs/systems/flowprefill.md."""

import dataclasses
from typing import Any

from ..decisions import LEFT_OUT, Decision, Limits, Rank
from ..engines import Engine
from ..latency import Latency
from ..requests import INF, Request
from .base import Scheduler

NO_ROOM = 3


@dataclasses.dataclass
class DecodeIteration:
    """The last decode iteration that was decided."""

    decided_s: float
    end_s: float


class FlowPrefill(Scheduler):
    def __init__(
        self,
        priority: str = "s-edf",
        late_order: str = "latest-first",
        batch_token_budget: int = 4096,
        margin: float = 0.0,
        longest_batched_tokens: int = 2**20,
        misfit: str = "pass-over",
        boundary: str = "operator",
        chunk_tokens: int = 0,
        tbt_share: float = 0.9,
        least_slice_s: float = 0.005,
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        self.priority, self.late_by_deadline = priority, late_order == "edf"
        self.budget, self.margin, self.longest = batch_token_budget, margin, longest_batched_tokens
        self.stop, self.chunk_tokens = misfit == "stop", chunk_tokens
        self.preemptible = {"operator": "operators", "layer": "layers", "none": None}[boundary]
        self.tbt_share, self.least_slice_s = tbt_share, least_slice_s

    def prepare(self, requests: list[Request], estimator: Latency) -> None:
        super().prepare(requests, estimator)
        self.last_decodes: dict[int, DecodeIteration] = {}  # by engine

    def decide(self, engine: Engine, now_s: float) -> Decision:
        ranks = [self.rank_at(engine, r, now_s) for r in engine.queue]
        limits = Limits(preemptible=self.preemptible, first_decides=True)
        if self.chunk_tokens > 0:
            limits.chunk_tokens = self.chunk_tokens
        else:
            limits.whole_prompts = True
        decision = Decision(ranks, dataclasses.replace(limits, **self.overrides))
        decodes = [r for r in engine.queue if self.decodes(r)]
        if decodes:
            self.take_turns(decision, decodes, engine, now_s)
        first = decision.first_of(engine.queue)
        if engine.work is None and self.waits(first) and self.room(engine, first):
            batch = self.batch_of(first, decision, engine, now_s)
            for place, r in enumerate(engine.queue):
                if self.waits(r) and r not in batch:
                    decision.ranks[place] = (LEFT_OUT, decision.ranks[place][1])
        return decision

    def decodes(self, r: Request) -> bool:
        return r.task is None and r.decoding

    def waits(self, r: Request) -> bool:
        return r.task is None and not r.decoding

    def prefill_s(self, tokens: int, cached: int) -> float:
        return self.estimator.batch([(tokens, cached, False)])

    def rank_at(self, engine: Engine, r: Request, now_s: float) -> Rank:
        if self.decodes(r):
            return (2, r.arrival_s)
        if r.task is None:
            return self.by_deadline(r, self.prefill_s(r.left, r.cached), now_s, 0 if self.room(engine, r) else NO_ROOM)
        ran_s = r.task.executed_s + (now_s - r.task.start_s if r.task is engine.work else 0.0)
        return self.by_deadline(r.task.leader, max(0.0, r.task.estimate_s - ran_s), now_s, 0)

    def by_deadline(self, r: Request, left_s: float, now_s: float, no_room: int) -> Rank:
        slack_s = {"s-edf": r.remain(now_s) - left_s, "d-edf": r.remain(now_s), "edf": INF}[self.priority]
        deadline_s = r.deadline(r.emitted + 1)
        if slack_s > 0:
            return (no_room, deadline_s)
        return (no_room + 1, deadline_s if self.late_by_deadline else -deadline_s)

    def room(self, engine: Engine, r: Request) -> bool:
        if r.running:
            chunk = min(r.left, self.chunk_tokens) if self.chunk_tokens > 0 else r.left
            return engine.blocks_for(r.computed + chunk) - r.blocks <= engine.free_blocks
        watermark = engine.watermark_blocks if engine.all_running > 0 else 0
        return engine.blocks_for(r.context) + watermark <= engine.free_blocks

    def batch_of(self, head: Request, decision: Decision, engine: Engine, now_s: float) -> list[Request]:
        """Form a batch by Algorithm 1."""
        batch, tokens, cached = [head], head.left, head.cached
        time_s = head.remain(now_s) - self.margin * head.ttft_slo_s
        if tokens > self.longest or tokens + 1 >= self.budget or self.prefill_s(tokens, cached) >= time_s:
            return batch
        by_rank = sorted(zip(decision.ranks, engine.queue, strict=True), key=lambda pair: pair[0])
        for rank, r in by_rank:
            if r is head or not self.waits(r) or rank[0] >= NO_ROOM or r.left > self.longest:
                continue
            if tokens + r.left < self.budget and self.prefill_s(tokens + r.left, cached + r.cached) < time_s:
                batch.append(r)
                tokens, cached = tokens + r.left, cached + r.cached
            elif self.stop:
                break
        return batch

    def take_turns(self, decision: Decision, decodes: list[Request], engine: Engine, now_s: float) -> None:
        decode_s = self.estimator.batch([r.shape(1) for r in decodes])
        last = self.last_decodes.get(engine.index)
        tpot_s = min(r.tpot_slo_s for r in decodes)
        next_s = -INF
        if last is not None and last.decided_s != now_s:
            next_s = last.end_s + max(self.least_slice_s, self.tbt_share * tpot_s - decode_s)
        if now_s >= next_s:
            for place, r in enumerate(engine.queue):
                if r in decodes:
                    decision.ranks[place] = (-1, r.arrival_s)
        else:
            decision.limits.slice_s = max(self.least_slice_s, next_s - now_s)
        if engine.work is None and decision.first_of(engine.queue) in decodes:
            self.last_decodes[engine.index] = DecodeIteration(now_s, now_s + decode_s)
