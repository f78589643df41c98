"""The reference simulator, written from docs/simulation.md alone: slow, and easy to check against that page.

Read it beside that page: the names are the same. Here is what happens in time; packer.py forms the batches.
"""

import math
from dataclasses import dataclass, fields

from .disturbances import Corrector, Drift, Scaled
from .engines import Engine, HostMemory
from .latency import Latency
from .packer import Counts, Formation, Scheduler
from .requests import INF, Request


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
    known = {f.name for f in fields(Request)}
    everyone = [
        Request(index=i, **{key: value for key, value in row.items() if key in known}) for i, row in enumerate(requests)
    ]
    watermark_blocks = math.floor(watermark * total_blocks)
    machines = [
        Engine(i, block_tokens, total_blocks, watermark_blocks, host=host or HostMemory()) for i in range(engines)
    ]
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
        self.device, self.fit, self.drift = device, estimator, drift or Drift()
        self.counts = Counts()
        self.iterations: list[Iteration] = []
        scheduler.prepare(requests, estimator)

    def run(self, until_s: float) -> Log:
        coming = list(self.requests)
        while True:
            now_s = min([engine.end_s for engine in self.engines] + [r.ready_s for r in coming[:1]])
            if now_s == INF or now_s > until_s:
                break
            for engine in self.engines:
                if engine.end_s == now_s:
                    self.end_iteration(engine, now_s)
            while coming and coming[0].ready_s == now_s:
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
            evictions=self.counts.evictions,
            busy_s=[engine.busy_s for engine in self.engines],
        )

    def form_batch(self, engine: Engine, now_s: float) -> Formation:
        estimator = self.fit if engine.corrector is None else Scaled(self.fit, engine.corrector.scale)
        self.scheduler.estimator = estimator
        formation = Formation(engine, self.scheduler, estimator, now_s, self.counts)
        formation.form()
        return formation

    def start_iteration(self, engine: Engine, now_s: float) -> None:
        formed = self.form_batch(engine, now_s)
        shapes = [r.shape(tokens) for r, tokens in formed.batch]
        computing_s = self.device.batch(shapes) * self.drift.factor(now_s)
        engine.batch, engine.start_s, engine.end_s = formed.batch, now_s, now_s + (computing_s + formed.moving_s)
        if engine.corrector is not None:  # its next batch comes after this one, so it may learn now
            engine.corrector.see(computing_s, self.fit.batch(shapes))
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
        engine.iterations += 1
        engine.busy_s += engine.end_s - engine.start_s
        for request, tokens in engine.batch:
            engine.computed_tokens += tokens
            request.computed += tokens
            if request.left > 0:
                continue
            request.emitted += 1
            request.emission_s.append(now_s)
            if now_s < request.deadline(request.emitted):
                request.gain += request.weight_of(request.emitted)
            for group in engine.groups_of(request):
                group.emitted_tokens += 1
            if request.emitted == request.output_tokens:
                request.blocks, request.finish_s = 0, now_s
                engine.queue.remove(request)
                for group in engine.groups_of(request):
                    group.outputs.append(request.output_tokens)
        engine.batch, engine.end_s = [], INF
