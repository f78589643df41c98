"""docs/systems/sarathi.md."""

from typing import Any

from ..decisions import Limits, Rank
from ..latency import Latency
from ..requests import Request
from .base import Scheduler


class SarathiFcfs(Scheduler):
    def __init__(self, max_num_batched_tokens: int | str = "profiled", max_num_seqs: int = 128, **limits: Any) -> None:
        super().__init__(**limits)
        self.max_num_batched_tokens, self.max_num_seqs = max_num_batched_tokens, max_num_seqs

    def prepare(self, requests: list[Request], estimator: Latency) -> None:
        super().prepare(requests, estimator)
        if self.max_num_batched_tokens != "profiled":
            self.budget = int(self.max_num_batched_tokens)
        else:
            cached = sum(r.prompt_tokens for r in requests) / len(requests) / 2
            slo_s = min(r.tpot_slo_s for r in requests)
            self.budget = 16
            while self.budget < 2**20 and estimator.batch([(self.budget + 16, cached, False)]) <= slo_s:
                self.budget += 16

    def rank(self, r: Request, now_s: float) -> Rank:
        return (0 if r.decoding else 1, r.arrival_s)

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(max_num_batched_tokens=self.budget, max_num_seqs=self.max_num_seqs)


class SarathiPriority(SarathiFcfs):
    def rank(self, r: Request, now_s: float) -> Rank:
        return (0, r.arrival_s) if r.decoding else (1, r.priority, r.arrival_s)


class SarathiEdf(SarathiFcfs):
    def key(self, r: Request) -> float:
        return r.deadline(1)

    def rank(self, r: Request, now_s: float) -> Rank:
        return (0, r.arrival_s) if r.decoding else (1, self.key(r))


class SarathiSrpf(SarathiEdf):
    def key(self, r: Request) -> float:
        return r.left


class SarathiSjf(SarathiEdf):
    def key(self, r: Request) -> float:
        return r.prompt_tokens
