"""PolyServe's router and scaler (docs/systems/polyserve.md), written from that page alone."""

import math
from dataclasses import dataclass

from .requests import INF, Request
from .routing import Route, Router
from .scalers import Change, Scaler
from .views import View


@dataclass
class Foreseen:
    """Numbers that the router keeps of an engine."""

    version: int | None = None  # of the view, when the next three were worked out
    peak: int = 0  # K
    longer: int = 0  # K'
    load_s: float = 0.0
    clear_s: float = 0.0  # T
    s_per_token: float = 0.0  # S
    low: int = 0


def next_deadline(r: Request) -> float:
    return r.deadline(r.emitted + 1)


class PolyServe(Router):
    def __init__(self, token_budget: int = 1024, output_tokens: int = 256, memory_reserve: float = 0.05) -> None:
        self.budget, self.at_first, self.reserve = token_budget, output_tokens, memory_reserve

    def prepare(self, requests: list[Request], views: list[View]) -> None:
        super().prepare(requests, views)
        self.kept = [Foreseen() for _ in views]

    def route(self, r: Request, taking: list[View], now_s: float) -> Route:
        self.now_s, self.taking = now_s, taking
        finished = [q for view in self.views for q in view.finished]
        self.mean = math.ceil(sum(q.output_tokens for q in finished) / len(finished)) if finished else self.at_first
        pending = [view for view in self.views if view.would_take(r)]
        for view in [*taking, *pending]:
            if self.kept[view.index].version != view.version:
                self.foresee(view)
        by_prefill_engine = any(view.role == "prefill" for view in taking)
        in_reach = any(self.idle_would_do(r, view) for view in taking)
        line = None if in_reach and not by_prefill_engine else len(self.tiers)
        chosen = self.admitting(r) if in_reach else self.best_effort(r)
        if chosen is not None:
            self.note(r, chosen, chosen.tier, chosen.tier)
            return Route(chosen.index)
        joins = [v for v in pending if v.here and min(q.tier for q in v.here) == r.tier]
        view = self.fullest([v for v in joins if in_reach and self.admits(r, v, self.tiers[r.tier])])
        if view is not None:
            self.note(r, view, r.tier, r.tier)
            return Route(view.index, tier=r.tier)
        pool = [view for view in taking if view.tier is None]
        if in_reach and pool:
            view = min(pool, key=lambda view: (len(view.here), view.index))
            self.note(r, view, None, r.tier)
            return Route(view.index, tier=r.tier)
        if all(view.busy_until_s <= now_s for view in self.views):
            view = min(taking, key=lambda view: (len(view.here), view.index))
            self.note(r, view, view.tier, view.tier)
            return Route(view.index)
        return Route(None, line=line)

    # What is foreseen

    def to_come(self, r: Request) -> int:
        return max(1, self.mean - r.emitted)

    def foresee(self, view: View) -> None:
        kept, here = self.kept[view.index], view.here
        ends = [self.to_come(q) for q in here]
        kept.version = view.version
        kept.peak = max([self.kv(here, k) for k in ends], default=0)
        kept.longer = max([self.kv(here, k) + k for k in ends], default=0)
        longest = max((q.context for q in view.record), default=0)
        kept.low = max(0, view.record_tokens - self.budget - (longest if longest > self.budget else 0))
        kept.load_s = self.decoding_s(view, len(here), kept.peak)

    def kv(self, here: list[Request], k: int) -> int:
        return sum(q.context - 1 + k for q in here if self.to_come(q) >= k)

    def decoding_s(self, view: View, n: int, tokens: float) -> float:
        return view.fit.batch([(1, tokens / max(1, n), True)] * n)

    def peak_with(self, r: Request, view: View) -> int:
        return max(self.kept[view.index].longer + r.context - 1, r.context - 1 + self.to_come(r))

    def has_memory(self, r: Request, view: View) -> bool:
        n = len(view.here)
        blocks = self.peak_with(r, view) / view.block_tokens + n + 1
        return n == 0 or blocks <= (1 - self.reserve) * view.total_blocks

    def fits(self, r: Request, view: View, tpot_s: float) -> bool:
        return self.has_memory(r, view) and self.decoding_s(view, len(view.here) + 1, self.peak_with(r, view)) < tpot_s

    def at_its_turn(self, r: Request, view: View, tpot_s: float, n: int, peak: int) -> tuple[float, float]:
        """own, s"""
        c, budget = r.context, self.budget
        if view.role == "prefill":
            return self.alone_s(view, c), self.alone_s(view, max(c, budget)) / max(c, budget)

        def iteration_s(q: int) -> float:
            decodes = [(1, peak / max(1, n), True)] * n
            return view.fit.batch([*decodes, (q, max(0, c - q), False)])

        chunks = [q for q in range(1, budget - n + 1) if iteration_s(q) < tpot_s]
        if not chunks:
            return INF, INF
        q = max(chunks)
        return math.ceil(c / q) * iteration_s(min(q, c)), iteration_s(q) / q

    def alone_s(self, view: View, x: int) -> float:
        q = min(x, self.budget)
        return max(1.0, x / self.budget) * view.fit.batch([(q, (x - q) / 2, False)])

    # Backlog

    def start_s(self, view: View) -> float:
        return max(self.now_s, view.busy_until_s)

    def backlog_s(self, view: View) -> float:
        kept = self.kept[view.index]
        return max(0.0, kept.clear_s - self.start_s(view), kept.low * kept.s_per_token) if view.record else 0.0

    def backlog_tokens(self, view: View) -> float:
        left_s = self.backlog_s(view)
        return min(view.record_tokens, left_s / self.kept[view.index].s_per_token) if left_s > 0 else 0.0

    def note(self, r: Request, view: View, before: int | None, tier: int | None) -> None:
        """r is sent there; the engine was in tier `before`."""
        if view.role == "decode":
            return
        kept, empty = self.kept[view.index], before is None and tier is not None
        tpot_s = self.tiers[r.tier if view.role == "prefill" or before is None else before]
        n, peak = (0, 0) if empty else (len(view.here), kept.peak)
        _, s = self.at_its_turn(r, view, tpot_s, n, peak)
        if s < INF:
            start_s, left = (self.now_s, 0.0) if empty else (self.start_s(view), self.backlog_tokens(view))
            kept.clear_s, kept.s_per_token = start_s + (left + r.context) * s, s

    def in_time(self, r: Request, view: View, own_s: float, s: float) -> bool:
        due_s, start_s = next_deadline(r), self.start_s(view)
        waiting = [q for q in view.record if next_deadline(q) > self.now_s]
        ahead = sum(q.context for q in waiting if next_deadline(q) <= due_s)
        behind = [q for q in waiting if next_deadline(q) > due_s]
        done = max(0.0, ahead + sum(q.context for q in behind) - self.backlog_tokens(view))
        if start_s + own_s + max(0.0, ahead - done) * s >= due_s or start_s + own_s >= due_s:
            return False
        for q in behind:
            until = ahead + sum(other.context for other in behind if next_deadline(other) <= next_deadline(q))
            without_s = start_s + max(0.0, until - done) * s
            if without_s < next_deadline(q) <= without_s + own_s:
                return False
        return True

    # Decisions

    def admits(self, r: Request, view: View, tpot_s: float) -> bool:
        n, start_s = len(view.here), self.start_s(view)
        if view.role != "prefill" and not self.fits(r, view, tpot_s):
            return False
        if view.role == "decode":
            return start_s + self.decoding_s(view, n + 1, self.peak_with(r, view)) < next_deadline(r)
        own_s, s = self.at_its_turn(r, view, tpot_s, n, self.kept[view.index].peak)
        return start_s < next_deadline(r) and own_s < INF and self.in_time(r, view, own_s, s)

    def idle_would_do(self, r: Request, view: View) -> bool:
        tpot_s, due_s = self.tiers[r.tier], next_deadline(r)
        iteration_s = self.decoding_s(view, 1, r.context - 1 + self.to_come(r))
        if view.role == "decode":
            return iteration_s < tpot_s and self.now_s + iteration_s < due_s
        own_s, _ = self.at_its_turn(r, view, tpot_s, 0, 0)
        return (view.role == "prefill" or iteration_s < tpot_s) and self.now_s + own_s < due_s

    def of_tier(self, tier: int, r: Request) -> list[View]:
        return [
            view
            for view in self.taking
            if view.tier is not None and tier == (r.tier if view.role == "prefill" else view.tier)
        ]

    def fullest(self, views: list[View]) -> View | None:
        def load_s(view: View) -> float:
            return self.backlog_s(view) if view.role == "prefill" else self.kept[view.index].load_s

        return min(views, key=lambda view: (-load_s(view), view.index), default=None)

    def admitting(self, r: Request) -> View | None:
        for tier in range(r.tier, -1, -1):
            view = self.fullest([v for v in self.of_tier(tier, r) if self.admits(r, v, self.tiers[tier])])
            if view is not None:
                return view
        return None

    def best_effort(self, r: Request) -> View | None:
        for view in self.taking:
            if view.tier is None and (not view.record if view.role == "prefill" else self.has_memory(r, view)):
                return view
        for tier in range(len(self.tiers) - 1, -1, -1):
            views = [
                view
                for view in self.of_tier(tier, r)
                if (not view.record if view.role == "prefill" else self.fits(r, view, self.tiers[tier]))
            ]
            if views:
                return self.fullest(views)
        return next((view for view in self.taking if not view.here), None)


