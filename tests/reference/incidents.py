"""Taking requests back, and incidents of engines: "Taking back" and "Incidents" of docs/cluster_rules.md."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .engines import Engine
from .log import Move
from .requests import INF, Request
from .roles import has_something

if TYPE_CHECKING:
    from .simulation import Simulation


@dataclass(frozen=True)
class Incident:
    time_s: float
    engine: int
    kind: str  # fail, return, drain


def apply_incident(sim: "Simulation", incident: Incident) -> None:
    engine = sim.engines[incident.engine]
    done = {"fail": "failed", "return": "returned", "drain": "drained"}[incident.kind]
    sim.moves.append(Move(done, incident.time_s, -1, engine.index))
    if incident.kind == "fail":
        if engine.up:
            fail(sim, engine, incident.time_s)
    elif incident.kind == "return":
        engine.up, engine.closed, engine.drained = True, False, False
    else:
        engine.drained = True
    sim.routing.changed(engine.index)


def lose(r: Request, engine: Engine) -> None:
    """Drop everything that r has at an engine."""
    engine.lost_tokens += r.computed + (0 if r.borrowed else r.kept)
    engine.release(r)
    r.computed = r.kept = 0
    r.borrowed, r.task = False, None
    engine.kind.scheduler.forget(r)


def take_back(sim: "Simulation", r: Request, engine: Engine, now_s: float) -> None:
    """Send it back to the router; it keeps nothing but its emitted tokens."""
    lose(r, engine)
    engine.recalled += 1
    r.reroutes += 1
    r.kv_at, r.decode_engine, r.admitted = None, None, 0
    sim.moves.append(Move("recalled", now_s, r.index, engine.index))
    sim.routing.just_now.append(r)


def take_back_all(sim: "Simulation", engine: Engine, now_s: float, failed: bool = False) -> None:
    """Take all requests back from an engine. Its iteration and its tasks end without effect."""
    sim.running.stop(engine, now_s)
    engine.suspended, engine.moved_in_vain, engine.waits_for_kv, engine.just_suspended = [], [], False, False
    for r in list(engine.queue):
        engine.queue.remove(r)
        take_back(sim, r, engine, now_s)
    if failed:
        take_back_kv(sim, engine, now_s)
    to_here = [t.request for t in sim.lines.sent if t.destination is engine]
    for r in to_here + [r for r, _ in sim.lines.waiting[engine.index]]:
        sim.lines.take_out(r, engine)
        r.decode_engine = None
        sim.routing.just_now.append(r)
    # What is to leave is still there.
    sim.router_state.clear(engine.index, now_s, engine.free_blocks, engine.emitted_tokens)
    sim.lines.try_freed(sim.engines, sim.engines, now_s)


def take_back_kv(sim: "Simulation", engine: Engine, now_s: float) -> None:
    """Take back the KV at an engine of requests that have left it, wherever they are now."""
    for r in sim.requests:
        if r.kv_at is not engine:
            continue
        for destination in sim.engines:
            if bound_for(sim, r, destination):
                sim.lines.take_out(r, destination)
                destination.waits_for_kv = False
                sim.router_state.gone(r, destination.index)
        for line in [sim.routing.just_now, *sim.routing.lines]:
            if r in line:
                line.remove(r)
        take_back(sim, r, engine, now_s)
    engine.on_their_way = {}


def stop(sim: "Simulation", engine: Engine, now_s: float) -> None:
    """Turn the engine off."""
    sim.moves.append(Move("off", now_s, -1, engine.index))
    engine.is_off, engine.ready_s, sim.stopped = True, INF, True
    if engine.up:
        lose_everything(sim, engine, now_s)


def fail(sim: "Simulation", engine: Engine, now_s: float) -> None:
    engine.failures += 1
    engine.up = False
    lose_everything(sim, engine, now_s)


def lose_everything(sim: "Simulation", engine: Engine, now_s: float) -> None:
    if engine.adapters is not None:
        engine.adapters.forget()
        engine.loaded_s = 0.0
    if engine.store is not None:
        engine.store.empty()
    if len(sim.engines) > 1:
        take_back_all(sim, engine, now_s, failed=True)
        sim.router_state.clear_index(engine.index)
        lose_names(engine)
        return
    sim.running.stop(engine, now_s)
    engine.suspended, engine.moved_in_vain = [], []
    for r in engine.queue:
        lose(r, engine)
    lose_names(engine)
    sim.router_state.forget_reports(engine.index)


def lose_names(engine: Engine) -> None:
    if engine.memory is not None:
        engine.memory.lose_names()


def bound_for(sim: "Simulation", r: Request, engine: Engine) -> bool:
    """Return whether its KV waits to be sent there, or is on its way."""
    waits = any(other is r for other, _ in sim.lines.waiting[engine.index])
    return waits or any(t.request is r and t.destination is engine for t in sim.lines.sent)


def in_service(sim: "Simulation", engine: Engine) -> bool:
    paid = sim.scaler is None or engine.tier is not None
    return engine.up and paid and not (engine.drained and not has_something(sim, engine))
