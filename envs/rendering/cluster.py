"""The scene of a cluster: its engines, its router and its held queues."""

from __future__ import annotations

import math

import numpy as np

from servegym.envs.rendering import scene as s
from servegym.envs.rendering.requests import longest_prompt, requests_table, rows_of
from servegym.envs.rendering.words import duration, policy_name, remaining, share, tier_names
from servegym.simulator.records.types import HOLD, POOL, REFUSE, ROLES, STAY
from servegym.simulator.runs.simulation import Simulation

LEGEND = [
    (s.DECODES, "decodes, KV in use"),
    (s.PREFILLS, "prefills"),
    (s.MOVING, "KV on its way"),
    (s.LATE, "next token late"),
    (s.FAILED, "failed"),
]
REMARK = "▶ named by the router, or to decide. Batch: requests, estimated time. Known: to the router, prefills/decodes."


def cluster_scene(simulation: Simulation, action: str = "") -> s.Scene:
    """Describe a cluster. action: the last action in words."""
    scenario, engines = simulation.scenario, simulation.arrays.engines
    names = [f"router {policy_name(scenario.router) if scenario.router else 'in turn'}"]
    if scenario.scaler:
        names.append(f"scaler {policy_name(scenario.scaler)}")
    where, queued = queued_of(simulation)
    late, failed = int(queued["late"].sum()), int((engines["up"] == 0).sum())
    held = int(simulation.router_state.known.tiers["waiting"].sum())
    return s.scene(
        simulation,
        f"{len(engines)} engines, {', '.join(names)}",
        action,
        [
            ("next token late, at engines", f"{late:,} of {len(queued):,}", late > 0),
            ("held at the router", f"{held:,}", held > 0),
            ("engines failed", f"{failed:,} of {len(engines):,}", failed > 0),
        ],
        meters=[],
        deadlines=("Time to the next deadline, all requests at engines", queued["remain_s"]),
        bands=[[engines_table(simulation, where, queued)], [deciding_table(simulation), held_table(simulation)]],
        legend=LEGEND,
        remark=REMARK,
    )


