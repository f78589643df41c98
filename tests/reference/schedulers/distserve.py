"""docs/systems/flowprefill.md, "Baselines"."""

from typing import Any

from ..decisions import Limits, Rank
from ..requests import Request
from .base import Scheduler


class DistServe(Scheduler):
    def __init__(
        self,
        max_num_batched_tokens: int = 8192,
        prefill_batch_size: int = 128,
        decode_batch_size: int = 1024,
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prefill_batch_size, self.decode_batch_size = prefill_batch_size, decode_batch_size

    def rank(self, r: Request, now_s: float) -> Rank:
        return (1 if r.decoding else 0, r.arrival_s)

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(
            first_decides=True,
            whole_prompts=True,
            misfit_ends_filling=True,
            max_num_batched_tokens=self.max_num_batched_tokens,
            sequence_budget=self.decode_batch_size if all(r.decoding for r in queue) else self.prefill_batch_size,
        )


class DistServeChunks(Scheduler):
    def __init__(self, max_num_batched_tokens: int = 2048, decode_batch_size: int = 1024, **limits: Any) -> None:
        super().__init__(**limits)
        self.max_num_batched_tokens, self.decode_batch_size = max_num_batched_tokens, decode_batch_size

    def rank(self, r: Request, now_s: float) -> Rank:
        return (0, r.arrival_s) if r.decoding else (1, r.deadline(1))

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(max_num_batched_tokens=self.max_num_batched_tokens, sequence_budget=self.decode_batch_size)


class DistServeChunks8K(DistServeChunks):
    def __init__(self, max_num_batched_tokens: int = 8192, **more: Any) -> None:
        super().__init__(max_num_batched_tokens, **more)
