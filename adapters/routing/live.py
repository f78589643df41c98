"""Runs a router policy for live engines.

The policy is the compiled function that the simulator calls, with the same arrays. Here they are updated by events (a
request arrives, its first token is out, it has finished, an engine is gone) instead of by simulated engines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from servegym.adapters.routing import kernels
from servegym.adapters.routing.engine_blocks import PublishedBlocks
from servegym.adapters.routing.engines import LiveEngine, estimates_of, known_of, with_adapters, with_index
from servegym.adapters.routing.kv_events import Event
from servegym.adapters.routing.rows import RequestTerms, Rows
from servegym.errors import RoutingError
from servegym.simulator.policies.compile_errors import ensure_compiled
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.fields import longer
from servegym.simulator.records.signatures import KINDS, Known, RouterContext
from servegym.simulator.records.types import HOLD, REFUSE, ROUTE, STAY, TIERS

__all__ = ["LiveEngine", "LiveRouter"]

FIRST_CAPACITY = 256  # requests of an engine; doubled whenever it is full


class LiveRouter:
    """Chooses engines for requests by a router policy.

        router = LiveRouter(policy, engines, tiers=(0.05,))
        r = router.arrive(now_s, RequestTerms(prompt_tokens=300, ttft_slo_s=1.0, tpot_slo_s=0.05))
        e = router.route(now_s, r)         # HOLD: it waits until `ask_again` names its engine. REFUSE: `leave`
        router.token(now_s, r)             # for each output token
        router.leave(now_s, r, finished=True)

    Times are seconds on one clock that never goes back. r is a row of the table of requests, free again once its
    request has left; rows are taken in turn, for policies that number requests by r (round-robin, random). Not for
    several threads.

    fact: returns what defaults of parameters depend on (`policies.Fact`); None: the smallest TPOT SLO of `tiers`.
    tiers: TPOT SLOs in s, ascending, at most 8. chunk_tokens: tokens of a prompt's chunk, where engines cache prefixes.
    rows: initial number of rows of the table, doubled when all are in use.
    Raises RoutingError for a policy that is no router, for no engines, or for more than 4 kinds of estimators.
    """

    def __init__(
        self,
        policy: Policy,
        engines: Sequence[LiveEngine],
        tiers: Sequence[float] = (),
        fact: Callable[[str], float] | None = None,
        chunk_tokens: int = 16,
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
        ensure_compiled(f"router {policy.label}", policy.function)
        for function in kernels.ALL:
            function.entry  # noqa: B018 (compiled now, if it is not in the cache)
        self._decide = policy.function.entry
        self._parameters = policy.numbers(fact or self._fact_of(tiers))
        self._state = np.zeros((len(engines), len(policy.state.engine)))
        self._estimates = estimates_of(kinds, engines)
        self._known = known_of(kinds, engines, tiers, chunk_tokens, self.rows.offsets, FIRST_CAPACITY)
        self._snapshots = self._known.snapshots
        self._scratch = np.zeros((policy.scratch.rows, FIRST_CAPACITY))
        self._route = np.zeros(1, ROUTE)[0]
        self._held_queues = len(self._known.tiers) - 1  # one a tier, and one for best effort
        self._published = PublishedBlocks()
        self._reported = np.zeros(len(engines), "?")
        self._lost = np.zeros(len(engines), "?")  # lost and not up since
        self._all_report = False
        self._dirty = False
        self.held = 0  # number of requests that wait at the router
        self.fallbacks = 0  # number of decisions that could not be carried out

    @staticmethod
    def _fact_of(tiers: Sequence[float]) -> Callable[[str], float]:
        def fact(name: str) -> float:
            if name == "min_tpot_slo_s" and tiers:
                return tiers[0]
            raise RoutingError(f"the router's parameters depend on {name}, which is not known here; set them")

        return fact

    @property
    def snapshots(self) -> np.ndarray:
        """ENGINE_SNAPSHOT[engines]: what is known of the engines."""
        return self._snapshots

    @property
    def known(self) -> Known:
        """All that the policy sees, except the requests themselves."""
        return self._known

    def is_open(self, e: int) -> bool:
        """Whether engine e is sent requests."""
        return bool(self._snapshots["up"][e] == 1 and self._snapshots["closed"][e] == 0)

    # Requests

    def arrive(self, now_s: float, asked: RequestTerms, chunks: Sequence[int] = ()) -> int:
        """Add a request that has arrived. Returns its row.

        chunks: numbers of its prompt's chunks, of 0 or more, equal for prompts that are equal up to the chunk's end.
        Raises RoutingError for a LoRA adapter where no engine serves one.
        """
        if asked.adapter and not self._known.adapters.shape[1]:
            raise RoutingError(f"a request names LoRA adapter {asked.adapter}; give the engines adapters")
        r = self.rows.take(now_s, asked, chunks)
        if self._known.prefixes.offsets is not self.rows.offsets:  # the table has grown
            self._known = self._known._replace(prefixes=self._known.prefixes._replace(offsets=self.rows.offsets))
        return r

    def route(self, now_s: float, r: int, exclude: Collection[int] = ()) -> int:
        """Choose the engine of a request, and count the request as sent there. Returns the engine; HOLD: it is held
        until `ask_again`; REFUSE: it is not to be served.

        exclude: engines that it must not go to now.
        """
        excluded = [e for e in exclude if self._snapshots["closed"][e] == 0]
        self._snapshots["closed"][excluded] = 1
        try:
            e = self._ask(now_s, r, None)
        finally:
            self._snapshots["closed"][excluded] = 0
        if e == HOLD:
            self._hold(r, int(self._route.held_queue))
        elif e != REFUSE:
            self._send(now_s, r, e)
        return e

    def send(self, now_s: float, r: int, e: int) -> None:
        """Count a request as sent to engine e, whatever the policy decided."""
        self.recall(now_s, r)
        if self.rows.held_queue[r] >= 0:
            self._unhold(r)
        self._send(now_s, r, e)

    def ask_again(self, now_s: float) -> list[tuple[int, int]]:
        """Ask the policy about held requests, queue by queue, if anything has changed. Returns (r, engine) of requests
        sent now, and (r, REFUSE) of refused ones.
        """
        if not (self._dirty and self.held):
            self._dirty = False
            return []
        gone = []
        for number in range(self._held_queues):
            held_queue = self._known.tiers[number]
            while held_queue.waiting:
                r = int(held_queue.first)
                e = self._ask(now_s, r, number)
                if e == HOLD and self._route.held_queue == number:
                    break  # those behind it wait too
                self._unhold(r)
                if e == HOLD:
                    self._hold(r, int(self._route.held_queue))
                    continue
                if e != REFUSE:
                    self._send(now_s, r, e)
                gone.append((r, e))
        self._dirty = False
        return gone

    def token(self, now_s: float, r: int, count: int = 1) -> None:
        """Count output tokens of a request. Its first one ends its prefill in the engine's record."""
        rows = self.rows
        if rows.engine[r] < 0 or count < 1:
            return
        if kernels.emit_tokens.entry(self._known, rows.table, rows.outcomes, r, count, now_s):
            self._dirty = True

    def leave(self, now_s: float, r: int, finished: bool) -> None:
        """Remove a request for good: its answer is complete, or it has failed or been given up."""
        if self.rows.engine[r] >= 0:
            self._take_off(now_s, r, finished)
        elif self.rows.held_queue[r] >= 0:
            self._unhold(r)
        self.rows.give_back(r)

    def recall(self, now_s: float, r: int) -> None:
        """Take a request back from the engine that has lost it, to be routed again or given up."""
        if self.rows.engine[r] >= 0:
            self._take_off(now_s, r, finished=False)

    # Engines

    def set_open(self, e: int, up: bool, closed: bool = False) -> None:
        """Set whether engine e is up, and whether it takes no more requests. Requests that it has stay there."""
        snapshot = self._snapshots[e]
        if (snapshot.up, snapshot.closed) != (up, closed):
            snapshot.up, snapshot.closed = up, closed
            self._lost[e] &= not up
            self._dirty = True

    def lose(self, now_s: float, e: int) -> list[int]:
        """Remove all requests from engine e, and what is known of its caches. Returns them, in the order of sending."""
        snapshot, known = self._snapshots[e], self._known
        if self._lost[e] and snapshot.requests == 0:
            return []  # known already
        self._lost[e] = True
        lost = [*known.prefilling[e, : snapshot.prefills], *known.decoding[e, : snapshot.decodes]]
        lost.sort(key=lambda r: self.rows.sent_number[r])
        self.rows.engine[lost] = HOLD
        kernels.lose_engine.entry(known, e, now_s)
        known.adapters[e] = 0
        self._known = self._published.forget(known, e)
        self._dirty = True
        return [int(r) for r in lost]

    def set_memory(self, e: int, total_blocks: int, block_tokens: int) -> None:
        """Set the KV memory of engine e."""
        moves = self._snapshots["total_blocks"][e] != total_blocks
        self._snapshots["total_blocks"][e], self._snapshots["block_tokens"][e] = total_blocks, block_tokens
        if moves:
            self._known = self._published.place(self._known, e)  # names are found by the number of blocks
        sets = self.engines[e].index_sets(total_blocks, block_tokens, self._known.prefixes.chunk_tokens)
        self._known = with_index(self._known, e, sets)

    def report(self, e: int, free_blocks: int | None = None, busy_until_s: float | None = None) -> None:
        """Set the free KV memory of engine e, and the estimated end of its iteration, as the engine reports them.

        Without reports, free memory is estimated: total blocks minus the contexts of decoding requests.
        """
        if free_blocks is not None:
            if not self._reported[e]:
                self._reported[e] = True
                self._all_report = bool(self._reported.all())
            self._snapshots["free_blocks"][e] = free_blocks
        if busy_until_s is not None:
            self._snapshots["busy_until_s"][e] = busy_until_s

    def report_adapters(self, e: int, running: Sequence[int], waiting: Sequence[int], max_loras: int) -> None:
        """Set the LoRA adapters of running and of waiting requests of engine e, and max_loras, as it reports them."""
        self._known = with_adapters(self._known, e, running, waiting, max_loras)
        self._dirty = True

    # KV events

    def note_events(self, e: int, events: Sequence[Event]) -> None:
        """Apply the KV events that engine e has published. From the first event on, the router looks prompts up in
        published blocks, and not in what was sent there.

        Raises RoutingError for events that do not fit the engine's groups; earlier events stay applied.
        """
        self._known = self._published.note(self._known, e, self.engines[e].kv_groups, events)
        self._dirty = True

    def ignore_events(self, e: int) -> None:
        """Look prompts up in what was sent to engine e from now on."""
        self._known = self._published.forget(self._known, e)
        self._snapshots["publishes"][e] = 0

    def take_published(self, e: int, before: LiveRouter) -> None:
        """Take over another router's published blocks of engine e, if both assume the same groups and chunks."""
        alike = self._known.prefixes.chunk_tokens == before.known.prefixes.chunk_tokens
        if alike and self.engines[e].kv_groups == before.engines[e].kv_groups:
            self._known = self._published.take(self._known, e, before._published)
        else:
            self._snapshots["publishes"][e] = 0

    # Within

    def _ask(self, now_s: float, r: int, queue: int | None) -> int:
        """Ask the policy about request r; queue: the held queue in which it waits. Sets self._route too."""
        route, snapshots, rows = self._route, self._snapshots, self.rows
        rows.table[r].session_engine = rows.session_engine(r)
        tier = kernels.tier_of_row.entry(rows.table, self._known.tiers, r)
        route.engine, route.decode_engine, route.tier, route.held_queue = HOLD, -1, STAY, tier
        takers = np.flatnonzero((snapshots["up"] == 1) & (snapshots["closed"] == 0)).tolist()
        if len(takers) == 0:
            if queue is not None:
                route.held_queue = queue
            return HOLD
        if not self._all_report:
            silent = ~self._reported
            # ceil(context tokens / block tokens) + decodes / 2: the last block of each decode is half empty on average
            taken = -(-snapshots["decode_tokens"] // snapshots["block_tokens"]) + snapshots["decodes"] // 2
            snapshots["free_blocks"][silent] = np.maximum(0, snapshots["total_blocks"] - taken)[silent]
        with rows.chunks_of(r):
            try:
                context = RouterContext(
                    now_s, rows.table, self._known_with(rows.chunks), self._state, self._parameters, self._estimates,
                    self._scratch,
                )  # fmt: skip
                self._decide(context, r, route)
            except Exception:  # an error of a policy must not stop requests
                route.engine, route.held_queue = HOLD, -1
        e = int(route.engine)
        if e == HOLD and 0 <= route.held_queue < self._held_queues:
            return HOLD
        if e == REFUSE and rows.emitted[r] == 0:
            return REFUSE
        if e not in takers:
            self.fallbacks += 1
            e = int(min(takers, key=lambda taker: snapshots["requests"][taker]))
            route.engine, route.tier = e, STAY
        if 0 <= route.tier < self._held_queues - 1:
            snapshots["tier"][e] = route.tier  # requests stay, as a live engine gives none back
        return e

    def _known_with(self, chunks: np.ndarray) -> Known:
        prefixes = self._known.prefixes
        if prefixes.chunks is chunks:
            return self._known
        self._known = self._known._replace(prefixes=prefixes._replace(chunks=chunks))
        return self._known

    def _send(self, now_s: float, r: int, e: int) -> None:
        rows = self.rows
        if self._snapshots[e].requests + 2 > self._known.prefilling.shape[1]:
            self._grow()
        rows.count_sending(r, e)
        with rows.chunks_of(r):
            kernels.send_row.entry(self._known_with(rows.chunks), rows.table, rows.outcomes, e, r, now_s)

    def _take_off(self, now_s: float, r: int, finished: bool) -> None:
        """Remove request r from its engine."""
        rows = self.rows
        kernels.leave_engine.entry(self._known, rows.table, rows.outcomes, r, finished, now_s)
        self._dirty = True

    def _hold(self, r: int, held_queue: int) -> None:
        kernels.hold.entry(self._known.tiers, self.rows.outcomes, held_queue, r)
        self.rows.held_queue[r] = held_queue
        self.held += 1

    def _unhold(self, r: int) -> None:
        kernels.drop_held.entry(self._known.tiers, self.rows.outcomes, int(self.rows.held_queue[r]), r)
        self.rows.held_queue[r] = -1
        self.held -= 1

    def _grow(self) -> None:
        known = self._known
        capacity = 2 * known.prefilling.shape[1]
        self._known = longer(known, {"capacity": capacity})
        self._scratch = np.zeros((len(self._scratch), capacity))
