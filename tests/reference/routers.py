"""The routers of docs/systems/routers.md, written from that page alone."""

import math
from collections.abc import Callable

from servegym.simulator.records.random import uniform

from .cache_routers import KvAware, LoraAffinity, PredictedCost, PrefixAffinity, SessionHash
from .lost_gain import LostGain
from .polyserve import PolyServe
from .requests import INF, Request
from .routing import Route as Route
from .routing import Router as Router
from .routing import smallest
from .snapshots import EngineSnapshot


class RoundRobin(Router):
    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        return snapshots[r.index % len(snapshots)]


class Random(Router):
    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        return snapshots[math.floor(uniform(self.seed, 0x726F7574, r.index) * len(snapshots))]


class MinLoad(Router):
    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        return smallest(snapshots, lambda snapshot: snapshot.requests)


class MinTokens(Router):
    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        return smallest(snapshots, lambda snapshot: snapshot.record_tokens + snapshot.decode_tokens)


class MinCycleTime(Router):
    def __init__(self, max_num_batched_tokens: int = 1024) -> None:
        self.max_num_batched_tokens = max_num_batched_tokens

    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        return smallest(snapshots, lambda snapshot: self.cycle_s(r, snapshot))

    def cycle_s(self, r: Request, snapshot: EngineSnapshot) -> float:
        decodes, cached, prefill = snapshot.decodes, snapshot.decode_tokens, snapshot.record_tokens
        if r.kv_at is not None:
            decodes, cached = decodes + 1, cached + r.context
        else:
            prefill += r.prompt_tokens
        batch = [(1, cached / decodes, True) for _ in range(decodes)]
        chunk = min(prefill, max(0, self.max_num_batched_tokens - decodes))
        return snapshot.fit.batch([*batch, (chunk, 0, False)] if chunk > 0 else batch)