def queued_of(simulation: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """The queued requests of all engines: int64[requests], the engine of each; and REQUEST[requests]."""
    queues, lengths = simulation.arrays.queues, simulation.arrays.engines["queue_length"]
    index = np.concatenate([queue[:length] for queue, length in zip(queues, lengths, strict=True)])
    return np.repeat(np.arange(len(lengths)), lengths), rows_of(simulation, index)


def engines_table(simulation: Simulation, where: np.ndarray, queued: np.ndarray) -> s.Table:
    """One row an engine: its state, KV memory, requests, batch, and the number of requests that the router knows of."""
    status, engines = simulation.arrays.status[0], simulation.arrays.engines
    n, known, route = len(engines), simulation.router_state.known, simulation.router_state.route[0]
    counts = {
        kind: np.bincount(where[chosen], minlength=n)
        for kind, chosen in (
            (s.DECODES, ~queued["late"] & queued["decoding"]),
            (s.PREFILLS, ~queued["late"] & ~queued["decoding"]),
            (s.LATE, queued["late"]),
        )
    }
    next_s = np.full(n, np.inf)
    np.minimum.at(next_s, where[~queued["late"]], queued["remain_s"][~queued["late"]])
    # Requests that fill a bar: a power of 2, so that the scale seldom changes between frames.
    scale = 2 ** math.ceil(math.log2(max(16, *sum(counts.values(), np.zeros(n)))))
    named = {int(status.deciding_engine)} - {-1}
    if status.deciding_request >= 0:
        named |= {int(route.engine), int(route.decode_engine)} & set(range(n))

    def batch(e: int) -> tuple[s.Bar | s.Words, str]:
        engine = engines[e]
        if engine.batch_length == 0:
            return s.Words(""), "idle" if engine.up else ""
        ran = min(1.0, s.ran_s(simulation, e) / max(engine.batch_estimate_s, 1e-12))
        return s.Bar([(ran, s.DECODES)]), f"{engine.batch_length}: {duration(engine.batch_estimate_s)}"

    def row(e: int) -> s.Row:
        engine, moves, snapshot = engines[e], simulation.router_state.moves[e], known.snapshots[e]
        new_tier = moves.tier if status.deciding_check else engine.tier
        state = state_of(engine, bool(status.deciding_check) and moves.closed == 1)
        tone = s.PLAIN if state == "up" else s.FAINT
        tier = "-" if engine.tier == POOL else f"{engine.tier}: {duration(known.tiers['tpot_slo_s'][engine.tier])}"
        if new_tier != engine.tier:
            tier = f"{tier_names(engine.tier)} > {tier_names(new_tier)}"
        role = ROLES[engine.role]
        usual = s.Words(str(engine.tier) if engine.tier >= 0 else "" if role == "both" else role, s.FAINT)
        moving = (engine.transfers.coming_blocks + engine.transfers.leaving_blocks) / engine.total_blocks
        used = 1 - engine.free_blocks / engine.total_blocks
        requests = s.Bar([(counts[kind][e] / scale, kind) for kind in (s.DECODES, s.PREFILLS, s.LATE)])
        gone, words = batch(e)
        return s.Row(
            [
                s.Words(str(e), s.STRONG),
                s.Words(role, tone),
                s.Words(state, s.BAD if state == "failed" else tone if state == "up" else s.STRONG),
                s.Words(tier, s.STRONG if new_tier != engine.tier else tone),
                s.Bar([(used - moving, s.DECODES), (moving, s.MOVING)] if engine.up else [(1.0, s.FAILED)]),
                s.Words(share(used) if engine.up else "", tone),
                requests if engine.up else s.Words(""),
                s.Words(str(counts[s.PREFILLS][e]), tone if counts[s.PREFILLS][e] else s.FAINT),
                s.Words(str(counts[s.DECODES][e]), tone if counts[s.DECODES][e] else s.FAINT),
                s.Words(str(counts[s.LATE][e]), s.BAD if counts[s.LATE][e] else s.FAINT),
                s.Words(duration(next_s[e]), tone),
                gone,
                s.Words(words, tone if engine.batch_length else s.FAINT),
                s.Words(f"{snapshot.prefills}/{snapshot.decodes}", tone),
            ],
            s.CHOSEN if e in named else tone,
            e in named,
            usual if state == "up" else s.Words(state, s.BAD),
        )

    columns = [
        s.Column("engine", 40, 6, right=True),
        s.Column("role", 60, 7),
        s.Column("status", 76, 8),
        s.Column("tier", 92, 10),
        s.Column("KV memory", 182, 9),
        s.Column("", 60, 7, right=True),
        s.Column(f"requests (whole bar: {scale})", 232, 0),
        s.Column("pre", 56, 4, right=True),
        s.Column("dec", 56, 4, right=True),
        s.Column("late", 40, 4, right=True),
        s.Column("next due", 78, 8, right=True),
        s.Column("", 72, 0),
        s.Column("batch", 90, 13),
        s.Column("known", 94, 7, right=True),
    ]
    return s.Table("", columns, n, row, 14, 32, tall=36, tiles=True, first=tuple(sorted(named)))


def state_of(engine: np.record, closing: bool) -> str:
    """State of an engine in a word. closing: the scaler has decided to close it."""
    if not engine.up:
        return "failed"
    if engine.drained:
        return "draining" if engine.queue_length + engine.transfers.leaving else "drained"
    return "closed" if engine.closed else "closing" if closing else "up"


def deciding_table(simulation: Simulation) -> s.Table:
    """The request to be routed, and the router's choice."""
    r, route = simulation.arrays.status[0].deciding_request, simulation.router_state.route[0]
    title = "No request is to be routed now"
    if r >= 0:
        title = f"Request {r}; the router says: {base_route(route)}"
    request = rows_of(simulation, np.array([r] if r >= 0 else [], "i8"))
    return requests_table(title, request, longest_prompt(simulation), 3, 1)


def base_route(route: np.record) -> str:
    """Describe the router's choice for the request being routed."""
    if route.engine == HOLD:
        return "hold it"
    if route.engine == REFUSE:
        return "refuse it"
    tier = f" (moved to tier {route.tier})" if route.tier != STAY else ""
    decode = f", then engine {route.decode_engine}" if route.decode_engine >= 0 else ""
    return f"engine {route.engine}{tier}{decode}"


def held_table(simulation: Simulation) -> s.Table:
    """One row for each held queue of the router that is not empty."""
    tiers = simulation.router_state.known.tiers
    names = [*(f"tier {i}" for i in range(len(tiers) - 2)), "best effort", "to be routed now"]
    first = rows_of(simulation, np.where(tiers["waiting"] > 0, tiers["first"], 0))
    lines = np.flatnonzero(tiers["waiting"])

    def row(k: int) -> s.Row:
        remain_s = float(first["remain_s"][lines[k]])
        due = s.Words(remaining(remain_s), s.BAD if remain_s <= 0 else s.PLAIN)
        return s.Row([s.Words(names[lines[k]]), s.Words(f"{tiers['waiting'][lines[k]]:,}"), due])

    columns = [
        s.Column("", 180, 18),
        s.Column("requests", 90, 8, right=True),
        s.Column("first due in", 140, 13, right=True),
    ]
    title = f"Held at the router: {tiers['waiting'].sum():,}"
    return s.Table(title, columns, len(lines), row, 4, 8)