class PolyServeScaler(Scaler):
    def __init__(self, interval_s: float = 1.0) -> None:
        self.interval_s = interval_s

    def decide(self, now_s: float, now: list[Change]) -> list[Change]:
        changes = list(now)
        for view in self.views:
            tier, closed = now[view.index]
            if not closed:
                continue
            if not view.here:
                changes[view.index] = (None, False)
                continue
            first = min(r.tier for r in view.here)
            if self.lines[first]:
                changes[view.index] = (first, False)
            elif tier is not None and self.lines[tier]:
                changes[view.index] = (tier, False)
        for tier in range(len(self.tiers)):
            for role in ("both", "prefill", "decode"):
                self.look_at_last(tier, [v for v in self.views if self.is_of(v, tier, role, changes)], now, changes)
        return changes

    def is_of(self, view: View, tier: int, role: str, changes: list[Change]) -> bool:
        if view.role != role or view.tier is None or changes[view.index][1]:
            return False
        return tier == (0 if role == "prefill" else view.tier)

    def look_at_last(self, tier: int, views: list[View], now: list[Change], changes: list[Change]) -> None:
        if not views:
            return
        last = min(views, key=lambda view: (len(view.here), -view.index))
        if changes[last.index][0] != now[last.index][0]:
            return
        if not last.here:
            changes[last.index] = (None, False)
        elif last.role != "prefill" and not self.lines[tier] and all(r.tier != tier for r in last.here):
            changes[last.index] = (tier, True)
