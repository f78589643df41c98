"""PolyServe's router and scaler (docs/systems/polyserve.md), written from that page alone."""

import math
from dataclasses import dataclass

from .requests import INF, Request
from .routing import Route, Router
from .scalers import Change, Scaler
from .snapshots import EngineSnapshot


@dataclass
class Foreseen:
    """The numbers that the router keeps for an engine."""

    version: int | None = None  # of the snapshot, when the next three were worked out
    peak: int = 0  # K
    longer: int = 0  # K'
    load_s: float = 0.0
    clear_s: float = 0.0  # T
    s_per_token: float = 0.0  # S
    low: int = 0


def next_deadline(r: Request) -> float:
    return r.deadline(r.emitted + 1)


class PolyServe(Router):
    def __init__(
        self,
        max_num_batched_tokens: int = 1024,
        output_tokens: int = 256,
        memory_reserve: float = 0.05,
        margin: float = 0.0,
    ) -> None:
        self.budget, self.at_first, self.reserve = max_num_batched_tokens, output_tokens, memory_reserve
        self.margin = margin

    def prepare(self, requests: list[Request], snapshots: list[EngineSnapshot]) -> None:
        super().prepare(requests, snapshots)
        self.kept = [Foreseen() for _ in snapshots]

    def route(self, r: Request, taking: list[EngineSnapshot], now_s: float) -> Route:
        self.now_s, self.taking = now_s, taking
        finished = [q for snapshot in self.snapshots for q in snapshot.finished]
        self.mean = math.ceil(sum(q.output_tokens for q in finished) / len(finished)) if finished else self.at_first
        pending = [snapshot for snapshot in self.snapshots if snapshot.would_take(r)]
        for snapshot in [*taking, *pending]:
            if self.kept[snapshot.index].version != snapshot.version:
                self.foresee(snapshot)
        by_prefill_engine = any(snapshot.role == "prefill" for snapshot in taking)
        in_reach = any(self.idle_would_do(r, snapshot) for snapshot in taking)
        line = None if in_reach and not by_prefill_engine else len(self.tiers)
        chosen = self.admitting(r) if in_reach else self.best_effort(r)
        if chosen is not None:
            self.note(r, chosen, chosen.tier, chosen.tier)
            return Route(chosen.index)
        joins = [v for v in pending if v.here and min(q.tier for q in v.here) == r.tier]
        snapshot = self.fullest([v for v in joins if in_reach and self.admits(r, v, self.limit_s(r.tier))])
        if snapshot is not None:
            self.note(r, snapshot, r.tier, r.tier)
            return Route(snapshot.index, tier=r.tier)
        pool = [snapshot for snapshot in taking if snapshot.tier is None]
        if in_reach and pool:
            snapshot = min(pool, key=lambda snapshot: (len(snapshot.here), snapshot.index))
            self.note(r, snapshot, None, r.tier)
            return Route(snapshot.index, tier=r.tier)
        if all(snapshot.busy_until_s <= now_s for snapshot in self.snapshots):
            snapshot = min(taking, key=lambda snapshot: (len(snapshot.here), snapshot.index))
            self.note(r, snapshot, snapshot.tier, snapshot.tier)
            return Route(snapshot.index)
        return Route(None, line=line)

    # What is foreseen

    def to_come(self, r: Request) -> int:
        return max(1, self.mean - r.emitted)

    def foresee(self, snapshot: EngineSnapshot) -> None:
        kept, here = self.kept[snapshot.index], snapshot.here
        ends = [self.to_come(q) for q in here]
        kept.version = snapshot.version
        kept.peak = max([self.kv(here, k) for k in ends], default=0)
        kept.longer = max([self.kv(here, k) + k for k in ends], default=0)
        longest = max((q.context for q in snapshot.record), default=0)
        kept.low = max(0, snapshot.record_tokens - self.budget - (longest if longest > self.budget else 0))
        kept.load_s = self.decoding_s(snapshot, len(here), kept.peak)

    def kv(self, here: list[Request], k: int) -> int:
        return sum(q.context - 1 + k for q in here if self.to_come(q) >= k)

    def decoding_s(self, snapshot: EngineSnapshot, n: int, tokens: float) -> float:
        return snapshot.fit.batch([(1, tokens / max(1, n), True)] * n)

    def peak_with(self, r: Request, snapshot: EngineSnapshot) -> int:
        return max(self.kept[snapshot.index].longer + r.context - 1, r.context - 1 + self.to_come(r))

    def has_memory(self, r: Request, snapshot: EngineSnapshot) -> bool:
        n = len(snapshot.here)
        blocks = self.peak_with(r, snapshot) / snapshot.block_tokens + n + 1
        return n == 0 or blocks <= (1 - self.reserve) * snapshot.total_blocks

    def limit_s(self, tier: int) -> float:
        return (1 - self.margin) * self.tiers[tier]

    def fits(self, r: Request, snapshot: EngineSnapshot, tpot_s: float) -> bool:
        return (
            self.has_memory(r, snapshot)
            and self.decoding_s(snapshot, len(snapshot.here) + 1, self.peak_with(r, snapshot)) < tpot_s
        )

    def at_its_turn(
        self, r: Request, snapshot: EngineSnapshot, tpot_s: float, n: int, peak: int
    ) -> tuple[float, float]:
        """own, s"""
        c, budget = r.context, self.budget
        if snapshot.role == "prefill":
            return self.alone_s(snapshot, c), self.alone_s(snapshot, max(c, budget)) / max(c, budget)

        def iteration_s(q: int) -> float:
            decodes = [(1, peak / max(1, n), True)] * n
            return snapshot.fit.batch([*decodes, (q, max(0, c - q), False)])

        chunks = [q for q in range(1, budget - n + 1) if iteration_s(q) < tpot_s]
        if not chunks:
            return INF, INF
        q = max(chunks)
        return math.ceil(c / q) * iteration_s(min(q, c)), iteration_s(q) / q

    def alone_s(self, snapshot: EngineSnapshot, x: int) -> float:
        q = min(x, self.budget)
        return max(1.0, x / self.budget) * snapshot.fit.batch([(q, (x - q) / 2, False)])

    # Backlog

    def start_s(self, snapshot: EngineSnapshot) -> float:
        return max(self.now_s, snapshot.busy_until_s)

    def backlog_s(self, snapshot: EngineSnapshot) -> float:
        kept = self.kept[snapshot.index]
        return max(0.0, kept.clear_s - self.start_s(snapshot), kept.low * kept.s_per_token) if snapshot.record else 0.0

    def backlog_tokens(self, snapshot: EngineSnapshot) -> float:
        left_s = self.backlog_s(snapshot)
        return min(snapshot.record_tokens, left_s / self.kept[snapshot.index].s_per_token) if left_s > 0 else 0.0

    def note(self, r: Request, snapshot: EngineSnapshot, before: int | None, tier: int | None) -> None:
        """Note that r was sent there, when the engine was in tier `before`."""
        if snapshot.role == "decode":
            return
        kept, empty = self.kept[snapshot.index], before is None and tier is not None
        tpot_s = self.limit_s(r.tier if snapshot.role == "prefill" or before is None else before)
        n, peak = (0, 0) if empty else (len(snapshot.here), kept.peak)
        _, s = self.at_its_turn(r, snapshot, tpot_s, n, peak)
        if s < INF:
            start_s, left = (self.now_s, 0.0) if empty else (self.start_s(snapshot), self.backlog_tokens(snapshot))
            kept.clear_s, kept.s_per_token = start_s + (left + r.context) * s, s

    def in_time(self, r: Request, snapshot: EngineSnapshot, own_s: float, s: float) -> bool:
        due_s, start_s = next_deadline(r), self.start_s(snapshot)
        waiting = [q for q in snapshot.record if next_deadline(q) > self.now_s]
        ahead = sum(q.context for q in waiting if next_deadline(q) <= due_s)
        behind = [q for q in waiting if next_deadline(q) > due_s]
        done = max(0.0, ahead + sum(q.context for q in behind) - self.backlog_tokens(snapshot))
        if start_s + own_s + max(0.0, ahead - done) * s >= due_s or start_s + own_s >= due_s:
            return False
        for q in behind:
            until = ahead + sum(other.context for other in behind if next_deadline(other) <= next_deadline(q))
            without_s = start_s + max(0.0, until - done) * s
            if without_s < next_deadline(q) <= without_s + own_s:
                return False
        return True

    # Decisions

    def admits(self, r: Request, snapshot: EngineSnapshot, tpot_s: float) -> bool:
        n, start_s = len(snapshot.here), self.start_s(snapshot)
        if snapshot.role != "prefill" and not self.fits(r, snapshot, tpot_s):
            return False
        if snapshot.role == "decode":
            return start_s + self.decoding_s(snapshot, n + 1, self.peak_with(r, snapshot)) < next_deadline(r)
        own_s, s = self.at_its_turn(r, snapshot, tpot_s, n, self.kept[snapshot.index].peak)
        return start_s < next_deadline(r) and own_s < INF and self.in_time(r, snapshot, own_s, s)

    def idle_would_do(self, r: Request, snapshot: EngineSnapshot) -> bool:
        tpot_s, due_s = self.limit_s(r.tier), next_deadline(r)
        iteration_s = self.decoding_s(snapshot, 1, r.context - 1 + self.to_come(r))
        if snapshot.role == "decode":
            return iteration_s < tpot_s and self.now_s + iteration_s < due_s
        own_s, _ = self.at_its_turn(r, snapshot, tpot_s, 0, 0)
        return (snapshot.role == "prefill" or iteration_s < tpot_s) and self.now_s + own_s < due_s

    def of_tier(self, tier: int, r: Request) -> list[EngineSnapshot]:
        return [
            snapshot
            for snapshot in self.taking
            if snapshot.tier is not None and tier == (r.tier if snapshot.role == "prefill" else snapshot.tier)
        ]

    def fullest(self, snapshots: list[EngineSnapshot]) -> EngineSnapshot | None:
        def load_s(snapshot: EngineSnapshot) -> float:
            return self.backlog_s(snapshot) if snapshot.role == "prefill" else self.kept[snapshot.index].load_s

        return min(snapshots, key=lambda snapshot: (-load_s(snapshot), snapshot.index), default=None)

    def admitting(self, r: Request) -> EngineSnapshot | None:
        for tier in range(r.tier, -1, -1):
            snapshot = self.fullest([v for v in self.of_tier(tier, r) if self.admits(r, v, self.limit_s(tier))])
            if snapshot is not None:
                return snapshot
        return None

    def best_effort(self, r: Request) -> EngineSnapshot | None:
        for snapshot in self.taking:
            if snapshot.tier is None and (
                not snapshot.record if snapshot.role == "prefill" else self.has_memory(r, snapshot)
            ):
                return snapshot
        for tier in range(len(self.tiers) - 1, -1, -1):
            snapshots = [
                snapshot
                for snapshot in self.of_tier(tier, r)
                if (not snapshot.record if snapshot.role == "prefill" else self.fits(r, snapshot, self.limit_s(tier)))
            ]
            if snapshots:
                return self.fullest(snapshots)
        return next((snapshot for snapshot in self.taking if not snapshot.here), None)


