"""docs/systems/fastserve.md."""

from dataclasses import dataclass
from typing import Any

from ..decisions import Decision, Limits, Rank
from ..engines import Engine
from ..latency import Latency
from ..requests import Request
from .base import Scheduler

DEEPEST = 62


@dataclass
class Job:
    level: int
    entered_s: float
    waiting_since_s: float
    progress: int
    used_s: float = 0.0


class FastserveMlfq(Scheduler):
    def __init__(
        self,
        quantum_s: float = 0.01,
        promote_after_s: float = 3.0,
        max_num_batched_tokens: int = 8192,
        batch_size: int = 256,
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        self.quantum_s, self.promote_after_s = quantum_s, promote_after_s
        self.max_num_batched_tokens, self.batch_size = max_num_batched_tokens, batch_size

    def prepare(self, requests: list[Request], estimator: Latency) -> None:
        super().prepare(requests, estimator)
        self.jobs: dict[int, Job] = {}  # by request
        self.busy_then_s: dict[int, float] = {}  # by engine

    def forget(self, r: Request) -> None:
        self.jobs.pop(r.index, None)

    def quantum_of(self, level: int) -> float:
        return self.quantum_s * 2.0**level

    def first_level(self, r: Request) -> int:
        prefill_s = self.estimator.batch([r.shape(r.left)])
        fitting = [level for level in range(DEEPEST) if prefill_s <= self.quantum_of(level)]
        return fitting[0] if fitting else DEEPEST

    def decide(self, engine: Engine, now_s: float) -> Decision:
        ran_s = engine.busy_s - self.busy_then_s.get(engine.index, 0.0)
        for r in engine.queue:
            if r.index in self.jobs:
                self.update(self.jobs[r.index], r, ran_s, now_s)
            else:
                self.jobs[r.index] = Job(self.first_level(r), r.arrival_s, r.arrival_s, r.cached + r.emitted)
        self.busy_then_s[engine.index] = engine.busy_s
        return super().decide(engine, now_s)

    def update(self, job: Job, r: Request, ran_s: float, now_s: float) -> None:
        if r.cached + r.emitted > job.progress:
            job.used_s += ran_s
            job.waiting_since_s = now_s
        job.progress = r.cached + r.emitted
        if job.used_s >= self.quantum_of(job.level):
            job.level, job.used_s, job.entered_s = min(job.level + 1, DEEPEST), 0.0, now_s
        elif job.level > 0 and now_s - job.waiting_since_s >= self.promote_after_s:
            job.level, job.used_s, job.entered_s = 0, 0.0, now_s

    def rank(self, r: Request, now_s: float) -> Rank:
        return (self.jobs[r.index].level, self.jobs[r.index].entered_s)

    def keep_tokens(self, queue: list[Request]) -> list[int]:
        return [r.context for r in queue]  # all that may have been computed

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(
            whole_prompts=True,
            max_num_batched_tokens=self.max_num_batched_tokens,
            sequence_budget=self.batch_size,
            evict_for="all" if self.engine.host.blocks > 0 else "decodes",
        )
