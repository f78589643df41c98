"""docs/systems/proserve.md."""

from typing import Any

from ..decisions import Limits, Rank
from ..latency import Latency
from ..requests import INF, Request
from .base import Scheduler


class Edf(Scheduler):
    def __init__(self, max_num_batched_tokens: int = 512, batch_size: int = 0, **limits: Any) -> None:
        super().__init__(**limits)
        self.max_num_batched_tokens, self.batch_size = max_num_batched_tokens, batch_size

    def rank(self, r: Request, now_s: float) -> Rank:
        return (r.deadline(r.emitted + 1),)

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        if self.batch_size > 0:
            return Limits(sequence_budget=self.batch_size)
        return Limits(max_num_batched_tokens=self.max_num_batched_tokens)


class Sjf(Edf):
    def rank(self, r: Request, now_s: float) -> Rank:
        return (self.exec(r),)


class SlideBatching(Scheduler):
    def __init__(
        self,
        gamma: float = 1.0,
        eta: float | None = None,  # s; None: a share of the smallest TPOT SLO of the workload
        phi: str = "a",  # a, c, p
        hopeless: str | None = None,  # exclude, include; None: as the variant has it
        ablation: str = "none",  # none, only-deadline, only-density, no-latency
        max_num_batched_tokens: int = 512,  # of no-latency
        xllm: bool = False,
        starve_threshold: float = 1.0,  # of xllm
        density_exponent: float = 1.0,
        deadlines: str | None = None,  # slo, early-first-token, first-token; None: as the variant has it
        step_tokens: int = 0,
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        self.step_tokens = step_tokens
        hopeless = hopeless or ("exclude" if xllm else "include")
        self.deadlines = deadlines or ("first-token" if xllm else "slo")
        assert phi in ("a", "c", "p") and hopeless in ("exclude", "include")
        assert self.deadlines in ("slo", "early-first-token", "first-token")
        assert ablation in ("none", "only-deadline", "only-density", "no-latency")
        self.gamma, self.eta, self.phi, self.hopeless = gamma, eta, phi, hopeless
        self.ablation, self.max_num_batched_tokens = ablation, max_num_batched_tokens
        self.xllm, self.starve_threshold = xllm, starve_threshold
        self.density_exponent = density_exponent

    def prepare(self, requests: list[Request], estimator: Latency) -> None:
        super().prepare(requests, estimator)
        share = 0.65 if self.xllm else 0.9
        self.floor_s = share * min(r.tpot_slo_s for r in requests) if self.eta is None else self.eta

    @property
    def t_c(self) -> float:
        return self.estimator.batch([])

    def remain(self, r: Request, now_s: float) -> float:
        if self.deadlines == "slo" or not r.emission_s or not r.interactive:
            return r.remain(now_s)
        base_s = r.emission_s[0]
        if self.deadlines == "early-first-token":
            base_s = min(base_s, r.deadline(1))
        return base_s + r.emitted * r.tpot_slo_s - now_s

    def t_budget(self, queue: list[Request], now_s: float) -> float:
        remains = [
            self.remain(r, now_s)
            for r in queue
            if self.hopeless == "include" or self.remain(r, now_s) >= self.exec(r) + self.t_c
        ]
        if not remains:
            return INF if self.xllm else self.floor_s
        return max(min(remains), self.floor_s)

    def loads(self, queue: list[Request], now_s: float, t_budget: float) -> list[float]:
        """Return phi of each request."""
        if self.phi == "p":
            return [sum(self.exec(r) for r in queue) + len(queue) * self.t_c] * len(queue)
        share = t_budget / (t_budget - self.t_c) if t_budget < INF else 1.0
        if self.phi == "a":
            return [share * sum(self.exec(r) for r in queue)] * len(queue)
        sum_s, sum_up_to = 0.0, {}
        for r in sorted(queue, key=lambda r: self.remain(r, now_s)):  # ties by place
            sum_s += self.exec(r)
            sum_up_to[r.index] = sum_s
        return [share * sum_up_to[r.index] for r in queue]

    def urgent(self, queue: list[Request], now_s: float, t_budget: float) -> list[bool]:
        if self.ablation == "only-deadline":
            return [False for _ in queue]
        if self.ablation == "only-density" or (self.phi in ("a", "c") and t_budget <= self.t_c):
            return [True for _ in queue]
        loads = self.loads(queue, now_s, t_budget)
        return [self.remain(r, now_s) < self.gamma * phi for r, phi in zip(queue, loads, strict=True)]

    def density(self, r: Request) -> float:
        exec_s = self.exec(r)
        return r.weight_of(r.emitted + 1) / exec_s**self.density_exponent if exec_s > 0 else INF

    def ranks(self, queue: list[Request], now_s: float) -> list[Rank]:
        ranks: list[Rank] = []
        for r, urgent in zip(queue, self.urgent(queue, now_s, self.t_budget(queue, now_s)), strict=True):
            if not urgent:
                ranks.append((1, self.remain(r, now_s)))
            elif self.xllm:
                slo_s = r.ttft_slo_s if r.emitted == 0 else r.tpot_slo_s
                starved = self.remain(r, now_s) < -self.starve_threshold * slo_s
                if starved and not r.decoding:
                    ranks.append((0, 1, self.remain(r, now_s)))
                else:
                    ranks.append((0, 0 if r.decoding else 2, -self.density(r)))
            else:
                ranks.append((0, -self.density(r)))
        return ranks

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        if self.ablation == "no-latency":
            limits = Limits(max_num_batched_tokens=self.max_num_batched_tokens)
        else:
            limits = Limits(time_budget_s=self.t_budget(queue, now_s), step_tokens=self.step_tokens)
        if self.xllm:
            limits.misfit_ends_filling, limits.smallest_chunk_tokens = True, 51
            if self.ablation != "no-latency":
                limits.max_num_batched_tokens = 10240
        return limits
