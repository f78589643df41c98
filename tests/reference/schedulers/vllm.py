"""docs/systems/vllm.md."""

from typing import Any

from ..decisions import Limits, Rank
from ..requests import INF, Request
from .base import Scheduler


class VllmFcfs(Scheduler):
    def __init__(self, max_num_batched_tokens: int = 8192, max_num_seqs: int = 256, **limits: Any) -> None:
        super().__init__(**limits)
        self.max_num_batched_tokens, self.max_num_seqs = max_num_batched_tokens, max_num_seqs

    def rank(self, r: Request, now_s: float) -> Rank:
        return (1 if r.decoding else 0, r.arrival_s)

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(
            first_decides=True, whole_prompts=True, misfit_ends_filling=True,
            max_num_batched_tokens=self.max_num_batched_tokens, max_num_seqs=self.max_num_seqs,
        )  # fmt: skip


class VllmV1(Scheduler):
    def __init__(
        self,
        policy: str = "fcfs",
        max_num_batched_tokens: int = 2048,
        max_num_seqs: int = 256,
        long_prefill_token_threshold: int = 0,
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        assert policy in ("fcfs", "priority")
        self.threshold = long_prefill_token_threshold
        self.policy, self.max_num_batched_tokens, self.max_num_seqs = policy, max_num_batched_tokens, max_num_seqs

    def rank(self, r: Request, now_s: float) -> Rank:
        if r.running:
            return (0, r.admitted)
        if self.policy == "priority":
            return (1, r.priority, r.arrival_s)
        if r.evicted:
            return (1, -r.evicted)
        return (2, r.arrival_s)

    def victim_ranks(self, queue: list[Request]) -> list[Rank]:
        if self.policy == "priority":
            return [(r.priority, r.arrival_s) for r in queue]
        # One that does not run yet would be admitted after all that do.
        return [(r.admitted if r.running else INF,) for r in queue]

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            chunk_tokens=self.threshold if self.threshold and len(queue) > 1 else INF,
            evict_for="running",
            watermark_blocks=0,
        )
