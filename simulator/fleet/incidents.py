"""Failures, returns and drains of engines, moves between tiers, and what happens to requests and KV transfers then.

docs/cluster_rules.md, "Taking back", "Scalers", "Incidents".
"""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.features.fleet_hooks import after_abort, after_loss
from servegym.simulator.features.memory_hooks import free_request
from servegym.simulator.features.suspended_batches import close_all
from servegym.simulator.fleet.held_queues import drop_from, to_router, unrouted_queue
from servegym.simulator.fleet.routing import catch_up, clear_snapshot, remove_decode
from servegym.simulator.fleet.startup import goes_off, load, show_state
from servegym.simulator.fleet.transfers import leave_source, start_shared, start_transfer
from servegym.simulator.memory.kv_events import forget_published
from servegym.simulator.memory.kv_memory import count_blocks, drop_offloaded, release
from servegym.simulator.memory.prefixes import forget
from servegym.simulator.records.events import make_due, note, remove
from servegym.simulator.records.named_blocks import lose_names
from servegym.simulator.records.statistics import clear_state, count_departed
from servegym.simulator.records.types import (
    DRAIN,
    DRAINED,
    EVENT_BATCH_END,
    EVENT_KV_ARRIVAL,
    EVENT_SUSPENSION,
    FAIL,
    FAILED,
    INCIDENT,
    INCIDENTS,
    MOVED,
    OFF,
    POOL,
    RECALLED,
    RETURN,
    RETURNED,
    STOPPED,
)


@dataclasses.dataclass(frozen=True)
class Incident:
    """A failure ("fail"), return ("return") or drain ("drain") of an engine at time_s. Raises DeploymentError."""

    time_s: float
    engine: int
    kind: str

    def __post_init__(self) -> None:
        if not 0 <= self.time_s < np.inf:
            raise DeploymentError(f"incident: time_s is {self.time_s}; it should be a time of 0 or more")
        if self.kind not in INCIDENTS:
            raise DeploymentError(f"incident: kind is {self.kind!r}; it should be one of {', '.join(INCIDENTS)}")


def to_array(incidents: tuple[Incident, ...], engines: int) -> np.ndarray:
    """Return INCIDENT[...] in order of time. Raises DeploymentError for an unknown engine."""
    table = np.zeros(len(incidents), INCIDENT)
    for row, incident in zip(table, sorted(incidents, key=lambda one: one.time_s), strict=True):
        if not 0 <= incident.engine < engines:
            raise DeploymentError(f"incident: engine is {incident.engine}; the deployment has 0 to {engines - 1}")
        row["time_s"], row["engine"] = incident.time_s, incident.engine
        row["kind"] = INCIDENTS.index(incident.kind)
    return table


EVENT_OF = (FAILED, RETURNED, DRAINED)  # timeline kinds by kind of incident


@kernel
def apply_incident(run, router_state, now_s):
    """Apply the next incident."""
    status, known = run.status[0], router_state.known
    incident = router_state.incidents[status.next_incident]
    status.next_incident += 1
    status.router.held_dirty = 1
    status.router.held_cursor = 0
    e = incident.engine
    engine, snapshot = run.engines[e], known.snapshots[e]
    if status.recording:
        note(run, EVENT_OF[incident.kind], e, -1, engine.queue_length, 0.0)
    if incident.kind == FAIL and engine.up == 1:
        fail(run, router_state, e, now_s)
    elif incident.kind == RETURN:
        if engine.up == 0:
            make_due(run, e)  # a single engine keeps its requests while it is down
        engine.up, engine.closed, engine.drained = 1, 0, 0
    elif incident.kind == DRAIN:
        engine.drained = 1
    snapshot.up = engine.up
    show_state(engine, snapshot)
    count_service(status, router_state, engine, now_s)


@kernel
def fail(run, router_state, e, now_s):
    """Let engine e fail: it is down and loses all its KV."""
    engine = run.engines[e]
    engine.totals.failures += 1
    engine.up = 0
    lose_all(run, router_state, e, now_s)


