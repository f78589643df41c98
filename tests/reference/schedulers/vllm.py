"""docs/systems/vllm.md."""

from typing import Any

from ..packer import Limits, Rank
from ..requests import INF, Request
from .base import Scheduler


class VllmFcfs(Scheduler):
    def __init__(self, token_budget: int = 8192, max_sequences: int = 256, **limits: Any) -> None:
        super().__init__(**limits)
        self.token_budget, self.max_sequences = token_budget, max_sequences

    def rank(self, r: Request, now_s: float) -> Rank:
        return (1 if r.decoding else 0, r.arrival_s)

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(
            first_decides=True,
            whole_prompts=True,
            misfit_ends_filling=True,
            token_budget=self.token_budget,
            holder_budget=self.max_sequences,
        )


class VllmV1(Scheduler):
    def __init__(self, policy: str = "fcfs", token_budget: int = 2048, max_sequences: int = 256, **limits: Any) -> None:
        super().__init__(**limits)
        assert policy in ("fcfs", "priority")
        self.policy, self.token_budget, self.max_sequences = policy, token_budget, max_sequences

    def rank(self, r: Request, now_s: float) -> Rank:
        if r.holder:
            return (0, r.admitted)
        if self.policy == "priority":
            return (1, r.priority, r.arrival_s)
        if r.evicted:
            return (1, -r.evicted)
        return (2, r.arrival_s)

    def victim_ranks(self, queue: list[Request]) -> list[Rank]:
        if self.policy == "priority":
            return [(r.priority, r.arrival_s) for r in queue]
        # One that is not a holder yet would be admitted after all who are.
        return [(r.admitted if r.holder else INF,) for r in queue]

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(
            token_budget=self.token_budget,
            holder_budget=self.max_sequences,
            evict_for="holders",
            watermark_blocks=0,
        )
