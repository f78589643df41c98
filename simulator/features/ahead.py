"""Asynchronous scheduling: an engine forms its next batch while one runs. The rules: docs/feature_rules.md.

A batch counts as computed, and its tokens as emitted, once it is formed. So a request's `num_output_tokens` includes
tokens that a batch is still to emit, OUTCOME.under_way of them, and its `computed_tokens` includes in_flight_tokens.
"""

import numpy as np

from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.features.disturbances import disturbed
from servegym.simulator.fleet.routing import report_busy
from servegym.simulator.memory.kv_memory import is_thrashing
from servegym.simulator.memory.prefix_caching import name_filled
from servegym.simulator.records.events import events_left, note, push
from servegym.simulator.records.statuses import (
    BAD_DURATION,
    BAD_ESTIMATE,
    GOING_ON,
    NOT_STARTED,
    STARTED,
    THRASHING,
    TIMELINE_FULL,
)
from servegym.simulator.records.types import BATCH_START, EVENT_BATCH_END, LATEST_S, SCHEDULED


@kernel
def hide_finishing(run, router_state, e):
    """Remove requests whose last token is under way from the queue of engine e until `restore_queue`.

    Returns False, with the queue unchanged, if no request would be left.
    """
    engine, queue, before = run.engines[e], run.queues[e], router_state.queued
    queued, kept = engine.queue_length, 0
    for position in range(queued):
        r = queue[position]
        before[position] = r
        if run.requests[r].num_output_tokens < run.outcomes[r].output_tokens:
            queue[kept] = r
            kept += 1
    engine.queue_length = kept
    if kept == 0:
        restore_queue(run, router_state, e, queued)
        return False
    engine.ahead.forming = engine.batch_length > 0
    return True


@kernel
def restore_queue(run, router_state, e, queued):
    """Restore the queue of engine e after `hide_finishing`. queued: the queue's former length."""
    run.engines[e].queue_length = queued
    run.engines[e].ahead.forming = 0
    for position in range(queued):
        run.queues[e, position] = router_state.queued[position]


@kernel
def count_as_done(run, e):
    """Count the batch that engine e has formed as computed, and its tokens as emitted."""
    for k in range(run.engines[e].ahead.length):
        entry = run.entries[e, k]
        request, outcome = run.requests[entry.request], run.outcomes[entry.request]
        request.computed_tokens += entry.tokens
        request.in_flight_tokens += entry.tokens
        entry.emitted = request.computed_tokens == request.prompt_tokens + request.num_output_tokens
        request.num_output_tokens += entry.emitted
        outcome.under_way += entry.emitted


@inlined_kernel
def keep_formed(run, router_state, functions, decider, e, running):
    """Keep the batch that engine e has formed in run.entries[e] until the running one ends, or start it if none runs.

    running: requests of the running batch; 0: none. Returns STARTED, NOT_STARTED, or the error that ends the run.
    """
    engine, pool = run.engines[e], run.engines[e].pool
    engine.ahead.length, engine.batch_length = engine.batch_length, running
    engine.ahead.estimate_s = decider.estimator.batch_s(run.sums[0], decider.estimator.coefficients)
    engine.ahead.scale = engine.estimate_scale
    engine.ahead.model_s = functions.devices[pool](run.sums[0], run.device[e])
    if not 0.0 <= engine.ahead.model_s <= LATEST_S:
        return BAD_DURATION
    if not 0.0 <= engine.ahead.estimate_s <= LATEST_S:
        engine.batch_estimate_s = engine.ahead.estimate_s
        return BAD_ESTIMATE
    count_as_done(run, e)
    if running > 0:
        return NOT_STARTED
    return THRASHING if is_thrashing(engine) else start_formed(run, router_state, e, run.status[0].now_s)


@kernel
def start_waiting(run, router_state, e):
    """Start the batch that engine e formed ahead, if no batch runs: it waited for its lockstep group.

    Returns GOING_ON if it has formed none, else STARTED, NOT_STARTED, or why the loop stops.
    """
    engine = run.engines[e]
    if engine.ahead.length == 0:
        return GOING_ON
    if engine.batch_length > 0:
        return NOT_STARTED
    if run.status[0].recording and events_left(run) < engine.ahead.length + 1:
        return TIMELINE_FULL
    return start_formed(run, router_state, e, run.status[0].now_s)


@kernel
def start_formed(run, router_state, e, now_s):
    """Start the batch that engine e formed ahead. Returns STARTED, or BAD_DURATION."""
    engine, status = run.engines[e], run.status[0]
    waits_s = max(0.0, engine.ahead.loaded_s - now_s) + engine.ahead.activate_s
    duration_s = disturbed(engine.ahead.model_s, run.disturbance[0], engine, now_s) + waits_s
    if not 0.0 <= duration_s <= LATEST_S:
        return BAD_DURATION
    engine.batch_length, engine.ahead.length = engine.ahead.length, 0
    engine.batch_start_s, engine.ahead.waits_s = now_s, waits_s
    engine.batch_estimate_s, engine.correction.batch_scale = engine.ahead.estimate_s + waits_s, engine.ahead.scale
    engine.iterations += 1
    if status.recording:
        note(run, BATCH_START, e, -1, engine.queue_length, engine.batch_estimate_s)
    for k in range(engine.batch_length):
        formed, running = run.entries[e, k], router_state.running[e, k]
        running.request, running.tokens, running.emitted = formed.request, formed.tokens, formed.emitted
        if status.recording:
            note(run, SCHEDULED, e, formed.request, formed.tokens, 0.0)
    push(run.events, status, now_s + duration_s, EVENT_BATCH_END, e)
    if run.engines.shape[0] > 1:
        report_busy(run, router_state, e, now_s + engine.batch_estimate_s, now_s)
    return STARTED


@kernel
def commit_token(run, e, r):
    """Count an emitted token of request r as no longer under way, and name the blocks that it fills."""
    request, outcome, engine = run.requests[r], run.outcomes[r], run.engines[e]
    if engine.cache.on:  # blocks can be named only when the tokens in them are known
        known = request.prompt_tokens + request.num_output_tokens - 1
        name_filled(r, outcome, engine, run.cache, 0, min(request.computed_tokens, known))
    outcome.under_way -= 1


def emitted_of(requests: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
    """int[requests]: the tokens of each that are out."""
    return np.asarray(requests["num_output_tokens"] - outcomes["under_way"])
