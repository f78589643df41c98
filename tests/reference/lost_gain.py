"""lost-gain of docs/systems/routers.md."""

import math
from dataclasses import dataclass

from .cache_routers import PredictedCost
from .requests import Request
from .routing import Route
from .snapshots import EngineSnapshot


@dataclass
class Look:
    """What a look at an engine found since the one before it."""

    at_s: float
    predicted: float
    emitted: int
    finished: int


class LostGain(PredictedCost):
    def __init__(
        self,
        others: float = 0.5,
        own: float = 2.5,
        late: float = 2.0,
        sharpness: float = 6.0,
        pace_limit: float = 0.95,
        pace_sharpness: float = 40.0,
        window_s: float = 6.0,
        queue: float = 0.8,
        pace: float = 1.0,
        memory_limit: float = 0.7,
        memory_barrier: float = 5.0,
        session: float = 0.8,
        load: float = 0.3,
        recover: float = 3.0,
        stall: float = 1.0,
        refuse: float = 0.0,
    ) -> None:
        super().__init__(
            queue, late, sharpness, pace, pace_limit, memory_limit=memory_limit, memory_barrier=memory_barrier,
            load=load, refuse=refuse, stall=stall,
        )  # fmt: skip
        self.others, self.own, self.pace_sharpness, self.recover = others, own, pace_sharpness, recover
        self.window_s, self.session = window_s, session

    def prepare(self, requests: list[Request], snapshots: list[EngineSnapshot]) -> None:
        super().prepare(requests, snapshots)
        self.sent: dict[int, list[tuple[float, float]]] = {snapshot.index: [] for snapshot in snapshots}
        self.looks: dict[int, list[Look]] = {snapshot.index: [] for snapshot in snapshots}
        self.last_engine: dict[int, int] = {}  # by session
        self.mean_slo_s: dict[tuple[str, int], float] = {}  # by kind and engine
        self.mean_late = dict.fromkeys((snapshot.index for snapshot in snapshots), 0.0)

    def route(self, r: Request, taking: list[EngineSnapshot], now_s: float) -> Route:
        for snapshot in taking:
            self.look(snapshot, now_s)
        route = super().route(r, taking, now_s)
        if route.engine is None:
            return route
        chosen = next(snapshot for snapshot in taking if snapshot.index == route.engine)
        if r.session >= 0:
            self.last_engine[r.session] = chosen.index
        self.count_slo("TPOT", chosen, r.tpot_slo_s)
        if r.kv_at is None:
            self.count_slo("TTFT", chosen, r.deadline(1) - r.arrival_s)
            self.sent[chosen.index].append((now_s, self.counted_s(r, chosen)))
        return route

    def count_slo(self, kind: str, chosen: EngineSnapshot, slo_s: float) -> None:
        if slo_s < math.inf:
            mean_s = self.mean_slo_s.get((kind, chosen.index), slo_s)
            self.mean_slo_s[kind, chosen.index] = mean_s + (slo_s - mean_s) / (1 + chosen.requests)

    def look(self, snapshot: EngineSnapshot, now_s: float) -> None:
        looks, predicted = self.looks[snapshot.index], 0.0
        passed_s = now_s - looks[-1].at_s if looks else now_s
        if snapshot.decodes > 0:
            share = min(0.9, self.recent_s(snapshot, now_s) / self.averaged_s(now_s))
            pace_s = self.batch_s(snapshot, snapshot.decodes, snapshot.decode_tokens) / (1 - share)
            predicted = snapshot.decodes * passed_s / pace_s
        emitted = snapshot.output_tokens - sum(look.emitted for look in looks)
        finished = len(snapshot.finished) - sum(look.finished for look in looks)
        looks.append(Look(now_s, predicted, emitted, finished))

    def refuses(self, r: Request, chosen: EngineSnapshot, taking: list[EngineSnapshot], now_s: float) -> bool:
        pace = self.token_s(r, chosen, now_s, True) / r.tpot_slo_s
        in_time = (1 - self.slow(pace)) * (1 - self.chance_of_late(r, chosen, now_s))
        return in_time < self.refuse and r.session not in self.last_engine

    def measure(self, r: Request, snapshot: EngineSnapshot, taking: list[EngineSnapshot], now_s: float) -> float:
        with_s = self.token_s(r, snapshot, now_s, True)
        there_s = self.mean_slo_s.get(("TPOT", snapshot.index), r.tpot_slo_s)
        pace, before = with_s / r.tpot_slo_s, self.slow(self.token_s(r, snapshot, now_s, False) / there_s)
        made_slow = self.slow(with_s / there_s) - before
        lost = self.own * self.slow(pace) + self.others * (snapshot.decodes + len(snapshot.record)) * made_slow
        slo_s = r.deadline(1) - r.arrival_s
        lost += self.stall * self.adapter_s(r.adapter, snapshot) / slo_s * snapshot.requests
        later = self.pace * pace + self.memory_cost(r, snapshot)
        in_time = 1 - before
        if r.kv_at is None:
            there_s = self.mean_slo_s.get(("TTFT", snapshot.index), slo_s)
            first_s = self.first_s(r, snapshot, now_s)
            late = self.sigmoid(first_s / there_s - 1)
            late_with = self.sigmoid((first_s + self.own_s(r, snapshot)) / there_s - 1)
            lost += self.late * self.chance_of_late(r, snapshot, now_s)
            lost += self.others * len(snapshot.record) * (late_with - late)
            later += (self.own_s(r, snapshot) + self.queue * self.wait_s(r, snapshot, now_s)) / slo_s
            later += self.session * (self.last_engine.get(r.session, snapshot.index) != snapshot.index)
            before_s = self.looks[snapshot.index][-2].at_s if len(self.looks[snapshot.index]) > 1 else 0.0
            kept = math.exp(-(now_s - before_s) / self.window_s)
            self.mean_late[snapshot.index] = kept * self.mean_late[snapshot.index] + (1 - kept) * late
            in_time *= 1 - self.mean_late[snapshot.index]
        slowest_s = max(self.batch_s(other, 64, 64_000) for other in taking)
        faster = slowest_s / self.batch_s(snapshot, 64, 64_000) - 1
        return lost + in_time * later + self.recover * (1 - in_time) * faster + self.load_cost(snapshot, taking)

    def slow(self, pace: float) -> float:
        return 0.5 + 0.5 * math.tanh(self.pace_sharpness * (pace - self.pace_limit) / 2) if pace > 0 else 0.0

    def chance_of_late(self, r: Request, snapshot: EngineSnapshot, now_s: float) -> float:
        first_s = now_s + self.first_s(r, snapshot, now_s) + self.own_s(r, snapshot)
        return self.sigmoid((first_s - r.deadline(1)) / (r.deadline(1) - r.arrival_s))

    def sigmoid(self, lateness: float) -> float:
        return 0.5 + 0.5 * math.tanh(self.sharpness * lateness / 2)

    def first_s(self, r: Request, snapshot: EngineSnapshot, now_s: float) -> float:
        beside_s = self.batch_s(snapshot, snapshot.decodes, snapshot.decode_tokens)
        return self.wait_s(r, snapshot, now_s) + beside_s

    def wait_s(self, r: Request, snapshot: EngineSnapshot, now_s: float) -> float:
        finished = self.summed(snapshot, now_s, "finished")
        if snapshot.decodes == 0 or snapshot.decode_tokens == 0 or finished == 0:
            return self.queue_s(snapshot, now_s)
        blocks_a_request = snapshot.decode_tokens / (snapshot.decodes * snapshot.block_tokens)
        freed_per_s = blocks_a_request * finished / self.averaged_s(now_s)
        return max(self.queue_s(snapshot, now_s), self.missing(r, snapshot) / freed_per_s)

    def missing(self, r: Request, snapshot: EngineSnapshot) -> float:
        return max(0.0, (snapshot.record_tokens + r.context) / snapshot.block_tokens - snapshot.free_blocks)

    def token_s(self, r: Request, snapshot: EngineSnapshot, now_s: float, with_r: bool) -> float:
        decodes, tokens = snapshot.decodes + len(snapshot.record), snapshot.decode_tokens + snapshot.record_tokens
        recent_s = self.recent_s(snapshot, now_s)
        if with_r:
            decodes, tokens = decodes + 1, tokens + r.context
            recent_s += self.counted_s(r, snapshot) if r.kv_at is None else 0.0
        if snapshot.role == "prefill" or decodes == 0:
            return 0.0
        pace_s = self.batch_s(snapshot, decodes, tokens) / (1 - min(0.9, recent_s / self.averaged_s(now_s)))
        predicted, emitted = (self.summed(snapshot, now_s, name) for name in ("predicted", "emitted"))
        return pace_s * min(1.5, (predicted + 700) / (emitted + 700))

    def averaged_s(self, now_s: float) -> float:
        return max(0.5, self.window_s * (1 - math.exp(-now_s / self.window_s)))

    def recent_s(self, snapshot: EngineSnapshot, now_s: float) -> float:
        sent = self.sent[snapshot.index]
        return sum(counted_s * math.exp(-(now_s - at_s) / self.window_s) for at_s, counted_s in sent)

    def summed(self, snapshot: EngineSnapshot, now_s: float, name: str) -> float:
        looks = self.looks[snapshot.index]
        return sum(getattr(look, name) * math.exp(-(now_s - look.at_s) / self.window_s) for look in looks)

    def counted_s(self, r: Request, snapshot: EngineSnapshot) -> float:
        return min(self.own_s(r, snapshot), 0.1 * self.window_s)
