"""The reference simulator, written from docs/simulation.md alone: slow, and easy to check against that page.

Read it beside that page: the names are the same, and comments give the page's section or rule number.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Protocol

INF = math.inf
Rank = tuple[float, ...]


class Latency(Protocol):
    """Of a device model or an estimator; see latency.py."""

    def batch(self, shapes: list[tuple[int, int, bool]]) -> float: ...
    def exec(self, tokens: int, cached: int, decoding: bool) -> float: ...


@dataclass(eq=False, kw_only=True)
class Request:
    index: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    first_token_gain: float  # of token 1
    decode_token_gain: float  # of each later token
    priority: int = 0
    ttft_slo_s: float = 1.0
    tpot_slo_s: float = 0.05
    ttlt_slo_s: float = INF

    emitted: int = 0
    computed: int = 0
    blocks: int = 0
    admitted: int = 0  # number of its last admission, counted over the run; 0: never
    evicted: int = 0  # number of its last eviction, counted over the run; 0: never
    emission_s: list[float] = field(default_factory=list)
    finish_s: float | None = None
    gain: float = 0.0

    # Words
    @property
    def context(self) -> int:
        return self.prompt_tokens + self.emitted

    @property
    def left(self) -> int:
        return self.context - self.computed

    @property
    def decoding(self) -> bool:
        return self.emitted > 0 and self.left == 1

    @property
    def holder(self) -> bool:
        return self.blocks > 0

    def deadline(self, token: int) -> float:
        if self.ttlt_slo_s < INF:
            return self.arrival_s + self.ttlt_slo_s
        return self.arrival_s + self.ttft_slo_s + (token - 1) * self.tpot_slo_s

    def remain(self, now_s: float) -> float:
        return self.deadline(self.emitted + 1) - now_s

    def weight_of(self, token: int) -> float:
        return self.first_token_gain if token == 1 else self.decode_token_gain

    def shape(self, tokens: int) -> tuple[int, int, bool]:
        return tokens, self.computed, self.decoding


@dataclass
class Limits:
    """Limits and what they are by default: an infinite one is absent."""

    token_budget: float = INF
    time_budget_s: float = INF
    sequence_budget: float = INF
    holder_budget: float = INF
    chunk_tokens: float = INF
    smallest_chunk_tokens: int = 1
    whole_prompts: bool = False
    first_decides: bool = False  # FIRST_DECIDES, else mixed phases
    misfit_ends_filling: bool = False  # else what does not fit is passed over
    reserve_context: bool = True
    evict_for_holders: bool = False  # EVICT_FOR_HOLDERS, else EVICT_FOR_DECODES
    watermark_blocks: int | None = None  # None: the engine's


@dataclass
class Decision:
    """What a scheduler says, one entry for each place in the queue."""

    ranks: list[Rank | None]  # None: left out
    limits: Limits
    victim_ranks: list[Rank] | None = None  # None: the ranks


class Scheduler(Protocol):
    """See schedulers.py."""

    estimator: Latency

    def prepare(self, requests: list[Request], estimator: Latency) -> None: ...
    def decide(self, queue: list[Request], now_s: float) -> Decision: ...


Batch = list[tuple[Request, int]]  # requests with their chunks, in batch order


@dataclass
class Engine:
    index: int
    block_tokens: int
    total_blocks: int
    watermark_blocks: int
    queue: list[Request] = field(default_factory=list)  # in order of arrival
    batch: Batch = field(default_factory=list)  # empty: idle
    end_s: float = INF
    corrector: "Corrector | None" = None

    @property
    def holders(self) -> list[Request]:
        return [request for request in self.queue if request.holder]

    @property
    def free_blocks(self) -> int:
        return self.total_blocks - sum(request.blocks for request in self.queue)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)  # rounded up


@dataclass
class Drift:
    """What a device does besides its model (noise is left to the tests of it)."""

    drift_per_s: float = 0.0
    shift_s: float = INF
    shift_ratio: float = 1.0

    def factor(self, now_s: float) -> float:
        return (self.shift_ratio if now_s >= self.shift_s else 1.0) * (1.0 + self.drift_per_s * now_s)


@dataclass
class Scaled:
    """An estimator times the factor that online correction has found."""

    fit: Latency
    scale: float

    def batch(self, shapes: list[tuple[int, int, bool]]) -> float:
        return self.scale * self.fit.batch(shapes)

    def exec(self, tokens: int, cached: int, decoding: bool) -> float:
        return self.scale * self.fit.exec(tokens, cached, decoding)


@dataclass
class Corrector:
    """Online correction of one engine's estimator."""

    theta: float
    window_iterations: int
    compounding: bool
    beta: float = 1.0
    scale: float = 1.0
    ratios: list[float] = field(default_factory=list)

    def see(self, real_s: float, fitted_s: float) -> None:
        if not (fitted_s > 0 and real_s > 0):
            return
        self.ratios.append(real_s / (self.scale * fitted_s if self.compounding else fitted_s))
        if len(self.ratios) == self.window_iterations:
            mean = sum(self.ratios) / len(self.ratios)
            self.beta = self.theta * self.beta + (1 - self.theta) * mean
            self.scale = self.scale * self.beta if self.compounding else self.beta
            self.ratios = []


