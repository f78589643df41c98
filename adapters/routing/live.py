"""A router policy at work before live engines: what it knows, kept up to date by what happens.

The policy is the compiled function that the simulator calls, and it is handed the same arrays. Here they are filled by
events (a request comes, its first token is out, it has finished, an engine is gone) instead of by a simulated engine.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence

import numpy as np

from servegym.adapters.routing.engines import LiveEngine, drop, estimates_of, known_of, note_chunks, wider
from servegym.adapters.routing.errors import RoutingError
from servegym.adapters.routing.rows import Asked, Rows
from servegym.simulator.policies import Policy
from servegym.simulator.signatures import KINDS, Known
from servegym.simulator.types import HOLD, PLAN, ROUTE, STAY, TIERS

__all__ = ["LiveEngine", "LiveRouter"]

FIRST_CAPACITY = 256  # requests of an engine; doubled whenever it is full


class LiveRouter:
    """Names engines for requests by a router policy.

        router = LiveRouter(policy, engines, tiers=(0.05,))
        r = router.arrive(now_s, Asked(prompt_tokens=300, ttft_slo_s=1.0, tpot_slo_s=0.05))
        e = router.route(now_s, r)         # HOLD: it waits; `ask_again` tells where it goes
        router.token(now_s, r)             # each time a token of it is out
        router.leave(now_s, r, finished=True)

    Times are seconds on one clock that never goes back. r is a row of the table of requests, used again once its
    request has left; a policy that numbers requests by r (round-robin, random) sees rows taken in turn. Not for several
    threads.

    fact: what defaults of parameters depend on (`policies.Fact`); None: the smallest TPOT SLO of `tiers`.
    tiers: TPOT SLOs in s, ascending, at most 8. chunk_tokens: of a chunk of a prompt, where engines have prefix stores.
    rows: of the table at first; doubled when they are all in use.
    Raises RoutingError for a policy that is no router, for no engines, or for more than 4 kinds of estimators.
    """

    def __init__(
        self,
        policy: Policy,
        engines: Sequence[LiveEngine],
        tiers: Sequence[float] = (),
        fact: Callable[[str], float] | None = None,
        chunk_tokens: int = 512,
        rows: int = 2**14,
    ):
        if policy.kind != "router":
            raise RoutingError(f"{policy.label} is a {policy.kind}; requests are routed by a router")
        if not engines:
            raise RoutingError("there are no engines to route requests to")
        kinds = list(dict.fromkeys(engine.estimator for engine in engines))
        if len(kinds) > KINDS:
            raise RoutingError(f"engines have {len(kinds)} estimators; there should be at most {KINDS}")
        if not all(0 < tier < math.inf for tier in tiers) or len(tiers) > TIERS or sorted(set(tiers)) != list(tiers):
            raise RoutingError(f"tiers are {tuple(tiers)}; they should be at most {TIERS} TPOT SLOs in s, ascending")
        self.policy, self.engines = policy, tuple(engines)
        self.rows = Rows(rows)
        self._decide = policy.function.entry  # compiled now, if it is not in the cache
        self._parameters = policy.numbers(fact or self._fact_of(tiers))
        self._state = np.zeros((len(engines), len(policy.state.engine)))
        self._estimates = estimates_of(kinds, engines)
        self._known = known_of(kinds, engines, tiers, chunk_tokens, self.rows.offsets, FIRST_CAPACITY)
        self._views = self._known.views
        self._note_chunks = note_chunks.entry if self._views["store_sets"].any() else None
        self._plan, self._order = np.zeros(FIRST_CAPACITY, PLAN), np.zeros(FIRST_CAPACITY, "i4")
        self._route = np.zeros(1, ROUTE)[0]
        self._lines: list[deque[int]] = [deque() for _ in range(len(self._known.tiers) - 1)]
        self._reported = np.zeros(len(engines), "?")
        self._all_report = False
        self._news = False
        self.held = 0  # requests that wait at the router
        self.fallbacks = 0  # decisions that could not be carried out

    @staticmethod
    def _fact_of(tiers: Sequence[float]) -> Callable[[str], float]:
        def fact(name: str) -> float:
            if name == "min_tpot_slo_s" and tiers:
                return tiers[0]
            raise RoutingError(f"the router's parameters depend on {name}, which is not known here; set them")

        return fact

    @property
    def views(self) -> np.ndarray:
        """VIEW[engines]: what is known of the engines."""
        return self._views

    @property
    def known(self) -> Known:
        """All that the policy is shown, but for the requests themselves."""
        return self._known

    def is_open(self, e: int) -> bool:
        """Whether engine e is sent requests."""
        return bool(self._views["up"][e] == 1 and self._views["closed"][e] == 0)

    # Requests

    def arrive(self, now_s: float, asked: Asked, chunks: Sequence[int] = ()) -> int:
        """A request has come; returns its row. chunks: numbers of its prompt's chunks, from 0, equal for equal prompts
        up to the end of the chunk."""
        r = self.rows.take(now_s, asked, chunks)
        if self._known.prefixes.offsets is not self.rows.offsets:  # the table has grown
            self._known = self._known._replace(prefixes=self._known.prefixes._replace(offsets=self.rows.offsets))
        return r

    def route(self, now_s: float, r: int, exclude: Collection[int] = ()) -> int:
        """The engine that a request goes to, noted as sent there; HOLD: it waits in a line until `ask_again`.

        exclude: engines that it must not go to now.
        """
        excluded = [e for e in exclude if self._views["closed"][e] == 0]
        self._views["closed"][excluded] = 1
        try:
            e = self._ask(now_s, r, None)
        finally:
            self._views["closed"][excluded] = 0
        if e == HOLD:
            self._hold(r, int(self._route.line))
        else:
            self._send(now_s, r, e)
        return e

    def send(self, now_s: float, r: int, e: int) -> None:
        """The request has gone to engine e, whatever the policy said."""
        self.recall(now_s, r)
        if self.rows.line[r] >= 0:
            self._unhold(r)
        self._send(now_s, r, e)

    def ask_again(self, now_s: float) -> list[tuple[int, int]]:
        """If there is news, ask about those that wait, line by line; returns (r, engine) of those that go now."""
        if not (self._news and self.held):
            self._news = False
            return []
        gone = []
        for number, line in enumerate(self._lines):
            while line:
                r = line[0]
                e = self._ask(now_s, r, number)
                if e == HOLD and self._route.line == number:
                    break  # those behind it wait too
                self._unhold(r)
                if e == HOLD:
                    self._hold(r, int(self._route.line))
                else:
                    self._send(now_s, r, e)
                    gone.append((r, e))
        self._news = False
        return gone

    def token(self, now_s: float, r: int, count: int = 1) -> None:
        """So many tokens of the request are out. The first one takes it out of its engine's queue record."""
        rows = self.rows
        e, before = int(rows.engine[r]), int(rows.emitted[r])
        if e < 0 or count < 1:
            return
        rows.emitted[r] = before + count
        if before == 0:
            rows.first_token_s[r] = now_s
        view = self._views[e]
        if before > rows.sent_tokens[r]:
            view.decode_tokens += count
            return
        drop(self._known.records[e], int(view.prefills), r)
        view.prefills -= 1
        view.prefill_tokens -= rows.prompt[r] + before
        view.changed_s = now_s
        view.version += 1
        self._known.running[e, view.decodes] = r
        view.decodes += 1
        view.decode_tokens += rows.prompt[r] + before + count
        self._news = True

    def leave(self, now_s: float, r: int, finished: bool) -> None:
        """The request is gone for good: its answer is complete, or it has failed or been given up."""
        e, view = int(self.rows.engine[r]), None
        if e >= 0:
            view = self._views[e]
            if finished:
                view.finished += 1
                view.finished_tokens += self.rows.emitted[r]
            self._take_off(now_s, r, e)
        elif self.rows.line[r] >= 0:
            self._unhold(r)
        self.rows.give_back(r)

    def recall(self, now_s: float, r: int) -> None:
        """The request has been lost by its engine and is with the router again, to be routed or given up."""
        e = int(self.rows.engine[r])
        if e >= 0:
            self._take_off(now_s, r, e)

    # Engines

    def set_open(self, e: int, up: bool, closed: bool = False) -> None:
        """Whether engine e is there, and whether it takes no more requests. Those it has stay there."""
        view = self._views[e]
        if (view.up, view.closed) != (up, closed):
            view.up, view.closed = up, closed
            self._news = True

    def lose(self, now_s: float, e: int) -> list[int]:
        """Engine e has lost all it had; returns the requests that were there, as sent. They are with the router."""
        view, known = self._views[e], self._known
        if view.up == 0 and view.requests == 0:
            return []  # that is known
        lost = [*known.records[e, : view.prefills], *known.running[e, : view.decodes]]
        lost.sort(key=lambda r: self.rows.sent_number[r])
        for r in lost:
            self.rows.engine[r] = HOLD
        view.up = 0
        view.requests, view.prefills, view.prefill_tokens, view.decodes, view.decode_tokens = 0, 0, 0, 0, 0
        view.version += 1
        view.changed_s = now_s
        view.free_blocks, view.busy_until_s = view.total_blocks, 0.0
        known.prefixes.sent[e]["used"] = 0
        self._news = True
        return [int(r) for r in lost]

    def set_memory(self, e: int, total_blocks: int, block_tokens: int) -> None:
        """Engine e has so much KV memory after all."""
        self._views["total_blocks"][e], self._views["block_tokens"][e] = total_blocks, block_tokens

    def report(self, e: int, free_blocks: int | None = None, busy_until_s: float | None = None) -> None:
        """Engine e says what KV memory is free, and until when its iteration is estimated to run.

        Without such reports free memory is taken to be what contexts of requests with a token leave.
        """
        if free_blocks is not None:
            if not self._reported[e]:
                self._reported[e] = True
                self._all_report = bool(self._reported.all())
            self._views["free_blocks"][e] = free_blocks
        if busy_until_s is not None:
            self._views["busy_until_s"][e] = busy_until_s

    # Within

    def _ask(self, now_s: float, r: int, line: int | None) -> int:
        """What the policy says of request r, which waits in a line or in none; in self._route too."""
        route, views, rows = self._route, self._views, self.rows
        tier = self._tier_of(float(rows.table["tpot_slo_s"][r]))
        route.engine, route.decode_engine, route.tier, route.line = HOLD, -1, STAY, tier
        takers = np.flatnonzero((views["up"] == 1) & (views["closed"] == 0)).tolist()
        if len(takers) == 0:
            if line is not None:
                route.line = line
            return HOLD
        if not self._all_report:
            silent = ~self._reported
            taken = (
                -(-views["decode_tokens"] // views["block_tokens"]) + views["decodes"] // 2
            )  # each has one half empty
            views["free_blocks"][silent] = np.maximum(0, views["total_blocks"] - taken)[silent]
        with rows.chunks_of(r):
            try:
                self._decide(
                    now_s, r, rows.table, self._known_with(rows.chunks), self._state, self._parameters,
                    self._estimates, self._plan, self._order, route,
                )  # fmt: skip
            except Exception:  # whatever a policy does, requests go on
                route.engine, route.line = HOLD, -1
        e = int(route.engine)
        if e == HOLD and 0 <= route.line < len(self._lines):
            return HOLD
        if e not in takers:
            self.fallbacks += 1
            e = int(min(takers, key=lambda taker: views["requests"][taker]))
            route.engine, route.tier = e, STAY
        if 0 <= route.tier < len(self._lines) - 1:
            views["tier"][e] = route.tier  # its requests stay where they are: a live engine gives none back
        return e

    def _known_with(self, chunks: np.ndarray) -> Known:
        prefixes = self._known.prefixes
        if prefixes.chunks is chunks:
            return self._known
        self._known = self._known._replace(prefixes=prefixes._replace(chunks=chunks))
        return self._known

    def _tier_of(self, tpot_slo_s: float) -> int:
        tier = 0
        for t in range(1, len(self._lines) - 1):
            if self._known.tiers["tpot_slo_s"][t] <= tpot_slo_s:
                tier = t
        return tier

    def _send(self, now_s: float, r: int, e: int) -> None:
        rows, view = self.rows, self._views[e]
        if view.requests + 2 > self._known.records.shape[1]:
            self._grow()
        rows.send(r, e)
        self._known.records[e, view.prefills] = r
        view.requests += 1
        view.version += 1
        view.prefills += 1
        view.prefill_tokens += rows.prompt[r] + rows.emitted[r]
        view.changed_s = now_s
        if self._note_chunks is not None and view.store_sets > 0:
            with rows.chunks_of(r):
                prefixes = self._known_with(rows.chunks).prefixes
                view.store_uses = self._note_chunks(
                    prefixes, prefixes.sent[e], int(view.store_sets), r, int(view.store_uses)
                )

    def _take_off(self, now_s: float, r: int, e: int) -> None:
        """Request r is at engine e no more."""
        rows, view = self.rows, self._views[e]
        if rows.emitted[r] > rows.sent_tokens[r]:
            drop(self._known.running[e], int(view.decodes), r)
            view.decodes -= 1
            view.decode_tokens -= rows.prompt[r] + rows.emitted[r]
        else:
            drop(self._known.records[e], int(view.prefills), r)
            view.prefills -= 1
            view.prefill_tokens -= rows.prompt[r] + rows.emitted[r]
            view.changed_s = now_s
        view.requests -= 1
        view.version += 1
        rows.engine[r] = HOLD
        self._news = True

    def _hold(self, r: int, line: int) -> None:
        self._lines[line].append(r)
        self.rows.line[r] = line
        self.held += 1
        self._show(line)

    def _unhold(self, r: int) -> None:
        line = int(self.rows.line[r])
        self._lines[line].remove(r)  # as a rule the first
        self.rows.line[r] = -1
        self.held -= 1
        self._show(line)

    def _show(self, line: int) -> None:
        waiting, tier = self._lines[line], self._known.tiers[line]
        tier.waiting = len(waiting)
        if waiting:
            tier.first, tier.last = waiting[0], waiting[-1]

    def _grow(self) -> None:
        known = self._known
        self._known = known._replace(records=wider(known.records), running=wider(known.running))
        self._plan = np.zeros(2 * len(self._plan), PLAN)
        self._order = np.zeros(2 * len(self._order), "i4")