@kernel
def lose_all(run, router_state, e, now_s):
    """Take all KV from engine e. Its requests go back to the router, and so do those in transfers from or to it."""
    engine = run.engines[e]
    catch_up(run, router_state, now_s)  # signals that are due still arrive; later ones are lost
    take_back_all(run, router_state, e, now_s)
    engine.free_host_blocks = engine.host_blocks
    forget(router_state.stores[e], engine.store_sets)
    forget(router_state.known.prefixes.sent[e], router_state.known.snapshots[e].index_sets)
    if engine.cache.publishes == 1:
        forget_published(run, router_state, e)
    if run.engines.shape[0] > 1:
        for r in range(run.requests.shape[0]):
            if run.outcomes[r].source == e:
                lose_kv(run, router_state, r, now_s)
        cancel_transfers_to(run, router_state, e, now_s)
        clear_snapshot(run, router_state, e, now_s)
        use_links(run, router_state, now_s)
    if engine.cache.on:
        lose_names(run.cache.places[e], run.cache.blocks[e])
        lose_names(run.cache.stored_places[e], run.cache.stored[e])
    after_loss(run, router_state, e)


@kernel
def move(run, router_state, e, tier, now_s):
    """Move engine e into a tier.

    An engine that leaves the common pool gives all its requests back to the router. In the pool it may be off.
    """
    engine, status = run.engines[e], run.status[0]
    if engine.tier == tier:
        return
    if status.recording:
        note(run, MOVED, e, -1, tier, 0.0)
        if goes_off(engine, tier):
            note(run, OFF, e, -1, engine.queue_length, 0.0)
    if goes_off(engine, tier) and engine.up == 1:
        lose_all(run, router_state, e, now_s)
    elif engine.tier == POOL and engine.up == 1 and engine.off == 0:
        catch_up(run, router_state, now_s)
        take_back_all(run, router_state, e, now_s)
        cancel_transfers_to(run, router_state, e, now_s)
        clear_snapshot(run, router_state, e, now_s)
        use_links(run, router_state, now_s)
    load(run, router_state, e, tier, now_s)
    engine.tier = tier
    router_state.known.snapshots[e].tier = tier
    status.router.held_dirty, status.router.held_cursor = 1, 0
    count_service(status, router_state, engine, now_s)


@kernel
def close(run, router_state, e, closed):
    """Close engine e to new requests (closed 1) or open it (0). Scalers do both; a router may open an engine."""
    engine, status = run.engines[e], run.status[0]
    if engine.closed != closed:
        engine.closed = closed
        show_state(engine, router_state.known.snapshots[e])
        status.router.held_dirty, status.router.held_cursor = 1, 0


@kernel
def has_no_work(router_state, engine):
    """Return whether an engine has no requests and no KV transfers from or to it."""
    left = engine.queue_length + engine.transfers.leaving + router_state.coming[engine.index].waiting
    return left == 0 and engine.transfers.receiving < 0


@kernel
def count_service(status, router_state, engine, now_s):
    """Add the time in service up to now, and set whether the engine is in service from now on."""
    if not np.isnan(engine.totals.serving_since_s):
        engine.totals.service_s += now_s - engine.totals.serving_since_s
    left = engine.drained == 1 and has_no_work(router_state, engine)
    serving = engine.up == 1 and not left and (status.scaler.interval_s == 0.0 or engine.tier != POOL)
    engine.totals.serving_since_s = now_s if serving else np.nan


