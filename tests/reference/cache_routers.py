"""Routers that know which prefixes engines keep, or keep sessions together: docs/systems/routers.md."""

import itertools
import math

from servegym.simulator.records.random import uniform

from .requests import Request
from .routing import Route, Router, smallest
from .snapshots import EngineSnapshot


def known_tokens(r: Request, snapshot: EngineSnapshot) -> int:
    """Return the tokens of r that an engine has, by the router's index or the engine's KV events."""
    if snapshot.told is not None:
        return min(told_tokens(r, snapshot), r.context - 1)
    if snapshot.beginnings is None:
        return 0
    there = itertools.takewhile(snapshot.beginnings.has, snapshot.beginnings.of_prompt(r))
    return min(snapshot.beginnings.chunk_tokens * len(list(there)), r.context - 1)


def told_tokens(r: Request, snapshot: EngineSnapshot) -> int:
    """Return the tokens in the first blocks of its prompt that the engine has published."""
    assert snapshot.told is not None
    size, names, found = snapshot.block_tokens, {name for name in snapshot.told.values() if name is not None}, 0
    chunks = r.chunks[: r.prompt_tokens // snapshot.chunk_tokens]
    if snapshot.finder is not None:
        return snapshot.finder.found_by(r, names, min(len(chunks) * snapshot.chunk_tokens, r.context - 1))
    while True:
        chunk = ((found + 1) * size - 1) // snapshot.chunk_tokens
        if chunk >= len(chunks) or ("chunk", chunks[chunk], found) not in names:
            return found * size
        found += 1


class PrefixAffinity(Router):
    def __init__(self, refuse: float = 0.0) -> None:
        self.refuse = refuse

    def prepare(self, requests: list[Request], snapshots: list[EngineSnapshot]) -> None:
        super().prepare(requests, snapshots)
        self.work_s = dict.fromkeys((snapshot.index for snapshot in snapshots), 0.0)
        self.of_tokens = dict.fromkeys((snapshot.index for snapshot in snapshots), 0)

    def route(self, r: Request, taking: list[EngineSnapshot], now_s: float) -> Route:
        if r.kv_at is not None:
            return Route(smallest(taking, lambda snapshot: self.measure(r, snapshot, taking, now_s)).index)
        for snapshot in taking:
            if self.of_tokens[snapshot.index] > 0:
                self.work_s[snapshot.index] *= snapshot.record_tokens / self.of_tokens[snapshot.index]
            self.of_tokens[snapshot.index] = snapshot.record_tokens
        chosen = smallest(taking, lambda snapshot: self.measure(r, snapshot, taking, now_s))
        if self.refuse > 0 and r.emitted == 0 and self.refuses(r, chosen, taking, now_s):
            return Route(None, refused=True)
        self.work_s[chosen.index] += self.own_s(r, chosen)
        self.of_tokens[chosen.index] += r.context
        return Route(chosen.index)

    def refuses(self, r: Request, chosen: EngineSnapshot, taking: list[EngineSnapshot], now_s: float) -> bool:
        ttft_s = now_s + self.measure(r, chosen, taking, now_s) - r.arrival_s
        tbt_s = self.batch_s(chosen, chosen.decodes + 1, chosen.decode_tokens + r.prompt_tokens)
        late = ttft_s > self.refuse * (r.deadline(1) - r.arrival_s)
        return late or (chosen.role != "prefill" and tbt_s > self.refuse * r.tpot_slo_s)

    def measure(self, r: Request, snapshot: EngineSnapshot, taking: list[EngineSnapshot], now_s: float) -> float:
        if r.kv_at is not None:
            return self.batch_s(snapshot, snapshot.decodes + 1, snapshot.decode_tokens + r.context)
        beside_s = self.batch_s(snapshot, snapshot.decodes, snapshot.decode_tokens)
        return self.queue_s(snapshot, now_s) + self.own_s(r, snapshot) + beside_s

    def queue_s(self, snapshot: EngineSnapshot, now_s: float) -> float:
        return max(0.0, self.work_s[snapshot.index] - (now_s - snapshot.changed_s))

    def own_s(self, r: Request, snapshot: EngineSnapshot) -> float:
        cached = known_tokens(r, snapshot)
        return snapshot.fit.exec(r.context - cached, cached, False)

    def batch_s(self, snapshot: EngineSnapshot, decodes: int, tokens: int) -> float:
        return snapshot.fit.batch([(1, tokens / decodes, True) for _ in range(decodes)])


class PredictedCost(PrefixAffinity):
    def __init__(
        self,
        queue: float = 1.0,
        late: float = 2.0,
        sharpness: float = 6.0,
        pace: float = 1.0,
        pace_limit: float = 0.7,
        pace_barrier: float = 10.0,
        memory_limit: float = 0.9,
        memory_barrier: float = 10.0,
        load: float = 0.1,
        refuse: float = 0.0,
        adapter: float = 1.0,
        stall: float = 1.0,
    ) -> None:
        super().__init__(refuse)
        self.adapter, self.stall = adapter, stall
        self.queue, self.late, self.sharpness = queue, late, sharpness
        self.pace, self.pace_limit, self.pace_barrier = pace, pace_limit, pace_barrier
        self.memory_limit, self.memory_barrier, self.load = memory_limit, memory_barrier, load

    def own_s(self, r: Request, snapshot: EngineSnapshot) -> float:
        return super().own_s(r, snapshot) + self.adapter * self.adapter_s(r.adapter, snapshot)

    @staticmethod
    def adapter_s(adapter: int, snapshot: EngineSnapshot) -> float:
        if adapter in [0, *snapshot.adapters[: snapshot.max_loras]] or snapshot.max_loras == 0:
            return 0.0
        return snapshot.activate_s if adapter in snapshot.adapters else snapshot.load_s + snapshot.activate_s

    def measure(self, r: Request, snapshot: EngineSnapshot, taking: list[EngineSnapshot], now_s: float) -> float:
        cost = self.cost_to_others(r, snapshot, taking)
        return cost if r.kv_at is not None else cost + self.waiting_cost(r, snapshot, now_s)

    def cost_to_others(self, r: Request, snapshot: EngineSnapshot, taking: list[EngineSnapshot]) -> float:
        cost = self.memory_cost(r, snapshot) + self.load_cost(snapshot, taking)
        share = self.adapter_s(r.adapter, snapshot) / (r.deadline(1) - r.arrival_s)
        cost += self.stall * share * snapshot.requests
        return cost if snapshot.role == "prefill" else cost + self.pace_cost(r, snapshot)

    def refuses(self, r: Request, chosen: EngineSnapshot, taking: list[EngineSnapshot], now_s: float) -> bool:
        return self.refuse * self.cost_to_others(r, chosen, taking) > 1 - self.chance(r, chosen, now_s)

    def memory_cost(self, r: Request, snapshot: EngineSnapshot) -> float:
        queued_blocks = (snapshot.record_tokens + r.context) / snapshot.block_tokens
        used = (snapshot.total_blocks - snapshot.free_blocks + queued_blocks) / snapshot.total_blocks
        return self.memory_barrier * max(0.0, used - self.memory_limit)

    def load_cost(self, snapshot: EngineSnapshot, taking: list[EngineSnapshot]) -> float:
        mean = sum(other.requests for other in taking) / len(taking)
        return self.load * snapshot.requests / max(mean, 1.0)

    def pace_cost(self, r: Request, snapshot: EngineSnapshot) -> float:
        decodes = snapshot.decodes + len(snapshot.record) + 1
        tokens = snapshot.decode_tokens + snapshot.record_tokens + r.context
        pace = self.batch_s(snapshot, decodes, tokens) / r.tpot_slo_s
        return self.pace * pace + self.pace_barrier * max(0.0, pace - self.pace_limit)

    def waiting_cost(self, r: Request, snapshot: EngineSnapshot, now_s: float) -> float:
        slo_s = r.deadline(1) - r.arrival_s
        queue_s, own_s = self.queue_s(snapshot, now_s), self.own_s(r, snapshot)
        return own_s / slo_s + self.queue * queue_s / slo_s + self.late * self.chance(r, snapshot, now_s)

    def chance(self, r: Request, snapshot: EngineSnapshot, now_s: float) -> float:
        slo_s = r.deadline(1) - r.arrival_s
        queue_s, own_s = self.queue_s(snapshot, now_s), self.own_s(r, snapshot)
        beside_s = self.batch_s(snapshot, snapshot.decodes, snapshot.decode_tokens)
        lateness = (now_s + queue_s + own_s + beside_s - r.deadline(1)) / slo_s
        return 0.5 + 0.5 * math.tanh(self.sharpness * lateness / 2)


class KvAware(Router):
    def __init__(self, overlap_weight: float = 1.0, temperature: float = 0.0, seed: int = 0) -> None:
        self.overlap_weight, self.temperature, self.seed = overlap_weight, temperature, seed

    def prepare(self, requests: list[Request], snapshots: list[EngineSnapshot]) -> None:
        super().prepare(requests, snapshots)
        self.uncached = dict.fromkeys((snapshot.index for snapshot in snapshots), 0.0)
        self.of_tokens = dict.fromkeys((snapshot.index for snapshot in snapshots), 0)

    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        if r.kv_at is None:
            for snapshot in snapshots:
                if self.of_tokens[snapshot.index] > 0:
                    self.uncached[snapshot.index] *= snapshot.record_tokens / self.of_tokens[snapshot.index]
                self.of_tokens[snapshot.index] = snapshot.record_tokens
        costs = {snapshot.index: self.cost(r, snapshot) for snapshot in snapshots}
        if self.temperature == 0:
            chosen = smallest(snapshots, lambda snapshot: costs[snapshot.index])
        else:
            chosen = self.drawn(r, snapshots, costs)
        if r.kv_at is None:
            self.uncached[chosen.index] += r.context - known_tokens(r, chosen)
            self.of_tokens[chosen.index] += r.context
        return chosen

    def cost(self, r: Request, snapshot: EngineSnapshot) -> float:
        to_prefill = 0.0
        if r.kv_at is None:
            to_prefill = self.uncached[snapshot.index] + (r.context - known_tokens(r, snapshot))
        in_use = snapshot.record_tokens + snapshot.decode_tokens + r.context
        return (self.overlap_weight * to_prefill + in_use) / snapshot.block_tokens

    def drawn(self, r: Request, snapshots: list[EngineSnapshot], costs: dict[int, float]) -> EngineSnapshot:
        least, most = min(costs.values()), max(costs.values())
        shares = [
            math.exp(-((costs[snapshot.index] - least) / (most - least) if most > least else 0.0) / self.temperature)
            for snapshot in snapshots
        ]
        up_to = list(itertools.accumulate(shares))
        u = uniform(self.seed, 0x6B766177, r.index)
        return next(snapshot for snapshot, share in zip(snapshots, up_to, strict=True) if share >= u * up_to[-1])


class LoraAffinity(Router):
    def __init__(self, affinity_weight: float = 1.0, queue_weight: float = 1.0, kv_weight: float = 1.0) -> None:
        self.weights = affinity_weight, queue_weight, kv_weight

    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        waiting = [len(snapshot.record) for snapshot in snapshots]

        def score(snapshot: EngineSnapshot) -> float:
            affinity, queue, kv = self.weights
            spread = max(waiting) - min(waiting)
            short = (max(waiting) - len(snapshot.record)) / spread if spread else 1.0
            free = snapshot.free_blocks / snapshot.total_blocks
            of_load = queue * short + kv * free
            return of_load + affinity * self.affinity(r.adapter, snapshot) if r.adapter else of_load

        return smallest(snapshots, lambda snapshot: -score(snapshot))

    def affinity(self, adapter: int, snapshot: EngineSnapshot) -> float:
        if adapter in snapshot.adapters[: snapshot.max_loras]:
            return 1.0
        return 0.8 if len(snapshot.adapters) < snapshot.max_loras else 0.0


class SessionHash(Router):
    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        return max(snapshots, key=lambda snapshot: self.number(r, snapshot))

    def number(self, r: Request, snapshot: EngineSnapshot) -> float:
        if r.session >= 0:
            return uniform(self.seed, 0x73650000 + snapshot.index, r.session)
        if r.beginning is not None:
            return uniform(self.seed, 0x73660000 + snapshot.index, r.beginning)
        return uniform(self.seed, 0x73670000 + snapshot.index, r.index)
