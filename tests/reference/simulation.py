"""The loop over time: "Time" and "Preemptible prefill" of docs/simulation.md, and docs/cluster_rules.md."""

from typing import Any

from .decisions import Counts
from .disturbances import Drift
from .engines import Engine, Kind
from .front import Front
from .front_end import FrontEnd
from .grouped_memory import GroupedMemory
from .incidents import Incident, apply_incident, in_service
from .log import EngineLog, Iteration, Log, Move, StuckError
from .packer import Formation
from .requests import INF, Request
from .roles import change_roles
from .router import RouterAtWork
from .routers import RoundRobin, Router
from .running import Running
from .scalers import Scaler
from .sessions import session_gains
from .snapshots import EngineSnapshot, RouterState
from .speculation import expecting
from .stores import index_of
from .transfers import Lines, Link, Transfer
from .work import Work

MOST_TIERS = 8


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
        scaler: Scaler | None = None,
        incidents: list[Incident] | None = None,
        tiers: list[float] | None = None,
        clients: int | None = None,
        max_concurrency: int | None = None,
        front_end: FrontEnd | None = None,
    ) -> None:
        self.requests, self.engines, self.drift = requests, engines, drift or Drift()
        if all(r.client == 0 for r in requests):  # none is named
            for r in requests:
                r.client = r.priority
        for engine in engines:
            engine.kind = engine.kind or Kind(*kind)
        self.router, self.scaler = router or RoundRobin(), scaler
        self.router_state = RouterState([self.snapshot_of(engine) for engine in engines], signal_delay_s)
        self.lines = Lines(link or Link(), {engine.index: [] for engine in engines}, [])
        self.tiers = tiers or tiers_of(requests)
        for r in requests:
            r.tier = max([tier for tier, tpot_s in enumerate(self.tiers) if tpot_s <= r.tpot_slo_s], default=0)
        self.routing = RouterAtWork(self, len(self.tiers))
        self.running = Running(self)
        self.front_end = front_end or FrontEnd()
        self.front = Front(requests, clients, max_concurrency, self.front_end)
        self.incidents = list(incidents or [])
        self.check_s = INF if scaler is None else scaler.interval_s  # when it is asked next
        self.counts = Counts()
        self.iterations: list[Iteration] = []
        self.moves: list[Move] = []
        self.now_s = 0.0
        self.retried = False  # those that are held have been asked about, and nothing is to happen
        self.stopped = False  # an engine went off at this instant
        for policy in [self.router, *([scaler] if scaler else [])]:
            policy.lines, policy.tiers = self.routing.lines, self.tiers
            policy.prepare(requests, self.router_state.snapshots)
        for engine in engines:
            engine.kind.scheduler.prepare(requests, expecting(engine.kind.fit))
            engine.serving = in_service(self, engine)

    @staticmethod
    def snapshot_of(engine: Engine) -> EngineSnapshot:
        fit = expecting(engine.kind.fit)
        snapshot = EngineSnapshot(engine.index, engine.role, engine.total_blocks, fit, free_blocks=engine.total_blocks)
        snapshot.pool, snapshot.block_tokens, snapshot.tier = engine.pool, engine.block_tokens, engine.tier
        snapshot.closed = snapshot.off = engine.is_off
        snapshot.role_fixed = engine.role_change_s is None
        if engine.role_change_s is not None:
            snapshot.role_change_s = engine.role_change_s
        if engine.adapters is not None:
            snapshot.max_loras, snapshot.max_cpu_loras = engine.adapters.max_loras, engine.adapters.max_cpu_loras
            snapshot.load_s, snapshot.activate_s = engine.adapters.load_s, engine.adapters.activate_s
        if engine.kv_events and engine.memory is not None:
            snapshot.told, snapshot.chunk_tokens = {}, engine.memory.chunk_tokens
            snapshot.finder = engine.memory if isinstance(engine.memory, GroupedMemory) else None
        else:
            snapshot.beginnings = index_of(engine)
        return snapshot

    # In time

    def run(self, until_s: float) -> Log:
        while not all(r.ended for r in self.requests):
            next_s = self.next_s()
            only_checks = next_s == INF
            if only_checks and not self.routing.held:
                break
            if only_checks and self.retried:  # when the router has to see that no engine is busy
                next_s, self.routing.held_dirty = self.believed_s, True
            elif only_checks and self.scaler is None:
                next_s, self.routing.held_dirty = self.now_s, True  # they are asked about a last time
            now_s = min(next_s, self.check_s)
            if now_s > until_s:
                break
            held, self.stopped = self.routing.held, False
            self.instant(now_s)
            waits = only_checks and self.routing.held == held and self.next_s() == INF
            self.retried = waits and not self.stopped
            if self.retried and self.believed_s <= now_s:
                if self.routing.somebody_could_take_a_first():
                    raise StuckError(f"{held} requests are held at {now_s}")
                break
        return self.log()

    @property
    def believed_s(self) -> float:
        """Return when all engines have ended their iterations, as far as the router knows."""
        return max(snapshot.busy_until_s for snapshot in self.router_state.snapshots)

    def next_s(self) -> float:
        """Return the time of the next event, checks of the scaler aside."""
        return min(
            [engine.end_s for engine in self.engines]
            + [engine.suspension_s for engine in self.engines]
            + [transfer.arrival_s for transfer in self.lines.sent]
            + [incident.time_s for incident in self.incidents[:1]]
            + [engine.ready_s for engine in self.engines if engine.is_off]
            + [engine.role_ready_s for engine in self.engines if engine.role_ready_s is not None]
            + [self.front.next_s()]
            + [self.router_state.next_heard_s() if self.routing.held else INF]
        )

    def instant(self, now_s: float) -> None:
        """Do all that happens now, round after round; engines start when nothing else is left."""
        for engine in self.engines:
            engine.service_s += (now_s - self.now_s) * engine.serving
        self.now_s = self.front.now_s = now_s
        while True:
            self.events(now_s)
            self.routing.work(now_s)
            if self.next_s() == now_s:
                continue
            self.starts(now_s)
            if self.next_s() > now_s:
                break
        for engine in self.engines:
            engine.serving = in_service(self, engine)

    def events(self, now_s: float) -> None:
        for engine in self.engines:
            if engine.end_s == now_s:
                self.end_iteration(engine, now_s)
        for engine in self.engines:
            if engine.suspension_s == now_s:
                self.running.suspend(engine, now_s)
        while transfer := self.lines.next_arriving(now_s):
            self.receive(transfer, now_s)
        while self.incidents and self.incidents[0].time_s == now_s:
            apply_incident(self, self.incidents.pop(0))
        self.routing.ready(now_s)
        if self.check_s == now_s:
            self.check_s += self.scaler.interval_s
            self.routing.scale(now_s)
        change_roles(self, now_s)

    def starts(self, now_s: float) -> None:
        for engine in self.engines:
            if engine.asynchronous and engine.work is not None:
                if engine.just_ended:
                    engine.just_ended, engine.ahead = False, self.running.form_ahead(engine, now_s)
            elif engine.work is None and engine.has_to_wait(now_s):
                pass
            elif engine.work is None and engine.ahead is not None:
                self.running.start_ahead(engine, engine.ahead, now_s)
                engine.ahead = self.running.form_ahead(engine, now_s)
            elif engine.work is None:
                if engine.up and engine.queue and not engine.waits_for_kv:
                    self.running.start(engine, now_s)
            elif engine.work.is_task and engine.joined and engine.round_s is None:
                self.running.check_preemption(engine, now_s)
            engine.joined = False
        for engine in self.engines:
            if engine.in_lockstep and engine.work is not None:
                engine.end_s = max(other.end_s for other in engine.group if other.work is not None)

    # Requests on their way

    def send(self, r: Request, engine: int, now_s: float) -> None:
        """Send r to an engine."""
        self.router_state.send(r, engine, now_s)
        if r.kv_at is not None:
            self.lines.join(r, self.engines[engine], now_s)
            return
        self.moves.append(Move("arrival", now_s, r.index, engine))
        self.join(r, self.engines[engine])

    def join(self, r: Request, engine: Engine) -> None:
        engine.queue.append(r)
        engine.joined, engine.waits_for_kv = True, False
        if engine.store is not None and engine.memory is None and r.computed == 0:
            r.kept = min(engine.store.use_leading(engine.store.of_prompt(r)), r.context - 1)
            r.borrowed = r.kept > 0
            r.cached_tokens += r.kept

    def depart(self, r: Request, source: Engine, now_s: float) -> None:
        """Let r leave its prefill engine after its first token. Its blocks stay taken."""
        source.queue.remove(r)
        source.kind.scheduler.forget(r)
        self.moves.append(Move("departed", now_s, r.index, source.index, r.blocks))
        source.on_their_way[r.index], r.blocks, r.kv_at = r.blocks, 0, source
        self.routing.just_now.append(r)

    def receive(self, transfer: Transfer, now_s: float) -> None:
        r = transfer.request
        self.counts.admissions += 1
        r.admitted = self.counts.admissions
        self.moves.append(Move("received", now_s, r.index, transfer.destination.index))
        self.lines.arrive(transfer)
        self.join(r, transfer.destination)
        self.lines.try_freed([transfer.destination], self.engines, now_s)

    # Iterations

    def form_batch(self, engine: Engine, now_s: float) -> Formation:
        return self.running.form_batch(engine, now_s)

    def end_iteration(self, engine: Engine, now_s: float) -> None:
        work = self.running.stop(engine, now_s)
        assert work is not None
        log = self.iterations[work.iteration]
        log.free_blocks_at_end, log.end_s = engine.free_blocks, now_s
        if engine.corrector is not None:
            took_s = now_s - work.start_s - work.moving_s if engine.in_lockstep else work.computing_s
            engine.corrector.see(took_s, work.fitted_s, work.scale)
        if engine.asynchronous:
            self.tokens_come_out(engine, work, now_s)
        for r, tokens in [] if engine.asynchronous else work.batch:
            r.task = None
            engine.computed_tokens += tokens
            drafted = tokens - 1 if r.decoding else 0
            accepted = engine.speculation.accepted(r, drafted)
            engine.drafted_tokens += drafted
            engine.accepted_tokens += accepted
            r.computed += tokens - drafted + accepted
            if engine.memory is not None:
                engine.memory.name(r, r.computed)
            if r.left <= 0:
                for _ in range(1 + accepted):
                    self.emit(r, engine, now_s)
        if engine.kv_events and engine.memory is not None:
            self.router_state.publish(engine.index, now_s, engine.memory)
        self.lines.try_first([engine], now_s)
        context = sum(r.context - r.under_way for r in engine.queue if r.prefilled)
        self.router_state.report(engine.index, now_s, now_s, (engine.free_blocks, context, engine.emitted_tokens))

    def tokens_come_out(self, engine: Engine, work: Work, now_s: float) -> None:
        """Emit the tokens of a batch that has counted as done since it was formed; the one formed meanwhile starts."""
        for r, tokens in work.batch:
            r.in_flight -= tokens
        for r in work.emitting:
            later = r.under_way - 1
            r.emitted, r.under_way = r.emitted - r.under_way, 0
            self.emit(r, engine, now_s)
            r.emitted, r.under_way = r.emitted + later, later
        if engine.in_lockstep:
            return  # the one formed meanwhile starts with those of the others
        engine.ahead, ahead = None, engine.ahead
        self.running.start_ahead(engine, ahead, now_s)
        engine.just_ended = ahead is not None

    def emit(self, r: Request, engine: Engine, now_s: float) -> None:
        is_first = not r.prefilled and engine.role != "decode"  # since it was sent here
        r.emitted += 1
        engine.emitted_tokens += 1
        self.routing.starts = 0
        r.emission_s.append(now_s)
        if engine.asynchronous and engine.memory is not None:
            engine.memory.name(r, min(r.computed, r.context - 1))
        r.set_out_s.append(self.front_end.token(now_s))
        if r.set_out_s[-1] < r.deadline(r.emitted):
            r.gain += r.weight_of(r.emitted)
        for group in engine.groups_of(r):
            group.num_output_tokens += 1
        if is_first:
            self.router_state.first_token(r, engine.index, now_s)
            if engine.store is not None and engine.memory is None:
                engine.store.put(engine.store.of_prompt(r))
        if r.emitted == r.output_tokens:
            engine.release(r)
            r.finish_s = now_s
            engine.queue.remove(r)
            self.router_state.finish(r, engine.index, now_s)
            for group in engine.groups_of(r):
                group.outputs.append(r.output_tokens)
        elif engine.role == "prefill":
            self.depart(r, engine, now_s)

    def log(self) -> Log:
        return Log(
            iterations=self.iterations,
            emission_s=[r.emission_s for r in self.requests],
            finish_s=[r.finish_s for r in self.requests],
            client_s=[[at_s + self.front_end.way_back_s for at_s in r.set_out_s] for r in self.requests],
            ready_s=[r.ready_s if r.index in self.front.sent or r.ended else None for r in self.requests],
            refused_s=[r.refused_s for r in self.requests],
            gains=[r.gain for r in self.requests],
            gain=sum(r.gain for r in self.requests),
            evictions=self.counts.evictions,
            busy_s=[engine.busy_s for engine in self.engines],
            moves=self.moves,
            end_s=self.now_s,
            engines=[
                EngineLog(
                    e.busy_s, e.rounds, len(e.blocking_s), e.blocking_s, e.failures, e.recalled, e.lost_tokens,
                    e.service_s, e.serving, e.memory, e.adapters,
                )
                for e in self.engines
            ],
            cached_tokens=[r.cached_tokens for r in self.requests],
            session_gains=session_gains(self.requests),
            session_tokens=[r.session_tokens for r in self.requests],
            reroutes=[r.reroutes for r in self.requests],
        )  # fmt: skip


def tiers_of(requests: list[Request]) -> list[float]:
    """Return the TPOT SLOs of the workload; of more than 8, those at even places."""
    slos = sorted({r.tpot_slo_s for r in requests})
    if len(slos) <= MOST_TIERS:
        return slos
    return [slos[i * (len(slos) - 1) // (MOST_TIERS - 1)] for i in range(MOST_TIERS)]