@dataclass
class Iteration:
    engine: int
    start_s: float
    end_s: float
    batch: list[tuple[int, int]]  # (request, tokens) in batch order
    evicted: list[int]  # requests in order of eviction, each time it happened
    free_blocks: int  # after the batch was formed


@dataclass
class Log:
    """What happened. Lists go by request index."""

    iterations: list[Iteration]
    emission_s: list[list[float]]  # token by token
    finish_s: list[float | None]  # None: not finished
    gains: list[float]
    gain: float
    evictions: int


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
) -> Log:
    """Serve `requests` (dicts with the fields of `Request`, in order of arrival; other keys are ignored)."""
    known = {f.name for f in fields(Request)}
    everyone = [
        Request(index=i, **{key: value for key, value in row.items() if key in known}) for i, row in enumerate(requests)
    ]
    watermark_blocks = math.floor(watermark * total_blocks)
    machines = [Engine(i, block_tokens, total_blocks, watermark_blocks) for i in range(engines)]
    if correction is not None:
        for machine in machines:
            machine.corrector = Corrector(*correction)
    return Simulation(everyone, machines, scheduler, device, estimator, drift).run(until_s)


class Simulation:
    def __init__(
        self,
        requests: list[Request],
        engines: list[Engine],
        scheduler: Scheduler,
        device: Latency,
        estimator: Latency,
        drift: Drift | None = None,
    ) -> None:
        self.requests, self.engines, self.scheduler = requests, engines, scheduler
        self.device, self.fit, self.estimator, self.drift = device, estimator, estimator, drift or Drift()
        self.admissions = self.evictions = 0  # over the run
        self.iterations: list[Iteration] = []
        scheduler.prepare(requests, estimator)

    # Time

    def run(self, until_s: float) -> Log:
        coming = list(self.requests)
        while True:
            now_s = min([engine.end_s for engine in self.engines] + [r.arrival_s for r in coming[:1]])
            if now_s == INF or now_s > until_s:
                break
            for engine in self.engines:
                if engine.end_s == now_s:
                    self.end_iteration(engine, now_s)
            while coming and coming[0].arrival_s == now_s:
                request = coming.pop(0)
                self.engines[request.index % len(self.engines)].queue.append(request)
            for engine in self.engines:
                if not engine.batch and engine.queue:
                    self.start_iteration(engine, now_s)
        return Log(
            iterations=self.iterations,
            emission_s=[r.emission_s for r in self.requests],
            finish_s=[r.finish_s for r in self.requests],
            gains=[r.gain for r in self.requests],
            gain=sum(r.gain for r in self.requests),
            evictions=self.evictions,
        )

    def start_iteration(self, engine: Engine, now_s: float) -> None:
        if engine.corrector is not None:
            self.estimator = self.scheduler.estimator = Scaled(self.fit, engine.corrector.scale)
        engine.batch, evicted = self.form_batch(engine, now_s)
        shapes = [r.shape(tokens) for r, tokens in engine.batch]
        duration_s = self.device.batch(shapes) * self.drift.factor(now_s)
        engine.end_s = now_s + duration_s
        if engine.corrector is not None:  # its next batch comes after this one, so it may learn now
            engine.corrector.see(duration_s, self.fit.batch(shapes))
        chunks = [(r.index, tokens) for r, tokens in engine.batch]
        record = Iteration(engine.index, now_s, engine.end_s, chunks, [r.index for r in evicted], engine.free_blocks)
        self.iterations.append(record)

    def end_iteration(self, engine: Engine, now_s: float) -> None:
        for request, tokens in engine.batch:
            request.computed += tokens
            if request.left > 0:
                continue
            request.emitted += 1
            request.emission_s.append(now_s)
            if now_s < request.deadline(request.emitted):
                request.gain += request.weight_of(request.emitted)
            if request.emitted == request.output_tokens:
                request.blocks, request.finish_s = 0, now_s
                engine.queue.remove(request)
        engine.batch, engine.end_s = [], INF

    # Forming a batch

    def form_batch(self, engine: Engine, now_s: float) -> tuple[Batch, list[Request]]:
        evicted: list[Request] = []
        while True:
            decision = self.scheduler.decide(engine.queue, now_s)
            batch, gave_up_its_own = self.fill(engine, decision, evicted)
            if batch:
                return batch, evicted
            if not gave_up_its_own:
                return self.progress(engine, decision, evicted), evicted

    def in_rank_order(self, engine: Engine, decision: Decision) -> list[Request]:
        """The requests not left out, lowest rank first; ties by place, as sorted() keeps equals in order."""
        ranked = [pair for pair in zip(decision.ranks, engine.queue, strict=True) if pair[0] is not None]
        return [request for _, request in sorted(ranked, key=lambda pair: pair[0])]

    def fill(self, engine: Engine, decision: Decision, evicted: list[Request]) -> tuple[Batch, bool]:
        """Visit the requests in rank order. True beside the batch: one gave up its own memory."""
        limits = decision.limits
        batch: Batch = []
        admission_closed = False
        for r in self.in_rank_order(engine, decision):
            # 1. Full
            if len(batch) >= limits.sequence_budget or tokens_of(batch) >= limits.token_budget:
                break
            # 2. Skipped
            if admission_closed and not r.holder:
                continue
            if limits.first_decides and batch and r.decoding != batch[0][0].decoding:
                continue
            # 3. Chunk
            chunk = self.chunk(r, batch, limits)
            if chunk == 0:  # r does not fit
                if limits.misfit_ends_filling:
                    break
                continue
            # 4. Memory, r not a holder
            if not r.holder:
                if len(engine.holders) >= limits.holder_budget or not self.room(engine, r, chunk, limits):
                    admission_closed = True
                    continue
            # 5. Memory, r a holder
            elif self.lacks(engine, r, chunk) > 0:
                if not r.decoding and not limits.evict_for_holders:
                    continue
                while r.holder and self.lacks(engine, r, chunk) > 0:
                    self.evict(engine, decision, engine.holders, batch, evicted)
                    admission_closed = True
                if not r.holder:  # the victim was r itself
                    return batch, True
            # 6.
            self.join(engine, r, chunk, batch)
        return batch, False

    def chunk(self, r: Request, batch: Batch, limits: Limits) -> int:
        """Rule 3: the tokens r would compute in this batch, 0 if it does not fit."""
        if r.decoding:
            want = 1
        elif limits.whole_prompts:
            want = r.left
            if batch and tokens_of(batch) + want > limits.token_budget:
                return 0
        else:
            want = min(r.left, limits.chunk_tokens, limits.token_budget - tokens_of(batch))
        chunk = self.largest_in_time(r, want, batch, limits)
        if not r.decoding and chunk < want and chunk < limits.smallest_chunk_tokens:
            return 0
        if not r.decoding and limits.whole_prompts and chunk < r.left:
            return 0
        return chunk

    def largest_in_time(self, r: Request, most: int, batch: Batch, limits: Limits) -> int:
        """The largest c <= most with estimate(batch + c tokens of r) <= time_budget_s; 0 if there is none."""
        before = [request.shape(tokens) for request, tokens in batch]
        return largest(most, lambda c: self.estimator.batch([*before, r.shape(c)]) <= limits.time_budget_s)

    def room(self, engine: Engine, r: Request, chunk: int, limits: Limits) -> bool:
        need = engine.blocks_for(r.context if limits.reserve_context else chunk)
        if engine.holders:
            given = limits.watermark_blocks
            need += engine.watermark_blocks if given is None else given
        return engine.free_blocks >= need

    def lacks(self, engine: Engine, r: Request, chunk: int) -> int:
        """Blocks that r needs for its chunk beyond its own and the free ones; 0 or less: it has enough."""
        return engine.blocks_for(r.computed + chunk) - r.blocks - engine.free_blocks

    def evict(
        self, engine: Engine, decision: Decision, holders: list[Request], batch: Batch, evicted: list[Request]
    ) -> None:
        """Of `holders` the one with the highest victim rank (ties: later place) gives up all its blocks."""
        ranks = decision.ranks if decision.victim_ranks is None else decision.victim_ranks

        def last_to_run(request: Request) -> tuple[bool, Rank, int]:
            place = engine.queue.index(request)
            rank = ranks[place]
            return rank is None, rank or (), place  # one that is left out would run after all others

        victim = max(holders, key=last_to_run)
        victim.blocks = victim.computed = 0
        self.evictions += 1
        victim.evicted = self.evictions
        evicted.append(victim)
        batch[:] = [(request, tokens) for request, tokens in batch if request is not victim]

    def join(self, engine: Engine, r: Request, chunk: int, batch: Batch) -> None:
        if not r.holder:
            self.admissions += 1
            r.admitted = self.admissions
        r.blocks = engine.blocks_for(r.computed + chunk)
        batch.append((r, chunk))

    def progress(self, engine: Engine, decision: Decision, evicted: list[Request]) -> Batch:
        """The first-ranked request runs alone with what fits."""
        limits = decision.limits
        r = (self.in_rank_order(engine, decision) or engine.queue)[0]
        if limits.whole_prompts:
            chunk = must_hold = r.left
        else:
            most = min(r.left, limits.chunk_tokens, limits.token_budget)
            chunk = max(self.largest_in_time(r, most, [], limits), 1)
            must_hold = 1
        if self.lacks(engine, r, must_hold) > 0:
            chunk = r.left  # what takes memory for progress emits a token
            while self.lacks(engine, r, chunk) > 0:
                others = [holder for holder in engine.holders if holder is not r]
                if not others:
                    raise ValueError(f"request {r.index} does not fit into an empty engine")
                self.evict(engine, decision, others, [], evicted)
        chunk = min(chunk, (r.blocks + engine.free_blocks) * engine.block_tokens - r.computed)
        batch: Batch = []
        self.join(engine, r, chunk, batch)
        return batch


def tokens_of(batch: Batch) -> int:
    return sum(tokens for _, tokens in batch)


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest c of 1 .. most with fits(c), 0 if there is none; what fits must fit with fewer too."""
    if most >= 1 and fits(most):
        return most
    low, high = 0, most  # low fits (or is 0), high does not
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