class GoRouting(Router):
    def __init__(
        self,
        alpha: float = 0.9,
        lam: float = 0.8,
        mu: float = 0.1,
        eta: float | None = None,  # s; None: 0.9 x the smallest TPOT SLO of the workload
        decodes: str = "once",  # once, recurring
        fallback: str = "random",  # random, least-loaded
        local_order: str = "deadline",  # deadline, arrival, priority, slide-batching; of prefill engines
        seed: int = 0,
    ) -> None:
        assert decodes in ("once", "recurring") and fallback in ("random", "least-loaded")
        assert local_order in ("deadline", "arrival", "priority", "slide-batching")
        self.alpha, self.lam, self.mu, self.eta = alpha, lam, mu, eta
        self.decodes, self.fallback, self.random = decodes, fallback, Random(seed)
        self.local_order = local_order

    def prepare(self, requests: list[Request], snapshots: list[EngineSnapshot]) -> None:
        super().prepare(requests, snapshots)
        self.floor_s = 0.9 * min(r.tpot_slo_s for r in requests) if self.eta is None else self.eta

    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        if r.kv_at is not None:
            return smallest(snapshots, lambda snapshot: -snapshot.free_blocks)

        def exec_s(snapshot: EngineSnapshot) -> float:
            return self.exec_s(snapshot, snapshot.record, r, now_s)

        def exec_with_s(snapshot: EngineSnapshot) -> float:
            return self.exec_s(snapshot, [*snapshot.record, r], r, now_s)

        gains = [
            self.gain(snapshot, [*snapshot.record, r], r, now_s) - self.gain(snapshot, snapshot.record, r, now_s)
            for snapshot in snapshots
        ]
        most = max(gains)
        if most <= 0:
            return self.random.choose(r, snapshots, now_s) if self.fallback == "random" else smallest(snapshots, exec_s)
        candidates = [snapshot for snapshot, gain in zip(snapshots, gains, strict=True) if gain >= self.alpha * most]
        light = [snapshot for snapshot in candidates if exec_s(snapshot) < self.mu * r.ttft_slo_s]
        not_heavy = [snapshot for snapshot in candidates if not exec_with_s(snapshot) > self.lam * r.ttft_slo_s]
        if light:
            return smallest(light, exec_s)
        if not_heavy:
            return smallest(not_heavy, lambda snapshot: -exec_s(snapshot))
        return smallest(candidates, exec_s)

    def gain(self, snapshot: EngineSnapshot, queue: list[Request], r: Request, now_s: float) -> float:
        """Return G(S), S = `queue`."""
        ends_s = [now_s + self.exec_s(snapshot, queue, r, now_s)] * len(queue)
        if snapshot.role == "prefill":
            orders: dict[str, Callable[[Request], tuple[float, ...]]] = {
                "deadline": lambda q: (q.deadline(1),),
                "arrival": lambda q: (q.arrival_s,),
                "priority": lambda q: (q.priority, q.deadline(1)),
                "slide-batching": lambda q: self.urgent_first(q, snapshot, ends_s[0]),
            }
            queue = sorted(queue, key=orders[self.local_order])
            ends_s = [now_s + self.alone_s(snapshot, queue[: place + 1], now_s) for place in range(len(queue))]
        return sum(q.first_token_gain for q, end_s in zip(queue, ends_s, strict=True) if end_s < q.deadline(1))

    def urgent_first(self, q: Request, snapshot: EngineSnapshot, end_s: float) -> tuple[float, float]:
        """Order S with urgent requests first. end_s: when all of S would be done."""
        if q.deadline(1) >= end_s:
            return (1, q.deadline(1))
        exec_s = snapshot.fit.exec(q.prompt_tokens, 0, False)
        return (0, -q.first_token_gain / exec_s if exec_s > 0 else -INF)

    def alone_s(self, snapshot: EngineSnapshot, queue: list[Request], now_s: float) -> float:
        """Return EXEC(S) on a prefill engine: one after the other, each in a batch of its own."""
        t_c = snapshot.fit.batch([])
        total_s = sum(snapshot.fit.exec(q.prompt_tokens, 0, False) + t_c for q in queue)
        return max(0.0, total_s - (now_s - snapshot.changed_s))

    def exec_s(self, snapshot: EngineSnapshot, queue: list[Request], r: Request, now_s: float) -> float:
        """Return EXEC(S), S = `queue`."""
        if snapshot.role == "prefill":
            return self.alone_s(snapshot, queue, now_s)
        budget_s = max(min([q.deadline(1) - now_s for q in queue] + [q.tpot_slo_s for q in [*queue, r]]), self.floor_s)
        t_c, decodes = snapshot.fit.batch([]), snapshot.decodes
        decode_s = snapshot.fit.exec(1, snapshot.decode_tokens // decodes, True) if decodes else 0.0
        all_s = sum(snapshot.fit.exec(q.prompt_tokens, 0, False) for q in queue)
        spent_s = t_c if self.decodes == "once" else t_c + decodes * decode_s
        if budget_s <= spent_s:
            return INF
        total_s = budget_s / (budget_s - spent_s) * all_s + (decodes * decode_s if self.decodes == "once" else 0.0)
        return max(0.0, total_s - (now_s - snapshot.changed_s))


class Silo(Router):
    def __init__(
        self,
        bound_1_s: float | None = None,  # None: the smallest TPOT SLO of the workload
        bound_2_s: float = 600.0,
        bound_3_s: float = 1800.0,
    ) -> None:
        self.first_s, self.others_s = bound_1_s, [bound_2_s, bound_3_s]

    def prepare(self, requests: list[Request], snapshots: list[EngineSnapshot]) -> None:
        super().prepare(requests, snapshots)
        strictest_s = min(r.tpot_slo_s for r in requests)
        self.bounds_s = [strictest_s if self.first_s is None else self.first_s, *self.others_s]

    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        asks_s = r.ttlt_slo_s if r.ttlt_slo_s < INF else r.tpot_slo_s
        kind = sum(bound_s < asks_s for bound_s in self.bounds_s)
        pools = sorted({snapshot.pool for snapshot in snapshots})
        mine = pools[min(kind, len(pools) - 1)]
        return smallest([snapshot for snapshot in snapshots if snapshot.pool == mine], lambda snapshot: 0)


class Llumnix(Router):
    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        return smallest(snapshots, lambda snapshot: -self.freeness(snapshot))

    def freeness(self, snapshot: EngineSnapshot) -> float:
        if snapshot.requests == 0:
            return INF
        waiting = sum(math.ceil(q.prompt_tokens / snapshot.block_tokens) for q in snapshot.record)
        return (snapshot.free_blocks - waiting) / snapshot.requests


ROUTERS: dict[str, type[Router]] = {
    "gorouting": GoRouting, "kv-aware": KvAware, "llumnix": Llumnix, "lora-affinity": LoraAffinity,
    "lost-gain": LostGain, "min-cycle-time": MinCycleTime, "min-load": MinLoad, "min-tokens": MinTokens,
    "polyserve": PolyServe, "predicted-cost": PredictedCost, "prefix-affinity": PrefixAffinity, "random": Random,
    "round-robin": RoundRobin, "session-hash": SessionHash, "silo": Silo,
}  # fmt: skip
