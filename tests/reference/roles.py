"""Engines that change their role: "Changing roles" of docs/cluster_rules.md."""

from typing import TYPE_CHECKING

from .engines import Engine
from .log import Move

if TYPE_CHECKING:
    from .simulation import Simulation


def give_role(sim: "Simulation", engine: Engine, role: str) -> None:
    """Set the role that the scaler has decided for an engine."""
    if role == (engine.next_role or engine.role):
        return
    assert engine.role_change_s is not None and role in ("prefill", "decode")
    engine.next_role = None if role == engine.role else role
    engine.role_ready_s = None
    sim.routing.changed(engine.index)


def change_roles(sim: "Simulation", now_s: float) -> None:
    """Change the roles of engines that drain and have no requests left."""
    for engine in sim.engines:
        if engine.next_role is None or has_something(sim, engine):
            continue
        sim.router_state.hear_all(engine.index, now_s)
        sim.router_state.clear(engine.index, now_s, engine.free_blocks, engine.emitted_tokens)
        engine.role, engine.next_role = engine.next_role, None
        if engine.role_change_s > 0 and now_s + engine.role_change_s > now_s:
            engine.role_ready_s = now_s + engine.role_change_s
        sim.moves.append(Move("role", now_s, -1, engine.index))
        sim.routing.starts += 1
        sim.stopped = True
        sim.routing.changed(engine.index)


def has_something(sim: "Simulation", engine: Engine) -> bool:
    coming = sim.lines.waiting[engine.index] or any(t.destination is engine for t in sim.lines.sent)
    return bool(engine.queue or coming or any(r.kv_at is engine for r in sim.requests))
