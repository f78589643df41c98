"""The routers of docs/systems/routers.md, written from that page alone."""

import itertools
import math
from collections.abc import Callable

from servegym.simulator.random import uniform

from .polyserve import PolyServe
from .requests import INF, Request
from .routing import Route as Route
from .routing import Router as Router
from .views import View


def smallest(views: list[View], key: Callable[[View], float]) -> View:
    """Ties: sent a request longest ago, then the lower index."""
    return min(views, key=lambda view: (key(view), view.sent, view.index))


class RoundRobin(Router):
    def choose(self, r: Request, views: list[View], now_s: float) -> View:
        return views[r.index % len(views)]


class Random(Router):
    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def choose(self, r: Request, views: list[View], now_s: float) -> View:
        return views[math.floor(uniform(self.seed, 0x726F7574, r.index) * len(views))]


class MinLoad(Router):
    def choose(self, r: Request, views: list[View], now_s: float) -> View:
        return smallest(views, lambda view: view.requests)


class MinTokens(Router):
    def choose(self, r: Request, views: list[View], now_s: float) -> View:
        return smallest(views, lambda view: view.record_tokens + view.decode_tokens)


class MinCycleTime(Router):
    def __init__(self, token_budget: int = 1024) -> None:
        self.token_budget = token_budget

    def choose(self, r: Request, views: list[View], now_s: float) -> View:
        return smallest(views, lambda view: self.cycle_s(r, view))

    def cycle_s(self, r: Request, view: View) -> float:
        decodes, cached, prefill = view.decodes, view.decode_tokens, view.record_tokens
        if r.kv_at is not None:
            decodes, cached = decodes + 1, cached + r.context
        else:
            prefill += r.prompt_tokens
        batch = [(1, cached / decodes, True) for _ in range(decodes)]
        chunk = min(prefill, max(0, self.token_budget - decodes))
        return view.fit.batch([*batch, (chunk, 0, False)] if chunk > 0 else batch)


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

    def prepare(self, requests: list[Request], views: list[View]) -> None:
        super().prepare(requests, views)
        self.floor_s = 0.9 * min(r.tpot_slo_s for r in requests) if self.eta is None else self.eta

    def choose(self, r: Request, views: list[View], now_s: float) -> View:
        if r.kv_at is not None:
            return smallest(views, lambda view: -view.free_blocks)

        def exec_s(view: View) -> float:
            return self.exec_s(view, view.record, r, now_s)

        def exec_with_s(view: View) -> float:
            return self.exec_s(view, [*view.record, r], r, now_s)

        gains = [
            self.gain(view, [*view.record, r], r, now_s) - self.gain(view, view.record, r, now_s) for view in views
        ]
        most = max(gains)
        if most <= 0:
            return self.random.choose(r, views, now_s) if self.fallback == "random" else smallest(views, exec_s)
        candidates = [view for view, gain in zip(views, gains, strict=True) if gain >= self.alpha * most]
        light = [view for view in candidates if exec_s(view) < self.mu * r.ttft_slo_s]
        not_heavy = [view for view in candidates if not exec_with_s(view) > self.lam * r.ttft_slo_s]
        if light:
            return smallest(light, exec_s)
        if not_heavy:
            return smallest(not_heavy, lambda view: -exec_s(view))
        return smallest(candidates, exec_s)

    def gain(self, view: View, queue: list[Request], r: Request, now_s: float) -> float:
        """G(S), S = `queue`."""
        ends_s = [now_s + self.exec_s(view, queue, r, now_s)] * len(queue)
        if view.role == "prefill":
            orders: dict[str, Callable[[Request], tuple[float, ...]]] = {
                "deadline": lambda q: (q.deadline(1),),
                "arrival": lambda q: (q.arrival_s,),
                "priority": lambda q: (q.priority, q.deadline(1)),
                "slide-batching": lambda q: self.urgent_first(q, view, ends_s[0]),
            }
            queue = sorted(queue, key=orders[self.local_order])
            ends_s = [now_s + self.alone_s(view, queue[: place + 1], now_s) for place in range(len(queue))]
        return sum(q.first_token_gain for q, end_s in zip(queue, ends_s, strict=True) if end_s < q.deadline(1))

    def urgent_first(self, q: Request, view: View, end_s: float) -> tuple[float, float]:
        """`end_s`: when all of S would be done."""
        if q.deadline(1) >= end_s:
            return (1, q.deadline(1))
        exec_s = view.fit.exec(q.prompt_tokens, 0, False)
        return (0, -q.first_token_gain / exec_s if exec_s > 0 else -INF)

    def alone_s(self, view: View, queue: list[Request], now_s: float) -> float:
        """EXEC(S) on a prefill engine: one after the other, each in a batch of its own."""
        t_c = view.fit.batch([])
        total_s = sum(view.fit.exec(q.prompt_tokens, 0, False) + t_c for q in queue)
        return max(0.0, total_s - (now_s - view.changed_s))

    def exec_s(self, view: View, queue: list[Request], r: Request, now_s: float) -> float:
        """EXEC(S), S = `queue`."""
        if view.role == "prefill":
            return self.alone_s(view, queue, now_s)
        budget_s = max(
            min([q.deadline(1) - now_s for q in queue] + [q.tpot_slo_s for q in [*queue, r]]),
            self.floor_s,
        )
        t_c, decodes = view.fit.batch([]), view.decodes
        decode_s = view.fit.exec(1, view.decode_tokens // decodes, True) if decodes else 0.0
        all_s = sum(view.fit.exec(q.prompt_tokens, 0, False) for q in queue)
        spent_s = t_c if self.decodes == "once" else t_c + decodes * decode_s
        if budget_s <= spent_s:
            return INF
        total_s = budget_s / (budget_s - spent_s) * all_s + (decodes * decode_s if self.decodes == "once" else 0.0)
        return max(0.0, total_s - (now_s - view.changed_s))


class Silo(Router):
    def __init__(
        self,
        bound_1_s: float | None = None,  # None: the smallest TPOT SLO of the workload
        bound_2_s: float = 600.0,
        bound_3_s: float = 1800.0,
    ) -> None:
        self.first_s, self.others_s = bound_1_s, [bound_2_s, bound_3_s]

    def prepare(self, requests: list[Request], views: list[View]) -> None:
        super().prepare(requests, views)
        strictest_s = min(r.tpot_slo_s for r in requests)
        self.bounds_s = [strictest_s if self.first_s is None else self.first_s, *self.others_s]

    def choose(self, r: Request, views: list[View], now_s: float) -> View:
        asks_s = r.ttlt_slo_s if r.ttlt_slo_s < INF else r.tpot_slo_s
        kind = sum(bound_s < asks_s for bound_s in self.bounds_s)
        pools = sorted({view.pool for view in views})
        mine = pools[min(kind, len(pools) - 1)]
        return smallest([view for view in views if view.pool == mine], lambda view: 0)


class Llumnix(Router):
    def choose(self, r: Request, views: list[View], now_s: float) -> View:
        return smallest(views, lambda view: -self.freeness(view))

    def freeness(self, view: View) -> float:
        if view.requests == 0:
            return INF
        waiting = sum(math.ceil(q.prompt_tokens / view.block_tokens) for q in view.record)
        return (view.free_blocks - waiting) / view.requests


class PrefixAffinity(Router):
    def prepare(self, requests: list[Request], views: list[View]) -> None:
        super().prepare(requests, views)
        self.work_s = dict.fromkeys((view.index for view in views), 0.0)
        self.of_tokens = dict.fromkeys((view.index for view in views), 0)

    def choose(self, r: Request, views: list[View], now_s: float) -> View:
        if r.kv_at is not None:
            return smallest(views, lambda view: self.batch_s(view, view.decodes + 1, view.decode_tokens + r.context))
        for view in views:
            if self.of_tokens[view.index] > 0:
                self.work_s[view.index] *= view.record_tokens / self.of_tokens[view.index]
            self.of_tokens[view.index] = view.record_tokens
        chosen = smallest(views, lambda view: self.ttft_s(r, view, now_s))
        self.work_s[chosen.index] += self.own_s(r, chosen)
        self.of_tokens[chosen.index] += r.context
        return chosen

    def ttft_s(self, r: Request, view: View, now_s: float) -> float:
        queue_s = max(0.0, self.work_s[view.index] - (now_s - view.changed_s))
        return queue_s + self.own_s(r, view) + self.batch_s(view, view.decodes, view.decode_tokens)

    def own_s(self, r: Request, view: View) -> float:
        cached = 0
        if view.store is not None:
            there = itertools.takewhile(view.store.has, r.chunks)
            cached = min(view.store.chunk_tokens * len(list(there)), r.context - 1)
        return view.fit.exec(r.context - cached, cached, False)

    def batch_s(self, view: View, decodes: int, tokens: int) -> float:
        return view.fit.batch([(1, tokens / decodes, True) for _ in range(decodes)])


ROUTERS: dict[str, type[Router]] = {
    "gorouting": GoRouting,
    "llumnix": Llumnix,
    "min-cycle-time": MinCycleTime,
    "min-load": MinLoad,
    "min-tokens": MinTokens,
    "polyserve": PolyServe,
    "prefix-affinity": PrefixAffinity,
    "random": Random,
    "round-robin": RoundRobin,
    "silo": Silo,
}
