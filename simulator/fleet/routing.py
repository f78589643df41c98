"""What a router knows of each engine: the requests that it sent there, and signals and reports, perhaps late.

It never knows an engine's live state. With a single engine nothing is recorded.
"""

import numpy as np

from servegym.simulator.batching.leaving import drop
from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.features.fleet_hooks import after_sending, after_signals
from servegym.simulator.memory.prefixes import known_tokens, use_chunks
from servegym.simulator.records.events import drop_of_engine
from servegym.simulator.records.signatures import router
from servegym.simulator.records.types import FIRST_TOKEN, LAST_TOKEN, REPORTS, ROLE_DECODE, ROLE_PREFILL


@kernel
def takes(snapshot, request):
    """Return whether an engine takes the request: a decode engine if the request is prefilled, else any other."""
    return snapshot.closed == 0 and could_take(snapshot, request)


@kernel
def could_take(snapshot, request):
    """Return whether an engine takes the request when it is open to requests."""
    return snapshot.up == 1 and (snapshot.role == ROLE_DECODE) == (request.computed_tokens > 0)


@kernel
def may_decode(snapshot):
    """Return whether a router may name an engine for the decode of a request that it sends to prefill."""
    return snapshot.up == 1 and snapshot.closed == 0 and snapshot.role == ROLE_DECODE


@kernel
def would_take(snapshot, request):
    """Return whether a pending engine would take the request once the router opens it."""
    return snapshot.pending == 1 and (snapshot.role == ROLE_DECODE) == (request.computed_tokens > 0)


@kernel
def is_taken(snapshots, request):
    """Return whether any engine takes the request."""
    for e in range(snapshots.shape[0]):  # noqa: SIM110 (kernels have no generators)
        if takes(snapshots[e], request):
            return True
    return False


@kernel
def takers(snapshots, request):
    """Return how many engines take the request."""
    count = 0
    for e in range(snapshots.shape[0]):
        count += takes(snapshots[e], request)
    return count


@kernel
def nth_taker(n, snapshots, request):
    """Return the engine at position n, from 0, among those that take the request; -1: none."""
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], request):
            if n == 0:
                return e
            n -= 1
    return -1


@router
def in_turn(context, request, route):
    """Send request i to engine i mod n among the n that take it: the default router."""
    snapshots, record = context.known.snapshots, context.requests[request]
    route.engine = nth_taker(request % takers(snapshots, record), snapshots, record)


@kernel
def queue_has_space(run, router_state, e):
    """Return whether the queue and the router's lists of engine e have room for one request more (and scratch)."""
    capacity = run.queues.shape[1]
    if run.engines[e].queue_length == capacity:
        return False
    return run.engines.shape[0] == 1 or router_state.known.snapshots[e].requests + 2 <= capacity


@kernel
def send(known, e, r, request, outcome, now_s):
    """Record that the router sends request r to engine e."""
    snapshot = known.snapshots[e]
    snapshot.requests += 1
    snapshot.version += 1
    after_sending(known, e, request)
    if snapshot.role == ROLE_DECODE:
        known.decoding[e, snapshot.decodes] = r
        snapshot.decodes += 1
        return
    outcome.sent_tokens = request.num_output_tokens
    request.sent_cached_tokens = known_tokens(known, request, r, e)
    known.prefilling[e, snapshot.prefills] = r
    snapshot.prefills += 1
    snapshot.prefill_tokens += request.prompt_tokens + request.num_output_tokens
    snapshot.changed_s = now_s
    if snapshot.index_sets > 0:
        prefixes = known.prefixes
        snapshot.index_uses = use_chunks(prefixes, prefixes.sent[e], snapshot.index_sets, r, snapshot.index_uses)


@kernel
def emit_signal(run, router_state, e, r, kind, now_s):
    """Send a signal of a first or last token of request r on engine e to the router."""
    status = run.status[0]
    tokens = run.outcomes[r].sent_tokens if kind == FIRST_TOKEN else run.requests[r].num_output_tokens
    if status.signals.delay_s == 0.0:
        status.router.held_dirty = 1
        apply_signal(router_state.known, e, r, run.requests[r].prompt_tokens, tokens, kind, now_s)
        return
    signal = router_state.signals[status.signals.sent]
    status.signals.sent += 1
    signal.time_s, signal.request, signal.engine, signal.tokens, signal.kind = now_s, r, e, tokens, kind


@kernel
def signals_fit(run, router_state, length):
    """Return whether the signals of an iteration with `length` requests fit."""
    status, capacity = run.status[0], router_state.signals.shape[0]
    if status.signals.delay_s > 0.0 and status.signals.sent + 2 * length > capacity:
        drop_signals(status, router_state.signals, -1)
        return status.signals.sent + 2 * length <= capacity
    return True


@inlined_kernel
def report(run, router_state, e, now_s):
    """Report free blocks, decode tokens and output tokens of engine e at the end of an iteration."""
    engine, snapshot = run.engines[e], router_state.known.snapshots[e]
    if run.status[0].signals.delay_s == 0.0:
        snapshot.free_blocks, snapshot.decode_tokens = engine.free_blocks, engine.decode_tokens
        snapshot.output_tokens, snapshot.busy_until_s = engine.totals.num_output_tokens, now_s
        return
    latest = next_report(router_state.reports[e], run.status[0].signals.delay_s, now_s)
    latest.free_blocks, latest.decode_tokens = engine.free_blocks, engine.decode_tokens
    latest.output_tokens, latest.busy_until_s = engine.totals.num_output_tokens, now_s