@kernel
def take_back_all(run, router_state, e, now_s):
    """Take all requests back from engine e. At a single engine they stay in the queue, without blocks."""
    engine, queue, status = run.engines[e], run.queues[e], run.status[0]
    if engine.batch_length > 0:
        engine.busy_s += now_s - engine.batch_start_s
        remove(run.events, status, EVENT_BATCH_END, e)
        remove(run.events, status, EVENT_SUSPENSION, e)
        engine.batch_length = 0
        engine.moving_s = 0.0
        engine.preemption.owed_s = 0.0
        after_abort(run, engine)
    close_all(run, e)
    engine.totals.scheduled_before = engine.scheduled_tokens
    count_blocks(engine, now_s)
    for position in range(engine.queue_length):
        r = queue[position]
        request, outcome = run.requests[r], run.outcomes[r]
        engine.totals.lost_tokens += request.computed_tokens + (
            request.offloaded_tokens if outcome.borrowed == 0 else 0
        )
        free_request(run, e, r)
        drop_offloaded(request, outcome, engine)
        request.computed_tokens, request.admitted = 0, 0
        clear_state(run.state, r)
        if run.engines.shape[0] > 1:
            if status.recording:
                note(run, RECALLED, e, r, 0, 0.0)
            engine.totals.recalled += 1
            outcome.reroutes += 1
            count_departed(run.state, e, request)
            request.engine, outcome.decode_engine, outcome.counted = -1, -1, 0
            to_router(run, router_state, r)
    if run.engines.shape[0] > 1:
        engine.queue_length = 0
        engine.decode_tokens = 0


@kernel
def cancel_transfers_to(run, router_state, e, now_s):
    """Cancel transfers to engine e: the request being sent, then those that wait, go back to the router."""
    r = run.engines[e].transfers.receiving
    if r >= 0:
        cancel_transfer(run, router_state, r, now_s)
        to_router(run, router_state, r)
    while router_state.coming[e].waiting > 0:
        r = router_state.coming[e].first
        cancel_transfer(run, router_state, r, now_s)
        to_router(run, router_state, r)


@kernel
def cancel_transfer(run, router_state, r, now_s):
    """Cancel the transfer of request r, waiting or under way; its KV stays on the prefill engine."""
    request = run.requests[r]
    e = request.engine
    engine = run.engines[e]
    if engine.transfers.receiving == r:
        remove(run.events, run.status[0], EVENT_KV_ARRIVAL, r)
        count_blocks(engine, now_s)
        engine.transfers.coming_blocks -= request.blocks
        release(request, engine)
        engine.transfers.receiving = -1
        router_state.link[0].busy = 0
        if run.status[0].recording:
            note(run, STOPPED, e, r, 0, 0.0)
        if engine.batch_length == 0 and engine.queue_length > 0:
            make_due(run, e)
    else:
        drop_from(router_state.coming[e], run.outcomes, r)
    request.engine = -1
    run.outcomes[r].decode_engine = -1


@kernel
def lose_kv(run, router_state, r, now_s):
    """Let request r start anew, as its prefill engine failed before its KV had arrived elsewhere."""
    request, outcome, status, tiers = run.requests[r], run.outcomes[r], run.status[0], router_state.known.tiers
    if request.engine >= 0:
        remove_decode(router_state.known, request.engine, r)
        cancel_transfer(run, router_state, r, now_s)
    else:  # at the router
        held_queue = 0
        while not is_in(tiers[held_queue], run.outcomes, r):
            held_queue += 1
        drop_from(tiers[held_queue], run.outcomes, r)
        status.router.held -= held_queue != unrouted_queue(tiers)
    source = run.engines[leave_source(run, r, now_s)]
    source.totals.recalled += 1
    source.totals.lost_tokens += request.computed_tokens
    request.computed_tokens, request.admitted = 0, 0
    outcome.reroutes += 1
    outcome.decode_engine, outcome.counted = -1, 0
    clear_state(run.state, r)
    if status.recording:
        note(run, RECALLED, source.index, r, 0, 0.0)
    to_router(run, router_state, r)


@kernel
def use_links(run, router_state, now_s):
    """Start the transfers that free links allow."""
    if router_state.link[0].shared:
        start_shared(run, router_state, now_s)
        return
    for e in range(run.engines.shape[0]):
        start_transfer(run, router_state, e, now_s)


@kernel
def is_in(queue, outcomes, r):
    """Return whether request r is in the queue."""
    at = queue.first
    for _ in range(queue.waiting):
        if at == r:
            return True
        at = outcomes[at].next_in_queue
    return False