class PolyServeScaler(Scaler):
    def __init__(self, interval_s: float = 1.0) -> None:
        self.interval_s = interval_s

    def decide(self, now_s: float, now: list[Change]) -> list[Change]:
        changes = list(now)
        for snapshot in self.snapshots:
            tier, closed = now[snapshot.index]
            if not closed:
                continue
            if not snapshot.here:
                changes[snapshot.index] = (None, False)
                continue
            first = min(r.tier for r in snapshot.here)
            if self.lines[first]:
                changes[snapshot.index] = (first, False)
            elif tier is not None and self.lines[tier]:
                changes[snapshot.index] = (tier, False)
        for tier in range(len(self.tiers)):
            for role in ("both", "prefill", "decode"):
                self.look_at_last(tier, [v for v in self.snapshots if self.is_of(v, tier, role, changes)], now, changes)
        for number, line in enumerate(self.lines):
            if line:
                self.start_one(min(number, len(self.tiers) - 1), line[0].kv_at is not None, now, changes)
        return changes

    def start_one(self, tier: int, for_decode: bool, now: list[Change], changes: list[Change]) -> None:
        """Start an engine that is off, unless one is loading."""
        could = [v for v in self.snapshots if v.off and v.up and (v.role == "decode") == for_decode]
        for snapshot in could:
            to = changes[snapshot.index][0]
            if to == tier or (to is not None and snapshot.role == "prefill"):
                return
        stopped = [v for v in could if changes[v.index][0] is None and now[v.index][0] is None]
        if stopped:
            changes[stopped[0].index] = (tier, False)

    def is_of(self, snapshot: EngineSnapshot, tier: int, role: str, changes: list[Change]) -> bool:
        if snapshot.role != role or snapshot.tier is None or changes[snapshot.index][1] or snapshot.off:
            return False
        return tier == (0 if role == "prefill" else snapshot.tier)

    def is_awaited(self, snapshot: EngineSnapshot) -> bool:
        if snapshot.role == "prefill":
            return any(self.lines)
        return any(
            line and min(number, len(self.tiers) - 1) == snapshot.tier
            and (snapshot.role == "decode") == (line[0].kv_at is not None)
            for number, line in enumerate(self.lines)
        )  # fmt: skip

    def look_at_last(
        self, tier: int, snapshots: list[EngineSnapshot], now: list[Change], changes: list[Change]
    ) -> None:
        if not snapshots:
            return
        last = min(snapshots, key=lambda snapshot: (len(snapshot.here), -snapshot.index))
        if changes[last.index][0] != now[last.index][0]:
            return
        if not last.here:
            if not self.is_awaited(last):
                changes[last.index] = (None, False)
        elif last.role != "prefill" and not self.lines[tier] and all(r.tier != tier for r in last.here):
            changes[last.index] = (tier, True)
