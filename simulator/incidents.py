"""Engines that fail, return, are drained, or are moved between tiers; what becomes of their requests, and of the KV
that is on its way. docs/simulation.md, "Taking back", "Scalers", "Incidents"."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.simulator.compilation import kernel
from servegym.simulator.errors import DeploymentError
from servegym.simulator.events import make_due, remove
from servegym.simulator.lines import drop_from, inbox_of, to_router
from servegym.simulator.memory import count_blocks, give_up_kept, release
from servegym.simulator.routing import catch_up, forget, take_off
from servegym.simulator.statistics import clear_state, count_departed
from servegym.simulator.tasks import close_all
from servegym.simulator.timeline import note
from servegym.simulator.transfers import leave_source, start_shared, start_transfer
from servegym.simulator.types import (
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
    POOL,
    RECALLED,
    RETURN,
    RETURNED,
    STOPPED,
)


@dataclasses.dataclass(frozen=True)
class Incident:
    """At time_s the engine fails ("fail"), returns ("return"), or is drained ("drain"). Raises DeploymentError."""

    time_s: float
    engine: int
    kind: str

    def __post_init__(self) -> None:
        if not 0 <= self.time_s < np.inf:
            raise DeploymentError(f"incident: time_s is {self.time_s}; it should be a time of 0 or more")
        if self.kind not in INCIDENTS:
            raise DeploymentError(f"incident: kind is {self.kind!r}; it should be one of {', '.join(INCIDENTS)}")


def to_array(incidents: tuple[Incident, ...], engines: int) -> np.ndarray:
    """INCIDENT[...] in order of time. Raises DeploymentError for an engine that there is not."""
    table = np.zeros(len(incidents), INCIDENT)
    for row, incident in zip(table, sorted(incidents, key=lambda one: one.time_s), strict=True):
        if not 0 <= incident.engine < engines:
            raise DeploymentError(f"incident: engine is {incident.engine}; the deployment has 0 to {engines - 1}")
        row["time_s"], row["engine"] = incident.time_s, incident.engine
        row["kind"] = INCIDENTS.index(incident.kind)
    return table


LINES = (FAILED, RETURNED, DRAINED)


@kernel
def happen(run, books, now_s):
    """The next incident happens."""
    clock, known = run.clock[0], books.known
    incident = books.incidents[clock.next_incident]
    clock.next_incident += 1
    clock.news = 1
    clock.asking = 0
    e = incident.engine
    engine, view = run.engines[e], known.views[e]
    if clock.recording:
        note(run, LINES[incident.kind], e, -1, engine.queue_length, 0.0)
    if incident.kind == FAIL and engine.up == 1:
        fail(run, books, e, now_s)
    elif incident.kind == RETURN:
        if engine.up == 0:
            make_due(run, e)  # where it is the only one, its requests have waited for it
        engine.up, engine.closed, engine.drained = 1, 0, 0
    elif incident.kind == DRAIN:
        engine.drained = 1
    view.up = engine.up
    show_closed(engine, view)
    count_service(clock, books, engine, now_s)


@kernel
def fail(run, books, e, now_s):
    """Engine e loses all it has; its requests go to the router, and so do those whose KV was to come from or to it."""
    engine, clock = run.engines[e], run.clock[0]
    engine.failures += 1
    engine.up = 0
    catch_up(run, books, now_s)  # what has come is known; only what is on its way is lost
    take_back_all(run, books, e, now_s)
    engine.free_host_blocks = engine.host_blocks
    for s in range(engine.store_sets):
        for way in range(books.stores.shape[2]):
            books.stores[e, s, way].used = 0
            books.known.prefixes.sent[e, s, way].used = 0
    if run.engines.shape[0] > 1:
        for r in range(clock.next_arrival):
            if run.outcomes[r].source == e:
                lose_kv(run, books, r, now_s)
        send_back_coming(run, books, e, now_s)
        forget(run, books, e, now_s)
        use_links(run, books, now_s)


@kernel
def move(run, books, e, tier, now_s):
    """Engine e goes into a tier. From the pool it goes empty: best effort gives way."""
    engine, clock = run.engines[e], run.clock[0]
    if engine.tier == tier:
        return
    if clock.recording:
        note(run, MOVED, e, -1, tier, 0.0)
    if engine.tier == POOL and engine.up == 1:
        catch_up(run, books, now_s)
        take_back_all(run, books, e, now_s)
        send_back_coming(run, books, e, now_s)
        forget(run, books, e, now_s)
        use_links(run, books, now_s)
    engine.tier = tier
    books.known.views[e].tier = tier
    clock.news, clock.asking = 1, 0
    count_service(clock, books, engine, now_s)


@kernel
def close(run, books, e, closed):
    """Engine e is closed to new requests by a scaler, or opened, by a router too."""
    engine, clock = run.engines[e], run.clock[0]
    if engine.closed != closed:
        engine.closed = closed
        show_closed(engine, books.known.views[e])
        clock.news, clock.asking = 1, 0


@kernel
def show_closed(engine, view):
    """The router knows at once whether an engine is closed, and whether it could open it."""
    view.closed = max(engine.closed, engine.drained)
    view.pending = int(engine.up == 1 and engine.closed == 1 and engine.drained == 0)


@kernel
def count_service(clock, books, engine, now_s):
    """Bring the time in service up to now, and see whether the engine is in service from here on."""
    if not np.isnan(engine.serving_since_s):
        engine.service_s += now_s - engine.serving_since_s
    empty = engine.queue_length == 0 and engine.leaving == 0 and books.coming[engine.index].waiting == 0
    left = engine.drained == 1 and empty and engine.receiving < 0
    serving = engine.up == 1 and not left and (clock.interval_s == 0.0 or engine.tier != POOL)
    engine.serving_since_s = now_s if serving else np.nan


@kernel
def take_back_all(run, books, e, now_s):
    """Take all requests back from engine e (where it is the only one they stay, without memory)."""
    engine, queue, clock = run.engines[e], run.queues[e], run.clock[0]
    if engine.batch_length > 0:
        engine.busy_s += now_s - engine.batch_start_s
        remove(run.events, clock, EVENT_BATCH_END, e)
        remove(run.events, clock, EVENT_SUSPENSION, e)
        engine.batch_length = 0
        engine.moving_s = 0.0
        engine.owed_s = 0.0
    close_all(run, e)
    engine.scheduled_before = engine.scheduled_tokens
    count_blocks(engine, now_s)
    for place in range(engine.queue_length):
        r = queue[place]
        request, outcome = run.requests[r], run.outcomes[r]
        engine.lost_tokens += request.computed_tokens + (request.kept_tokens if outcome.borrowed == 0 else 0)
        release(request, engine, run.blocks[e])
        give_up_kept(request, outcome, engine)
        request.computed_tokens, request.admitted = 0, 0
        clear_state(run.state, r)
        if run.engines.shape[0] > 1:
            if clock.recording:
                note(run, RECALLED, e, r, 0, 0.0)
            engine.recalled += 1
            outcome.reroutes += 1
            count_departed(run.state, e, request)
            request.engine, outcome.decode_engine, outcome.counted = -1, -1, 0
            to_router(run, books, r)
    if run.engines.shape[0] > 1:
        engine.queue_length = 0
        engine.decode_tokens = 0


@kernel
def send_back_coming(run, books, e, now_s):
    """Requests whose KV was to come to engine e go to the router: the one on its way, then those in line."""
    r = run.engines[e].receiving
    if r >= 0:
        stop_sending(run, books, r, now_s)
        to_router(run, books, r)
    while books.coming[e].waiting > 0:
        r = books.coming[e].first
        stop_sending(run, books, r, now_s)
        to_router(run, books, r)


@kernel
def stop_sending(run, books, r, now_s):
    """The KV of request r, which waits for the link or is on its way, stays where it is."""
    request = run.requests[r]
    e = request.engine
    engine = run.engines[e]
    if engine.receiving == r:
        remove(run.events, run.clock[0], EVENT_KV_ARRIVAL, r)
        count_blocks(engine, now_s)
        engine.coming_blocks -= request.blocks
        release(request, engine, run.blocks[e])
        engine.receiving = -1
        books.link[0].busy = 0
        if run.clock[0].recording:
            note(run, STOPPED, e, r, 0, 0.0)
        if engine.batch_length == 0 and engine.queue_length > 0:
            make_due(run, e)
    else:
        drop_from(books.coming[e], run.outcomes, r)
    request.engine = -1
    run.outcomes[r].decode_engine = -1


@kernel
def lose_kv(run, books, r, now_s):
    """The engine on which request r was prefilled has failed before its KV arrived elsewhere: it starts anew."""
    request, outcome, clock, tiers = run.requests[r], run.outcomes[r], run.clock[0], books.known.tiers
    if request.engine >= 0:
        take_off(books.known, request.engine, r)
        stop_sending(run, books, r, now_s)
    else:  # at the router
        line = 0
        while not is_in(tiers[line], run.outcomes, r):
            line += 1
        drop_from(tiers[line], run.outcomes, r)
        clock.held -= line != inbox_of(tiers)
    source = run.engines[leave_source(run, r, now_s)]
    source.recalled += 1
    source.lost_tokens += request.computed_tokens
    request.computed_tokens, request.admitted = 0, 0
    outcome.reroutes += 1
    outcome.decode_engine, outcome.counted = -1, 0
    clear_state(run.state, r)
    if clock.recording:
        note(run, RECALLED, source.index, r, 0, 0.0)
    to_router(run, books, r)


@kernel
def use_links(run, books, now_s):
    """Links have become free: see what can be sent."""
    if books.link[0].shared:
        start_shared(run, books, now_s)
        return
    for e in range(run.engines.shape[0]):
        start_transfer(run, books, e, now_s)


@kernel
def is_in(line, outcomes, r):
    """Whether request r stands in the line."""
    at = line.first
    for _ in range(line.waiting):
        if at == r:
            return True
        at = outcomes[at].next_in_line
    return False
