"""docs/systems/llumnix.md."""

import math
from typing import Any

from ..decisions import Limits, Rank
from ..requests import Request
from .base import Scheduler


class LlumnixReserve(Scheduler):
    def __init__(
        self, max_num_batched_tokens: int = 8192, max_num_seqs: int = 256, reserve: float = 0.1, **limits: Any
    ) -> None:
        super().__init__(**limits)
        self.max_num_batched_tokens, self.max_num_seqs, self.reserve = max_num_batched_tokens, max_num_seqs, reserve

    def rank(self, r: Request, now_s: float) -> Rank:
        return (1 if r.decoding else 0, r.priority, r.arrival_s)

    def headroom_blocks(self, queue: list[Request]) -> list[int]:
        reserve = math.floor(self.reserve * self.engine.total_blocks)
        return [0 if r.priority <= 0 else reserve for r in queue]

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(
            first_decides=True, whole_prompts=True, misfit_ends_filling=True,
            max_num_batched_tokens=self.max_num_batched_tokens, max_num_seqs=self.max_num_seqs,
        )  # fmt: skip
