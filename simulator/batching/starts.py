"""The start of an iteration: a batch is formed, or a suspended one is resumed."""

from servegym.simulator.batching.packer import REFUSED, RESUME, TIMELINE_SHORT, WAITING, form_batch
from servegym.simulator.batching.ranking import decider_of
from servegym.simulator.compilation.kernels import inlined_kernel
from servegym.simulator.features.iteration_hooks import (
    after_packing,
    after_round,
    after_start,
    before_packing,
    before_ranking,
    before_start,
    before_times,
    instead_of_start,
    real_time_s,
    sets_end,
    start_again,
    while_running,
)
from servegym.simulator.memory.kv_memory import is_thrashing
from servegym.simulator.records.events import note, push
from servegym.simulator.records.statuses import (
    AT_BATCHES,
    BAD_DURATION,
    BAD_ESTIMATE,
    BAD_RANKS,
    DECISION,
    GOING_ON,
    NOT_STARTED,
    STARTED,
    THRASHING,
    TIMELINE_FULL,
)
from servegym.simulator.records.types import BATCH_START, EVENT_BATCH_END, LATEST_S, SCHEDULED


@inlined_kernel
def start_engine(run, router_state, functions, e, stop_at):
    """Start an iteration of engine e if it can start one. Returns STARTED, NOT_STARTED, or why the loop stops."""
    engine, status = run.engines[e], run.status[0]
    if engine.up == 0 or engine.queue_length == 0:
        return NOT_STARTED
    reason = before_start(run, router_state, e)
    if reason != GOING_ON:
        return reason
    reason = before_ranking(run, e)
    if reason != GOING_ON:
        return reason
    if stop_at & AT_BATCHES and status.deciding_engine != e:
        status.deciding_engine = e
        return DECISION
    decider = decider_of(run, functions, e)
    reason = while_running(run, router_state, decider, e)
    if reason != GOING_ON:
        return reason
    return start_batch(run, router_state, functions, decider, e, status.now_s)


@inlined_kernel
def start_batch(run, router_state, functions, decider, e, now_s):
    """Form a batch and start it, or resume a suspended one. Returns STARTED, NOT_STARTED, or why the loop stops."""
    engine = run.engines[e]
    running, queued = engine.batch_length, engine.queue_length
    if not before_packing(run, router_state, e):
        return NOT_STARTED
    formed = form_batch(run, decider, e, now_s)
    after_packing(run, router_state, e, queued)
    if formed == TIMELINE_SHORT:
        return TIMELINE_FULL
    if formed == REFUSED:
        return BAD_RANKS
    engine.rounds += 1
    after_round(engine)
    if formed == WAITING:
        return NOT_STARTED
    reason = instead_of_start(run, router_state, functions, decider, e, running)
    if reason != GOING_ON:
        return reason
    engine.batch_start_s = now_s
    ran_s = 0.0
    if formed == RESUME:
        ran_s = start_again(run, router_state, e)
    else:
        reason = start_formed_now(run, router_state, functions, decider, e, now_s)
        if reason != STARTED:
            return reason
    after_start(run, router_state, e, now_s + max(0.0, engine.batch_estimate_s - ran_s))
    return STARTED


@inlined_kernel
def start_formed_now(run, router_state, functions, decider, e, now_s):
    """Start the batch that engine e has just formed. Returns STARTED, or the error that ends the run."""
    engine, status = run.engines[e], run.status[0]
    before_times(run, e)
    engine.batch_estimate_s = decider.estimator.batch_s(run.sums[0], decider.estimator.coefficients)
    engine.batch_estimate_s += engine.moving_s
    engine.correction.batch_scale = engine.estimate_scale
    computing_s = real_time_s(run, engine, functions.devices[engine.pool](run.sums[0], run.device[e]))
    duration_s = computing_s + engine.moving_s
    if not 0.0 <= duration_s <= LATEST_S:
        return BAD_DURATION
    if not 0.0 <= engine.batch_estimate_s <= LATEST_S:
        return BAD_ESTIMATE
    if is_thrashing(engine):
        return THRASHING
    engine.iterations += 1
    if status.recording:
        note(run, BATCH_START, e, -1, engine.queue_length, engine.batch_estimate_s)
        for k in range(engine.batch_length):
            note(run, SCHEDULED, e, run.entries[e][k].request, run.entries[e][k].tokens, 0.0)
    if not sets_end(run, router_state, e, computing_s):
        push(run.events, status, now_s + duration_s, EVENT_BATCH_END, e)
    return STARTED