@inlined_kernel
def report_busy(run, router_state, e, until_s, now_s):
    """Report the estimated end of the iteration that engine e starts."""
    if run.status[0].signals.delay_s == 0.0:
        router_state.known.snapshots[e].busy_until_s = until_s
        return
    next_report(router_state.reports[e], run.status[0].signals.delay_s, now_s).busy_until_s = until_s


@kernel
def next_report(reports, delay_s, now_s):
    """Return the report of this instant, which begins as a copy of the latest."""
    # It replaces the latest if that is close to the one before. So those kept span the delay: the oldest has arrived.
    if reports[0].time_s < now_s and not reports[0].time_s - reports[1].time_s < delay_s / (REPORTS - 2):
        for k in range(REPORTS - 1, 0, -1):
            older, newer = reports[k], reports[k - 1]
            older.time_s, older.busy_until_s = newer.time_s, newer.busy_until_s
            older.free_blocks, older.decode_tokens = newer.free_blocks, newer.decode_tokens
            older.output_tokens = newer.output_tokens
    reports[0].time_s = now_s
    return reports[0]


@kernel
def catch_up(run, router_state, now_s):
    """Apply the signals and reports that have reached the router by now."""
    status, known = run.status[0], router_state.known
    if status.signals.delay_s == 0.0:
        return
    while status.signals.heard < status.signals.sent and (
        router_state.signals[status.signals.heard].time_s + status.signals.delay_s <= now_s
    ):
        signal = router_state.signals[status.signals.heard]
        status.signals.heard += 1
        r, heard_s = signal.request, signal.time_s + status.signals.delay_s
        apply_signal(known, signal.engine, r, run.requests[r].prompt_tokens, signal.tokens, signal.kind, heard_s)
        if status.router.held > 0:
            status.router.held_dirty = 1
    after_signals(run, router_state, now_s)
    for e in range(run.engines.shape[0]):
        for k in range(REPORTS):
            one = router_state.reports[e, k]
            if one.time_s + status.signals.delay_s <= now_s:
                snapshot = known.snapshots[e]
                snapshot.free_blocks, snapshot.decode_tokens = one.free_blocks, one.decode_tokens
                snapshot.output_tokens, snapshot.busy_until_s = one.output_tokens, one.busy_until_s
                break


@kernel
def listen(run, router_state):
    """Before routing: ask again about held requests if the router hears a signal now."""
    status = run.status[0]
    if status.router.held > 0:
        catch_up(run, router_state, status.now_s)
    elif status.signals.delay_s > 0.0 and is_heard_now(status, router_state.signals):
        status.router.held_dirty = 1  # for requests that the router holds at this instant


@kernel
def is_heard_now(status, signals):
    """Return whether a signal reaches the router at exactly this instant. Signals are in order of time."""
    low, high = status.signals.heard, status.signals.sent
    while low < high:
        middle = (low + high) // 2
        if signals[middle].time_s + status.signals.delay_s < status.now_s:
            low = middle + 1
        else:
            high = middle
    return low < status.signals.sent and signals[low].time_s + status.signals.delay_s == status.now_s


@kernel
def apply_signal(known, e, r, prompt_tokens, tokens, kind, now_s):
    """Update the router's record by a first token, which ends the prefill, or by a last one.

    tokens: output tokens when the request was sent there (first), or all that it has emitted (last).
    """
    snapshot = known.snapshots[e]
    snapshot.version += 1
    if kind == LAST_TOKEN:
        snapshot.finished += 1
        snapshot.finished_tokens += tokens
        if snapshot.role == ROLE_PREFILL:
            return  # the first token has removed the request
        drop(known.decoding[e], snapshot.decodes, r)
        snapshot.decodes -= 1
        snapshot.requests -= 1
        return
    drop(known.prefilling[e], snapshot.prefills, r)
    snapshot.prefills -= 1
    snapshot.prefill_tokens -= prompt_tokens + tokens
    snapshot.changed_s = now_s
    if snapshot.role == ROLE_PREFILL:
        snapshot.requests -= 1
    else:
        known.decoding[e, snapshot.decodes] = r
        snapshot.decodes += 1


@kernel
def remove_decode(known, e, r):
    """Remove request r from the decodes of engine e in the router's record."""
    snapshot = known.snapshots[e]
    drop(known.decoding[e], snapshot.decodes, r)
    snapshot.decodes -= 1
    snapshot.requests -= 1
    snapshot.version += 1


@kernel
def clear_snapshot(run, router_state, e, now_s):
    """Set the router's record of engine e to empty, and drop its signals and reports under way."""
    snapshot = router_state.known.snapshots[e]
    empty(snapshot, run.engines[e].free_blocks, now_s)
    snapshot.output_tokens = run.engines[e].totals.num_output_tokens
    drop_signals(run.status[0], router_state.signals, e)
    for k in range(REPORTS):
        one = router_state.reports[e, k]
        one.time_s, one.busy_until_s = -np.inf, 0.0
        one.free_blocks, one.decode_tokens = snapshot.free_blocks, 0
        one.output_tokens = snapshot.output_tokens


@kernel
def empty(snapshot, free_blocks, now_s):
    """Set a snapshot to that of an empty engine."""
    snapshot.requests, snapshot.prefills, snapshot.prefill_tokens, snapshot.decodes = 0, 0, 0, 0
    snapshot.version += 1
    snapshot.changed_s = now_s
    snapshot.free_blocks, snapshot.decode_tokens, snapshot.busy_until_s = free_blocks, 0, 0.0


@kernel
def drop_signals(status, signals, e):
    """Drop the signals that have been applied, and those of engine e."""
    kept = drop_of_engine(signals, status.signals.heard, status.signals.sent, e)
    status.signals.heard, status.signals.sent = 0, kept
