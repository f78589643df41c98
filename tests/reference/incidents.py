"""Taking requests back and what happens to engines: "Taking back" and "Incidents" of docs/simulation.md."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .engines import Engine
from .log import Move
from .requests import Request

if TYPE_CHECKING:
    from .simulation import Simulation


@dataclass(frozen=True)
class Incident:
    time_s: float
    engine: int
    kind: str  # fail, return, drain


def happen(sim: "Simulation", incident: Incident) -> None:
    engine = sim.engines[incident.engine]
    if incident.kind == "fail":
        if engine.up:
            fail(sim, engine, incident.time_s)
    elif incident.kind == "return":
        engine.up, engine.closed, engine.drained = True, False, False
    else:
        engine.drained = True
    done = {"fail": "failed", "return": "returned", "drain": "drained"}[incident.kind]
    sim.moves.append(Move(done, incident.time_s, -1, engine.index))
    sim.desk.changed(engine.index)


def lose(r: Request, engine: Engine) -> None:
    """What r has at an engine."""
    engine.lost_tokens += r.computed + (0 if r.borrowed else r.kept)
    r.computed = r.kept = r.blocks = 0
    r.borrowed, r.task = False, None
    engine.kind.scheduler.forget(r)


def take_back(sim: "Simulation", r: Request, engine: Engine, now_s: float) -> None:
    """It goes to the router with nothing but the tokens that are out."""
    lose(r, engine)
    engine.recalled += 1
    r.reroutes += 1
    r.kv_at, r.decode_engine = None, None
    sim.moves.append(Move("recalled", now_s, r.index, engine.index))
    sim.desk.just_now.append(r)


def take_back_all(sim: "Simulation", engine: Engine, now_s: float) -> None:
    """From its queue, in order. Their batches go on without them."""
    for r in list(engine.queue):
        engine.queue.remove(r)
        for work in [*engine.suspended, *([engine.work] if engine.work else [])]:
            work.batch = [(member, tokens) for member, tokens in work.batch if member is not r]
        sim.book.gone(r, engine.index)
        take_back(sim, r, engine, now_s)
    engine.suspended = []  # nobody is left in them
    if engine.work is None:
        sim.lines.try_first([engine], now_s)


def fail(sim: "Simulation", engine: Engine, now_s: float) -> None:
    sim.running.stop(engine, now_s)
    engine.suspended, engine.moved_in_vain, engine.up = [], [], False
    engine.failures += 1
    if engine.store is not None:
        engine.store.empty()
    if len(sim.engines) == 1:
        for r in engine.queue:
            lose(r, engine)
        sim.book.forget_reports(engine.index)
        return
    sim.book.failed(engine.index)
    for r in list(engine.queue):
        engine.queue.remove(r)
        take_back(sim, r, engine, now_s)
    from_here = [r for r in sim.requests if r.kv_at is engine]
    to_here = [r for r in sim.requests if r.kv_at is not None and r not in from_here and bound_for(sim, r, engine)]
    freed = []
    for r in from_here:
        for destination in sim.engines:
            if bound_for(sim, r, destination):
                freed += [destination] * sim.lines.take_out(r, destination)
                destination.waits_for_kv = False
                if destination is not engine:
                    sim.book.gone(r, destination.index)
        for line in [sim.desk.just_now, *sim.desk.lines]:
            if r in line:
                line.remove(r)
        take_back(sim, r, engine, now_s)
    for r in to_here:
        freed += [engine] * sim.lines.take_out(r, engine)
        r.decode_engine = None
        sim.desk.just_now.append(r)
    engine.on_their_way = {}
    sim.lines.try_freed(freed, sim.engines, now_s)


def bound_for(sim: "Simulation", r: Request, engine: Engine) -> bool:
    """Its KV waits to be sent there, or is on its way."""
    waits = any(other is r for other, _ in sim.lines.waiting[engine.index])
    return waits or any(t.request is r and t.destination is engine for t in sim.lines.sent)


def in_service(sim: "Simulation", engine: Engine) -> bool:
    coming = sim.lines.waiting[engine.index] or any(t.destination is engine for t in sim.lines.sent)
    leaving = any(r.kv_at is engine for r in sim.requests)
    nothing_left = not engine.queue and not leaving and not coming
    paid = sim.scaler is None or engine.tier is not None
    return engine.up and paid and not (engine.drained and nothing_left)
