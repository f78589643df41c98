"""The reference simulator, written from docs/simulation.md alone: slow, and easy to check against that page.

Read it beside that page: the names are the same. Here is what happens in time; packer.py forms the batches.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

from .disturbances import Corrector, Drift, Scaled
from .engines import Engine, HostMemory, Kind
from .latency import Latency
from .packer import Counts, Formation, Scheduler
from .requests import INF, Request
from .routers import RoundRobin, Router
from .transfers import Lines, Link, Transfer
from .views import Book, View


@dataclass
class Iteration:
    engine: int
    start_s: float
    end_s: float
    batch: list[tuple[int, int]]  # (request, tokens) in batch order
    evicted: list[int]  # requests in order of eviction, each time it happened
    saved: list[int]  # tokens of each of them that were saved
    loaded: list[tuple[int, int]]  # (request, tokens) in order
    free_blocks: int  # after the batch was formed
    free_host_blocks: int
    moving_s: float  # of its duration
    free_blocks_at_end: int | None = None  # before anybody finishes or leaves; None: it has not ended


@dataclass
class Move:
    """A request goes to an engine, leaves it or (its KV) arrives."""

    kind: str  # arrival, departed, received
    time_s: float
    request: int
    engine: int
    blocks: int = 0  # it had there when it departed


@dataclass
class Log:
    """What happened. Lists go by request index."""

    iterations: list[Iteration]
    emission_s: list[list[float]]  # token by token
    finish_s: list[float | None]  # None: not finished
    gains: list[float]
    gain: float
    evictions: int
    busy_s: list[float]  # of each engine
    moves: list[Move]


@dataclass
class Pool:
    """Of a cluster."""

    engines: int
    block_tokens: int
    total_blocks: int
    watermark: float
    scheduler: Scheduler  # of this pool alone: it may remember what it has seen
    device: Latency
    estimator: Latency
    role: str = "both"  # both, prefill, decode
    host: HostMemory | None = None  # of each engine


def simulate(
    requests: list[dict],
    engines: int,
    block_tokens: int,
    total_blocks: int,  # of each engine
    watermark: float,
    scheduler: Scheduler,
    device: Latency,
    estimator: Latency,
    until_s: float = INF,  # events up to and at this instant are handled, later ones are not
    drift: Drift | None = None,
    correction: tuple[float, int, bool] | None = None,  # theta, window_iterations, compounding
    host: HostMemory | None = None,  # of each engine
) -> Log:
    """Serve `requests` (dicts with the fields of `Request`, in order of arrival; other keys are ignored)."""
    pool = Pool(engines, block_tokens, total_blocks, watermark, scheduler, device, estimator, host=host)
    return simulate_cluster(requests, [pool], until_s=until_s, drift=drift, correction=correction)


def simulate_cluster(
    requests: list[dict],
    pools: list[Pool],
    router: Router | None = None,
    link: Link | None = None,  # None: KV arrives at once
    signal_delay_s: float = 0.0,
    until_s: float = INF,
    drift: Drift | None = None,  # of every device
    correction: tuple[float, int, bool] | None = None,
) -> Log:
    known = {f.name for f in fields(Request)}
    everyone = [
        Request(index=i, **{key: value for key, value in row.items() if key in known}) for i, row in enumerate(requests)
    ]
    machines: list[Engine] = []
    for pool in pools:
        kind = Kind(pool.scheduler, pool.device, pool.estimator)
        for _ in range(pool.engines):
            machine = Engine(
                len(machines), pool.block_tokens, pool.total_blocks, math.floor(pool.watermark * pool.total_blocks)
            )
            machine.role, machine.kind, machine.host = pool.role, kind, pool.host or HostMemory()
            machine.corrector = None if correction is None else Corrector(*correction)
            machines.append(machine)
    return Simulation(everyone, machines, drift=drift, router=router, link=link, signal_delay_s=signal_delay_s).run(
        until_s
    )


class Simulation:
    def __init__(
        self,
        requests: list[Request],
        engines: list[Engine],
        *kind: Any,  # scheduler, device, estimator: of engines that have none of their own
        drift: Drift | None = None,
        router: Router | None = None,
        link: Link | None = None,
        signal_delay_s: float = 0.0,
    ) -> None:
        self.requests, self.engines, self.drift = requests, engines, drift or Drift()
        for engine in engines:
            engine.kind = engine.kind or Kind(*kind)
        self.router = router or RoundRobin()
        views = [View(e.index, e.role, e.total_blocks, e.kind.fit, free_blocks=e.total_blocks) for e in engines]
        self.book = Book(views, signal_delay_s)
        self.lines = Lines(link or Link(), {engine.index: [] for engine in engines}, [])
        self.goes_to: dict[int, int] = {}  # decode engines that the router has named, by request
        self.counts = Counts()
        self.iterations: list[Iteration] = []
        self.moves: list[Move] = []
        self.router.prepare(requests, views)
        for engine in engines:
            engine.kind.scheduler.prepare(requests, engine.kind.fit)

    def run(self, until_s: float) -> Log:
        coming = list(self.requests)
        while True:
            now_s = min(
                [engine.end_s for engine in self.engines]
                + [transfer.arrival_s for transfer in self.lines.sent]
                + [r.ready_s for r in coming[:1]]
            )
            if now_s == INF or now_s > until_s:
                break
            for engine in self.engines:
                if engine.end_s == now_s:
                    self.end_iteration(engine, now_s)
            while transfer := self.lines.next_arriving(now_s):
                self.receive(transfer, now_s)
            while coming and coming[0].ready_s == now_s:
                self.send(coming.pop(0), now_s)
            for engine in self.engines:
                if not engine.batch and engine.queue and not engine.waits_for_kv:
                    self.start_iteration(engine, now_s)
        return Log(
            iterations=self.iterations,
            emission_s=[r.emission_s for r in self.requests],
            finish_s=[r.finish_s for r in self.requests],
            gains=[r.gain for r in self.requests],
            gain=sum(r.gain for r in self.requests),
            evictions=self.counts.evictions,
            busy_s=[engine.busy_s for engine in self.engines],
            moves=self.moves,
        )

    def routed(self, r: Request, now_s: float) -> int:
        """The engine that the router names for r now."""
        taking = self.book.taking(r)
        self.book.take_in(now_s)
        return self.router.choose(r, taking, now_s).index if len(self.engines) > 1 else 0

    def send(self, r: Request, now_s: float) -> None:
        """r is ready."""
        engine = self.routed(r, now_s)
        named = self.router.decode_engine(r)
        if named is not None:
            self.goes_to[r.index] = named
        self.book.send(r, engine, now_s)
        self.engines[engine].queue.append(r)
        self.engines[engine].waits_for_kv = False
        self.moves.append(Move("arrival", now_s, r.index, engine))

    def depart(self, r: Request, source: Engine, now_s: float) -> None:
        """r has its first token on a prefill engine, and more to come."""
        source.queue.remove(r)
        self.moves.append(Move("departed", now_s, r.index, source.index, r.blocks))
        engine = self.goes_to[r.index] if r.index in self.goes_to else self.routed(r, now_s)
        self.book.send(r, engine, now_s)
        self.lines.join(r, source, self.engines[engine], now_s)

    def receive(self, transfer: Transfer, now_s: float) -> None:
        self.counts.admissions += 1
        transfer.request.admitted = self.counts.admissions
        self.moves.append(Move("received", now_s, transfer.request.index, transfer.destination.index))
        self.lines.arrive(transfer, self.engines, now_s)

    def form_batch(self, engine: Engine, now_s: float) -> Formation:
        kind = engine.kind
        estimator = kind.fit if engine.corrector is None else Scaled(kind.fit, engine.corrector.scale)
        kind.scheduler.estimator = estimator
        formation = Formation(engine, kind.scheduler, estimator, now_s, self.counts)
        for attempt in engine.moved_in_vain:  # to form this very batch
            formation.evicted += attempt.evicted
            formation.saved += attempt.saved
            formation.loaded += attempt.loaded
        formation.form()
        engine.moved_in_vain = [formation] if formation.waits else []
        return formation

    def start_iteration(self, engine: Engine, now_s: float) -> None:
        formed = self.form_batch(engine, now_s)
        if formed.waits:
            engine.waits_for_kv = True
            return
        shapes = [r.shape(tokens) for r, tokens in formed.batch]
        computing_s = engine.kind.device.batch(shapes) * self.drift.factor(now_s)
        engine.batch, engine.start_s, engine.end_s = formed.batch, now_s, now_s + (computing_s + formed.moving_s)
        if engine.corrector is not None:  # its next batch comes after this one, so it may learn now
            engine.corrector.see(computing_s, engine.kind.fit.batch(shapes))
        self.iterations.append(
            Iteration(
                engine=engine.index,
                start_s=now_s,
                end_s=engine.end_s,
                batch=[(r.index, tokens) for r, tokens in formed.batch],
                evicted=[r.index for r in formed.evicted],
                saved=formed.saved,
                loaded=[(r.index, tokens) for r, tokens in formed.loaded],
                free_blocks=engine.free_blocks,
                free_host_blocks=engine.free_host_blocks,
                moving_s=formed.moving_s,
            )
        )

    def end_iteration(self, engine: Engine, now_s: float) -> None:
        next(i for i in reversed(self.iterations) if i.engine == engine.index).free_blocks_at_end = engine.free_blocks
        engine.iterations += 1
        engine.busy_s += engine.end_s - engine.start_s
        for request, tokens in engine.batch:
            engine.computed_tokens += tokens
            request.computed += tokens
            if request.left == 0:
                self.emit(request, engine, now_s)
        engine.batch, engine.end_s = [], INF
        self.lines.try_first([engine], now_s)
        context = sum(r.context for r in engine.queue if r.emitted > 0)
        self.book.report(engine.index, engine.free_blocks, context, now_s)

    def emit(self, r: Request, engine: Engine, now_s: float) -> None:
        r.emitted += 1
        r.emission_s.append(now_s)
        if now_s < r.deadline(r.emitted):
            r.gain += r.weight_of(r.emitted)
        for group in engine.groups_of(r):
            group.emitted_tokens += 1
        if r.emitted == 1 and engine.role != "decode":
            self.book.first_token(r, engine.index, now_s)
        if r.emitted == r.output_tokens:
            r.blocks, r.finish_s = 0, now_s
            engine.queue.remove(r)
            self.book.finished(r, engine.index, now_s)
            for group in engine.groups_of(r):
                group.outputs.append(r.output_tokens)
        elif engine.role == "prefill":
            self.depart(r, engine, now_s)
