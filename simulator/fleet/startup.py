"""Engines that take time to start: off in the common pool, and starting when they move into a tier.

docs/cluster_rules.md, "Starting".
"""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.records.events import note
from servegym.simulator.records.types import POOL, STARTED


@dataclasses.dataclass(frozen=True)
class Startup:
    """Start-up of the engines of a pool. It applies only with a scaler; without one all engines are up.

    seconds: from an engine's move into a tier until it takes requests. started: number of engines, the first ones, that
    serve from the beginning; the others are off. Raises DeploymentError.
    """

    seconds: float
    started: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < np.inf:
            raise DeploymentError(f"start-up: seconds is {self.seconds}; it should be 0 or more, and finite")
        if self.started < 0 or self.started != int(self.started):
            raise DeploymentError(f"start-up: started is {self.started}; it should be a whole number of 0 or more")


@kernel
def show_state(engine, snapshot):
    """Copy the engine's state into the router's record: closed, pending, off, changing."""
    snapshot.changing = int(engine.role_ready_s > 0.0)
    snapshot.closed = max(engine.closed, engine.drained, engine.off, snapshot.changing)
    snapshot.pending = int(
        engine.up == 1 and engine.closed == 1 and engine.drained == 0 and engine.off == 0 and snapshot.changing == 0
    )
    snapshot.off = engine.off


@kernel
def goes_off(engine, tier):
    """Return whether the engine is off in that tier."""
    return tier == POOL and engine.startup_s >= 0.0


@kernel
def load(run, router_state, e, tier, now_s):
    """Switch engine e off if it moves into the common pool, or begin its start-up if it leaves the pool."""
    engine = run.engines[e]
    if goes_off(engine, tier):
        engine.ready_s = np.inf
        run.status[0].router.final_retry = 0  # the next check may start it, for another tier
    elif goes_off(engine, engine.tier):
        engine.ready_s = now_s + engine.startup_s
    else:
        return
    engine.off = int(engine.ready_s > now_s)
    show_state(engine, router_state.known.snapshots[e])
    run.status[0].scaler.next_ready_s = first_ready_s(run.engines)


@kernel
def first_ready_s(engines):
    """Return the next end of a start-up or role change; inf: none."""
    first_s = np.inf
    for e in range(engines.shape[0]):
        if engines[e].off == 1:
            first_s = min(first_s, engines[e].ready_s)
        if engines[e].role_ready_s > 0.0:
            first_s = min(first_s, engines[e].role_ready_s)
    return first_s


@kernel
def end_loading(run, router_state, now_s):
    """End the start-ups and role changes that are over by now."""
    status = run.status[0]
    for e in range(run.engines.shape[0]):
        engine = run.engines[e]
        if engine.off == 1 and engine.ready_s <= now_s:
            engine.off = 0
            show_state(engine, router_state.known.snapshots[e])
            status.router.held_dirty, status.router.held_cursor, status.router.final_retry = 1, 0, 0
            if status.recording:
                note(run, STARTED, e, -1, 0, 0.0)
        if 0.0 < engine.role_ready_s <= now_s:
            engine.role_ready_s = 0.0
            show_state(engine, router_state.known.snapshots[e])
            status.router.held_dirty, status.router.held_cursor, status.router.final_retry = 1, 0, 0
    status.scaler.next_ready_s = first_ready_s(run.engines)
