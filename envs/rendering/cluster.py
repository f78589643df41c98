"""Many engines and their router, as pictures show them."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from servegym.envs.rendering.head import Head, head_of
from servegym.envs.rendering.rows import Requests, longest_prompt, rows_of
from servegym.simulator.records.types import HOLD, ROLE_DECODE, ROLES, STAY
from servegym.simulator.runs.simulation import Simulation

NOT_ROUTED, TO_PREFILL, TO_DECODE = "", "prefill", "decode"


@dataclasses.dataclass(frozen=True)
class Engines:
    """Engine by engine. kv_used: share of the KV blocks; kv_moving: of that, of KV on its way here or from here.

    prefills, decodes: requests in the queue whose next token is in time; late: the others. next_s: time to the next
    deadline that can be met; nan: none. ran: share of the running batch that should be done; nan: none runs.
    known_prefills, known_decodes: what the router believes is there. status: up, failed, draining, drained, closed
    or closing (as the scaler has said). tier, new_tier: now, and after what the scaler has said; -1: the common pool.
    chosen: what the router has named the engine for. decides: its batch is the next decision.
    """

    role: list[str]
    status: list[str]
    tier: list[int]
    new_tier: list[int]
    chosen: list[str]
    decides: list[bool]
    kv_used: list[float]
    kv_moving: list[float]
    prefills: list[int]
    decodes: list[int]
    late: list[int]
    next_s: list[float]
    batch_requests: list[int]
    batch_estimate_s: list[float]
    ran: list[float]
    known_prefills: list[int]
    known_decodes: list[int]

    def __len__(self) -> int:
        return len(self.role)

    @functools.cached_property
    def scale(self) -> int:
        """Requests that fill a bar: a power of 2, so that it seldom changes."""
        counts = zip(self.prefills, self.decodes, self.late, strict=True)
        return int(2 ** math.ceil(math.log2(max(16, *(sum(three) for three in counts)))))

    def shown(self, most: int) -> list[int]:
        """Engines for which there is room, those included that a decision is about."""
        everyone = range(len(self))
        first = [e for e in everyone if self.decides[e] or self.chosen[e]][:most]
        return sorted(first + [e for e in everyone if e not in first][: most - len(first)])


@dataclasses.dataclass(frozen=True)
class Line:
    """Requests held at the router. first_remain_s: time to the deadline of the first; nan: none waits."""

    name: str
    waiting: int
    first_remain_s: float


@dataclasses.dataclass(frozen=True)
class ClusterScene:
    """remain_s: float64[requests at engines], time to the next deadline of each.
    deciding: the request being decided, or none; base_route: where the router would send it."""

    head: Head
    name: str
    engines: Engines
    tiers_s: list[float]
    lines: list[Line]
    remain_s: np.ndarray
    deciding: Requests
    base_route: str
    longest_prompt: int


def cluster_scene(simulation: Simulation, action: str = "") -> ClusterScene:
    """action: the last, in words."""
    scenario, status, known = simulation.scenario, simulation.arrays.status[0], simulation.router_state.known
    names = [f"router {scenario.router.name if scenario.router else 'in turn'}"]
    if scenario.scaler:
        names.append(f"scaler {scenario.scaler.name}")
    where, queued = queued_of(simulation)
    deciding = np.array([status.deciding_request] if status.deciding_request >= 0 else [], "i8")
    return ClusterScene(
        head=head_of(simulation, action),
        name=f"{len(simulation.arrays.engines)} engines, {', '.join(names)}",
        engines=engines_of(simulation, where, queued),
        remain_s=queued.remain_s,
        tiers_s=known.tiers["tpot_slo_s"][:-2].tolist(),
        lines=lines_of(simulation),
        deciding=rows_of(simulation, deciding),
        base_route=base_route(simulation) if len(deciding) else "",
        longest_prompt=longest_prompt(simulation),
    )


def queued_of(simulation: Simulation) -> tuple[np.ndarray, Requests]:
    """int64[requests], the engines at which they are; and the requests."""
    queues, lengths = simulation.arrays.queues, simulation.arrays.engines["queue_length"]
    index = np.concatenate([queue[:length] for queue, length in zip(queues, lengths, strict=True)])
    return np.repeat(np.arange(len(lengths)), lengths), rows_of(simulation, index)


def engines_of(simulation: Simulation, where: np.ndarray, queued: Requests) -> Engines:
    arrays, status, engines = simulation.arrays, simulation.arrays.status[0], simulation.arrays.engines
    n = len(engines)

    def count(chosen: np.ndarray) -> list[int]:
        return np.bincount(where[chosen], minlength=n).tolist()

    next_s = np.full(n, np.inf)
    np.minimum.at(next_s, where[~queued.late], queued.remain_s[~queued.late])
    running = engines["batch_length"] > 0
    ran_s, estimate_s = status.now_s - engines["batch_start_s"], engines["batch_estimate_s"]
    for e in np.flatnonzero(running & (engines["running_task"] >= 0)):
        ran_s[e] += arrays.state.tasks[e, engines[e].running_task].executed_s
    scaling, snapshots = bool(status.deciding_check), simulation.router_state.known.snapshots
    moves = simulation.router_state.moves
    return Engines(
        role=[ROLES[role] for role in engines["role"]],
        status=[_status(engine, scaling and move.closed == 1) for engine, move in zip(engines, moves, strict=True)],
        tier=engines["tier"].tolist(),
        new_tier=(moves if scaling else engines)["tier"].tolist(),
        chosen=_chosen(simulation),
        decides=(engines["index"] == status.deciding_engine).tolist(),
        kv_used=(1 - engines["free_blocks"] / engines["total_blocks"]).tolist(),
        kv_moving=(
            (engines["transfers"]["coming_blocks"] + engines["transfers"]["leaving_blocks"]) / engines["total_blocks"]
        ).tolist(),
        prefills=count(~queued.late & ~queued.decoding),
        decodes=count(~queued.late & queued.decoding),
        late=count(queued.late),
        next_s=np.where(np.isinf(next_s), np.nan, next_s).tolist(),
        batch_requests=np.where(running, engines["batch_length"], engines["last_batch_length"]).tolist(),
        batch_estimate_s=estimate_s.tolist(),
        ran=np.where(running, np.minimum(1, ran_s / np.maximum(estimate_s, 1e-12)), np.nan).tolist(),
        known_prefills=snapshots["prefills"].tolist(),
        known_decodes=snapshots["decodes"].tolist(),
    )


def _status(engine: np.record, closing: bool) -> str:
    if not engine.up:
        return "failed"
    if engine.drained:
        return "draining" if engine.queue_length + engine.transfers.leaving else "drained"
    return "closed" if engine.closed else "closing" if closing else "up"


def _chosen(simulation: Simulation) -> list[str]:
    engines, route = simulation.arrays.engines, simulation.router_state.route[0]
    chosen = [NOT_ROUTED] * len(engines)
    if simulation.arrays.status[0].deciding_request >= 0:
        if route.decode_engine >= 0:
            chosen[route.decode_engine] = TO_DECODE
        if route.engine >= 0:
            chosen[route.engine] = TO_DECODE if engines[route.engine].role == ROLE_DECODE else TO_PREFILL
    return chosen


def lines_of(simulation: Simulation) -> list[Line]:
    tiers = simulation.router_state.known.tiers
    names = [*(f"tier {i}" for i in range(len(tiers) - 2)), "best effort", "to be routed now"]
    waiting = tiers["waiting"]
    first = rows_of(simulation, np.where(waiting > 0, tiers["first"], 0))
    return [
        Line(name, int(length), float(remain_s) if length else np.nan)
        for name, length, remain_s in zip(names, waiting, first.remain_s, strict=True)
    ]


def base_route(simulation: Simulation) -> str:
    """What the router has said of the request being decided, in words."""
    route = simulation.router_state.route[0]
    if route.engine == HOLD:
        return "hold it"
    tier = f" (moved to tier {route.tier})" if route.tier != STAY else ""
    decode = f", then engine {route.decode_engine}" if route.decode_engine >= 0 else ""
    return f"engine {route.engine}{tier}{decode}"
