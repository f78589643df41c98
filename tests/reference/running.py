"""Iterations and tasks of engines, from start to end or suspension: "Preemptible prefill" of docs/simulation.md."""

from typing import TYPE_CHECKING

from servegym.simulator.records.random import uniform

from .disturbances import Scaled
from .engines import Engine
from .latency import Latency
from .log import Iteration, Move
from .packer import Formation
from .requests import INF
from .speculation import expecting
from .work import Operators, Work

if TYPE_CHECKING:
    from .simulation import Simulation

JITTER = 0x6A697474


class Running:
    """The running iterations and tasks of all engines."""

    def __init__(self, sim: "Simulation") -> None:
        self.sim = sim

    def ask(self, engine: Engine) -> None:
        """Prepare to ask the scheduler."""
        kind = engine.kind
        kind.scheduler.estimator = expecting(self.estimator_of(engine))

    @staticmethod
    def estimator_of(engine: Engine) -> Latency:
        fit = engine.kind.fit
        return fit if engine.corrector is None else Scaled(fit, engine.corrector.scale)

    def form_batch(self, engine: Engine, now_s: float) -> Formation:
        self.ask(engine)
        scheduler = engine.kind.scheduler
        formation = Formation(engine, scheduler, self.estimator_of(engine), now_s, self.sim.counts)
        for attempt in engine.moved_in_vain:  # to form this very batch
            formation.evicted += attempt.evicted
            formation.saved += attempt.saved
            formation.loaded += attempt.loaded
        formation.form()
        engine.moved_in_vain = [] if formation.batch else [formation]
        return formation

    def start(self, engine: Engine, now_s: float) -> None:
        """Start an iteration, or the rest of one."""
        engine.rounds += not (engine.just_suspended or engine.asynchronous)
        engine.just_suspended = False
        if engine.asynchronous:
            self.start_ahead(engine, self.form_ahead(engine, now_s), now_s)
            engine.ahead = self.form_ahead(engine, now_s)
            return
        formed = self.form_batch(engine, now_s)
        if formed.waits:
            engine.waits_for_kv = True
            return
        if formed.resumed is not None:
            work = formed.resumed
            engine.suspended.remove(work)
            self.sim.moves.append(Move("resumed", now_s, work.leader.index, engine.index))
        else:
            work = self.work_of(formed, engine, now_s)
        engine.work, work.start_s = work, now_s
        engine.end_s = work.end_s
        self.sim.router_state.report(engine.index, now_s, now_s + max(0.0, work.estimate_s - work.executed_s))
        reached_s = now_s + formed.limits.slice_s
        self.plan_suspension(engine, work.next_boundary(self.jitter_s(engine), lambda time_s: time_s >= reached_s))

    def form_ahead(self, engine: Engine, now_s: float) -> Work | None:
        """Form the next batch, which counts as done from now on, without requests whose last token is under way."""
        everybody = engine.queue
        engine.queue = [r for r in everybody if r.emitted < r.output_tokens]
        engine.unseen = [r for r in everybody if r.emitted >= r.output_tokens]
        engine.rounds += len(engine.queue) > 0
        formed = self.form_batch(engine, now_s) if engine.queue else None
        engine.queue, engine.unseen = everybody, []
        if formed is None or not formed.batch:
            return None
        shapes = [r.shape(tokens) for r, tokens in formed.batch]
        work = Work(
            batch=list(formed.batch),
            computing_s=engine.kind.device.batch(shapes),
            moving_s=0.0,
            estimate_s=formed.estimator.batch(shapes),
            fitted_s=engine.kind.fit.batch(shapes),
            scale=1.0 if engine.corrector is None else engine.corrector.scale,
            iteration=-1,
            boundaries=[],
            start_s=now_s,
        )
        if engine.adapters is not None:  # loaded while another batch may be running, activated when this one starts
            took = engine.adapters.bring_in(r.adapter for r, _ in work.batch)
            engine.loaded_s = max(now_s, engine.loaded_s) + sum(load_s for load_s, _ in took)
            work.loaded_s, work.activate_s = engine.loaded_s, sum(activate_s for _, activate_s in took)
        work.evicted = [r.index for r in formed.evicted]
        for r, tokens in work.batch:
            engine.computed_tokens += tokens
            r.computed += tokens
            r.in_flight += tokens
            if r.left <= 0:
                r.emitted += 1
                r.under_way += 1
                work.emitting.append(r)
        return work

    def start_ahead(self, engine: Engine, work: Work | None, now_s: float) -> None:
        if work is None:
            return
        work.computing_s *= self.sim.drift.factor(now_s)
        work.moving_s = max(0.0, work.loaded_s - now_s) + work.activate_s
        engine.work, work.start_s, work.iteration = work, now_s, len(self.sim.iterations)
        engine.end_s = work.end_s
        engine.iterations += 1
        work.estimate_s += work.moving_s
        self.sim.router_state.report(engine.index, now_s, now_s + work.estimate_s)
        self.sim.iterations.append(
            Iteration(
                engine=engine.index, start_s=now_s, end_s=work.end_s,
                batch=[(r.index, tokens) for r, tokens in work.batch], evicted=work.evicted,
                saved=[0] * len(work.evicted), loaded=[], free_blocks=engine.free_blocks, free_host_blocks=0,
                moving_s=0.0,
            )
        )  # fmt: skip

    def work_of(self, formed: Formation, engine: Engine, now_s: float) -> Work:
        shapes = [r.shape(tokens) for r, tokens in formed.batch]
        if engine.adapters is not None:
            formed.adapters_s = engine.adapters.use(r.adapter for r, _ in formed.batch)
        operators = engine.operators or Operators()
        preemptible = formed.limits.preemptible
        if any(r.decoding for r, _ in formed.batch):
            preemptible = None
        places = [] if preemptible is None else operators.boundaries(shapes, preemptible)
        computing_s = engine.kind.device.batch(shapes) * self.sim.drift.factor(now_s) + operators.check_s * len(places)
        fit = engine.kind.fit
        work = Work(
            batch=list(formed.batch),
            computing_s=computing_s,
            moving_s=formed.moving_s,
            estimate_s=formed.estimator.batch(shapes) + formed.moving_s,
            fitted_s=fit.batch(shapes),
            scale=1.0 if engine.corrector is None else engine.corrector.scale,
            iteration=len(self.sim.iterations),
            boundaries=[(layer + share) * computing_s / operators.layers for layer, share in places],
            start_s=now_s,
        )
        engine.iterations += 1
        if work.is_task:
            for r, _ in work.batch:
                r.task = work
        self.sim.iterations.append(
            Iteration(
                engine=engine.index, start_s=now_s, end_s=work.end_s,
                batch=[(r.index, tokens) for r, tokens in formed.batch], evicted=[r.index for r in formed.evicted],
                saved=formed.saved, loaded=[(r.index, tokens) for r, tokens in formed.loaded],
                free_blocks=engine.free_blocks, free_host_blocks=engine.free_host_blocks, moving_s=formed.moving_s,
            )
        )  # fmt: skip
        return work

    def stop(self, engine: Engine, now_s: float) -> Work | None:
        """Stop the running iteration, if there is one."""
        work = engine.work
        if work is not None:
            engine.busy_s += now_s - work.start_s
            for other in engine.group if engine.in_lockstep else []:
                other.waits_for_kv = False
        engine.work, engine.end_s, engine.suspension_s, engine.round_s = None, INF, INF, None
        return work

    def check_preemption(self, engine: Engine, now_s: float) -> None:
        """Check for preemption after requests have joined the queue while a task runs."""
        self.ask(engine)
        engine.rounds += 1
        decision = engine.kind.scheduler.decide(engine, now_s)
        work = engine.work
        assert work is not None
        if decision.first_of(engine.queue).task is not work:
            boundary = work.next_boundary(self.jitter_s(engine), lambda time_s: time_s >= now_s)
            if boundary is not None:
                self.plan_suspension(engine, boundary)
                engine.round_s = now_s

    def plan_suspension(self, engine: Engine, boundary: tuple[float, float] | None) -> None:
        if boundary is not None:
            engine.boundary_s, engine.suspension_s = boundary

    def jitter_s(self, engine: Engine) -> float:
        operators = engine.operators or Operators()
        return operators.jitter_s * uniform(0, JITTER, len(engine.blocking_s)) if operators.jitter_s > 0 else 0.0

    def suspend(self, engine: Engine, now_s: float) -> None:
        round_s, boundary_s = engine.round_s, engine.boundary_s
        work = self.stop(engine, now_s)
        assert work is not None
        work.suspend(boundary_s)
        engine.just_suspended = True
        if round_s is not None:
            engine.blocking_s.append(now_s - round_s)
        self.sim.moves.append(Move("suspended", now_s, work.leader.index, engine.index))
        engine.suspended.append(work)
        self.sim.router_state.report(engine.index, now_s, now_s)
