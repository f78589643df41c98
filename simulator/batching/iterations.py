"""Iterations of an engine: started, resumed, and ended, with what comes out of them."""

import numpy as np

from servegym.simulator.batching.ordering import first_to_run
from servegym.simulator.batching.packer import REFUSED, RESUME, TIMELINE_SHORT, WAITING, form_batch, rank_queue
from servegym.simulator.compilation.kernels import inlined_kernel, kernel
from servegym.simulator.compilation.prefetching import AHEAD, prefetch
from servegym.simulator.features.ahead import bring_back, commit_token, keep_formed, set_aside, start_formed
from servegym.simulator.features.disturbances import correct, disturbed
from servegym.simulator.features.flags import (
    HAS_AHEAD,
    HAS_CACHE,
    HAS_CLIENTS,
    HAS_CLUSTER,
    HAS_CORRECTION,
    HAS_DRAFTS,
    HAS_LOCKSTEP,
    HAS_TASKS,
)
from servegym.simulator.features.front_end import deliver_all, deliver_last, stream_started
from servegym.simulator.features.lockstep import group_runs
from servegym.simulator.features.speculation import accept
from servegym.simulator.features.suspended_batches import (
    becomes_task,
    boundaries_of,
    close_task,
    open_task,
    preempt,
    resume,
    schedule_end,
)
from servegym.simulator.fleet.routing import report_busy
from servegym.simulator.memory.kv_events import publish
from servegym.simulator.memory.kv_memory import count_blocks
from servegym.simulator.memory.prefix_caching import give_up, name_filled
from servegym.simulator.memory.prefixes import use_chunks
from servegym.simulator.policies.refusals import are_numbers
from servegym.simulator.records.events import push
from servegym.simulator.records.lists import drop_first, place_of
from servegym.simulator.records.requests import is_decoding, next_deadline_s
from servegym.simulator.records.signatures import Estimator
from servegym.simulator.records.state import Decider
from servegym.simulator.records.statistics import count_emitted, count_finished, counts
from servegym.simulator.records.statuses import (
    AT_BATCHES,
    BAD_DURATION,
    BAD_ESTIMATE,
    BAD_RANKS,
    DECISION,
    NOT_STARTED,
    STARTED,
    THRASHING,
    TIMELINE_FULL,
)
from servegym.simulator.records.timeline import events_left, note
from servegym.simulator.records.types import (
    BATCH_END,
    BATCH_START,
    EVENT_BATCH_END,
    FINISH,
    LATEST_S,
    MOST_FILLINGS,
    SCHEDULED,
    TBT_BINS,
    TBT_BINS_PER_OCTAVE,
    TBT_SMALLEST_EXPONENT,
    TOKEN,
)

FEW = 4  # requests that finish together: one by one they leave a queue sooner than by a pass over it
_MANTISSA_SHIFT = 52 - 5  # leaves the exponent and 5 bits: 32 bins an octave
_FIRST_BIN = (1023 + TBT_SMALLEST_EXPONENT) * TBT_BINS_PER_OCTAVE


@kernel
def correct_estimator(run, e):
    """The estimator of engine e, as corrected: what its form has declared to be scaled is, and nothing else."""
    scale = run.engines[e].estimate_scale
    for i in range(run.fitted.shape[1]):
        run.estimate[e, i] = run.fitted[e, i].fixed + scale * run.fitted[e, i].scaled


@kernel
def decider_of(run, functions, e):
    """What decides at engine e."""
    pool = run.engines[e].pool
    estimator = Estimator(functions.batch_s[pool], functions.exec_s[pool], run.estimate[e], run.sums[2:])
    return Decider(functions.schedulers[pool], functions.victims[pool], estimator)


@inlined_kernel
def start_engine(run, router_state, functions, e, stop_at):
    """Engine e, if it can, starts an iteration; or a round is held. Returns STARTED, NOT_STARTED, or why it stops."""
    engine, status = run.engines[e], run.status[0]
    if engine.up == 0 or engine.queue_length == 0:
        return NOT_STARTED
    ahead = HAS_AHEAD and engine.ahead.on == 1
    if HAS_LOCKSTEP and engine.lockstep.ranks > 1 and engine.batch_length == 0:
        if group_runs(run, engine, status.now_s):
            return NOT_STARTED
        if HAS_AHEAD and engine.ahead.length > 0:
            if status.recording and events_left(run) < engine.ahead.length + 1:
                return TIMELINE_FULL
            return start_formed(run, router_state, e, status.now_s)
    if HAS_AHEAD and ahead and engine.ahead.length > 0:
        return NOT_STARTED
    if (
        engine.batch_length > 0
        and not ahead
        and (not HAS_TASKS or engine.running_task < 0 or engine.preemption.suspending == 1)
    ):
        return NOT_STARTED
    if HAS_CORRECTION and run.correction[0].window_iterations > 0:
        if not engine.estimate_scale < np.inf:
            return BAD_ESTIMATE
        correct_estimator(run, e)
    if stop_at & AT_BATCHES and status.deciding_engine != e:
        status.deciding_engine = e
        return DECISION
    if not HAS_TASKS or engine.batch_length == 0 or ahead:
        return start_batch(run, router_state, functions, e, status.now_s)
    engine.rounds += 1
    if not rank_queue(run, decider_of(run, functions, e), e, status.now_s) or not are_numbers(
        run.ranks, run.limits[0].listed, engine.queue_length
    ):
        return BAD_RANKS
    first = run.queues[e][first_to_run(run.ranks, run.limits[0], engine.queue_length)]
    if run.requests[first].task != engine.running_task:
        preempt(run, router_state, e, status.now_s)
    return NOT_STARTED


@inlined_kernel
def start_batch(run, router_state, functions, e, now_s):
    """Form a batch and start its iteration, or resume a task. Returns STARTED, or why it has not."""
    engine = run.engines[e]
    pool = engine.pool
    decider = decider_of(run, functions, e)
    running, queued = engine.batch_length, engine.queue_length
    if HAS_AHEAD and engine.ahead.on:
        queued = set_aside(run, router_state, e)
    if HAS_AHEAD and engine.queue_length == 0:
        bring_back(run, router_state, e, queued)
        return NOT_STARTED
    formed = form_batch(run, decider, e, now_s)
    if HAS_AHEAD and engine.ahead.on:
        bring_back(run, router_state, e, queued)
    if formed == TIMELINE_SHORT:
        return TIMELINE_FULL
    if formed == REFUSED:
        return BAD_RANKS
    engine.rounds += 1 - engine.preemption.resuming
    engine.preemption.resuming = 0
    if formed == WAITING:
        return NOT_STARTED
    if HAS_AHEAD and engine.ahead.on:
        kept = keep_formed(run, functions, decider, e, running)
        if kept != STARTED or running > 0:
            return kept if kept != STARTED else NOT_STARTED
        return THRASHING if is_thrashing(engine) else start_formed(run, router_state, e, now_s)
    engine.batch_start_s = now_s
    ran_s = 0.0
    if HAS_TASKS and formed == RESUME:
        ran_s = resume(run, router_state, e, run.packing[0].resumed_task)
    else:
        engine.batch_estimate_s = decider.estimator.batch_s(run.sums[0], decider.estimator.coefficients)
        engine.batch_estimate_s += engine.moving_s
        engine.correction.batch_scale = engine.estimate_scale
        model_s = functions.devices[pool](run.sums[0], run.device[e])
        computing_s = disturbed(model_s, run.disturbance[0], engine, now_s)
        task = HAS_TASKS and becomes_task(run, engine)
        if HAS_TASKS and task:
            computing_s += engine.preemption.check_s * boundaries_of(engine, run.limits[0].preemptible)
        duration_s = computing_s + engine.moving_s
        if not 0.0 <= duration_s <= LATEST_S:
            return BAD_DURATION
        if not 0.0 <= engine.batch_estimate_s <= LATEST_S:
            return BAD_ESTIMATE
        if is_thrashing(engine):
            return THRASHING
        engine.iterations += 1
        if run.status[0].recording:
            note(run, BATCH_START, e, -1, engine.queue_length, engine.batch_estimate_s)
            for k in range(engine.batch_length):
                note(run, SCHEDULED, e, run.entries[e][k].request, run.entries[e][k].tokens, 0.0)
        if HAS_TASKS and task:
            open_task(run, router_state, e, computing_s)
        else:
            push(run.events, run.status[0], now_s + duration_s, EVENT_BATCH_END, e)
    if HAS_TASKS and engine.running_task >= 0:
        schedule_end(run, router_state, e, now_s)
    if HAS_CLUSTER and run.engines.shape[0] > 1:
        report_busy(run, router_state, e, now_s + max(0.0, engine.batch_estimate_s - ran_s), now_s)
    return STARTED


@kernel
def is_thrashing(engine):
    """Whether the engine has computed so much since its last token that it must have been in vain."""
    memory_tokens = engine.total_blocks * engine.block_tokens
    return engine.scheduled_tokens - engine.totals.scheduled_before > MOST_FILLINGS * memory_tokens


@inlined_kernel
def end_batch(run, router_state, gain, e, now_s):
    """The iteration of engine e ends: chunks are computed, tokens come out, finished requests leave.

    Returns how many of its requests have their first token since they were sent there, or their last.
    """
    status, engine = run.status[0], run.engines[e]
    entries, requests, outcomes, histogram = run.entries[e], run.requests, run.outcomes, run.tbt_histogram
    if HAS_AHEAD and engine.ahead.on:
        entries = router_state.running[e]
    engine.busy_s += now_s - engine.batch_start_s
    ran_before_s = close_task(run, e) if HAS_TASKS and engine.running_task >= 0 else 0.0
    if HAS_CORRECTION and run.correction[0].window_iterations > 0:
        correct(engine, run.correction[0], ran_before_s + now_s - engine.batch_start_s - engine.moving_s)
    engine.moving_s, engine.preemption.owed_s = engine.preemption.owed_s, 0.0
    used_blocks = engine.total_blocks - engine.free_blocks
    counting, speculating = counts(run.state), engine.speculation.k > 0
    finished, news, emitted, gained = 0, 0, 0, status.gain  # counted here: in memory each sum waits for the one before
    for k in range(engine.batch_length):
        if HAS_CLUSTER and k + AHEAD < engine.batch_length:
            prefetch(requests, entries[k + AHEAD].request)
            prefetch(outcomes, entries[k + AHEAD].request)
        entry = entries[k]
        r = entry.request
        request = requests[r]
        accepted, rejected = 0, 0
        outcome = outcomes[r]
        if HAS_AHEAD and engine.ahead.on:  # it counts as computed since it was formed
            if entry.emitted == 0:
                continue
            request.num_output_tokens -= outcome.under_way
        else:
            if HAS_DRAFTS and entry.tokens > 1 and speculating and is_decoding(request):
                accepted = accept(r, request, engine, run.device[e], entry.tokens - 1)
                rejected = entry.tokens - 1 - accepted
            request.computed_tokens += entry.tokens - rejected
            if HAS_CACHE and engine.cache.on:
                name_filled(r, outcome, engine, run.cache, request.computed_tokens)
            entry.emitted = 0
            if request.computed_tokens < request.prompt_tokens + request.num_output_tokens:
                continue
            entry.emitted = 1 + accepted
        out_s = now_s
        for _ in range(1 + accepted):
            out_s = stream_started(status.front_end, now_s)
            earned = gain(request, outcome, out_s)
            if request.num_output_tokens == 0:
                request.first_token_s = now_s
            gained += earned
            emit(request, outcome, status, histogram, earned, out_s)
            if counting:
                count_emitted(run.state, e, request)
            if status.recording:
                note(run, TOKEN, e, r, 1, earned)
        if HAS_AHEAD and engine.ahead.on:
            commit_token(run, e, r)
        emitted += 1 + accepted
        if HAS_CLUSTER and request.num_output_tokens == outcome.sent_tokens + 1:
            news += 1
        if HAS_CACHE and engine.store_sets > 0 and request.num_output_tokens == outcome.sent_tokens + 1:
            prefixes = router_state.known.prefixes
            engine.store_uses = use_chunks(prefixes, router_state.stores[e], engine.store_sets, r, engine.store_uses)
        if request.num_output_tokens == outcome.output_tokens:
            if finished == 0:
                count_blocks(engine, now_s)
            finished += 1
            count_finished(run.state, e, request)
            outcome.finish_s, outcome.last_token_s = out_s, now_s
            deliver_last(run, router_state, r, out_s)
            give_up(run, e, r)
            if status.recording:
                note(run, FINISH, e, r, 0, 0.0)
        if HAS_AHEAD and engine.ahead.on:
            request.num_output_tokens += outcome.under_way
    status.gain = gained
    if emitted > 0:
        engine.totals.num_output_tokens += emitted
        engine.totals.scheduled_before = engine.scheduled_tokens
    if HAS_CACHE and engine.cache.publishes == 1:
        publish(run, router_state, e, now_s)
    if status.recording:
        note(run, BATCH_END, e, -1, used_blocks, now_s - engine.batch_start_s)
    length, engine.batch_length = engine.batch_length, 0
    if finished > 0:
        status.finished += finished
        if HAS_CLIENTS and status.front.depends == 1 and status.finished == requests.shape[0]:
            deliver_all(run, router_state)
        if finished > FEW:
            leave(engine, run.queues[e], run.previous_order[e], requests, outcomes)
        else:
            drop_finished(engine, run.queues[e], run.previous_order[e], entries, length, requests, outcomes)
    return news + finished


@kernel
def emit(request, outcome, status, histogram, earned, now_s):
    """A token of the request sets out for the client and earns its gain."""
    outcome.gain += earned
    if now_s < next_deadline_s(request):
        outcome.on_time_tokens += 1
    if request.num_output_tokens == 0:
        outcome.first_token_s = now_s
        if status.buffered_first_token == 0 and request.ttlt_slo_s == np.inf:
            request.first_deadline_s = min(request.first_deadline_s, now_s)
    else:
        interval_s = now_s - outcome.last_token_s
        outcome.longest_tbt_s = max(outcome.longest_tbt_s, interval_s)
        histogram[tbt_bin(interval_s)] += 1
    outcome.last_token_s = now_s
    request.num_output_tokens += 1


@kernel
def tbt_bin(interval_s):
    """Bin of the log-linear histogram: the exponent and the first bits of the fraction of a float64."""
    bits = np.float64(interval_s).view(np.int64) >> _MANTISSA_SHIFT
    return max(0, min(TBT_BINS - 1, bits - _FIRST_BIN))


@kernel
def leave(engine, queue, previous_order, requests, outcomes):
    """Drop requests that have finished or gone elsewhere from the queue, keeping the order of the others."""
    kept = 0
    for position in range(engine.queue_length):
        r = queue[position]
        out = requests[r].num_output_tokens - outcomes[r].under_way
        if out < outcomes[r].output_tokens and requests[r].engine == engine.index:
            queue[kept], previous_order[kept] = r, previous_order[position]
            kept += 1
    engine.queue_length = kept


@kernel
def drop_finished(engine, queue, previous_order, entries, length, requests, outcomes):
    """Drop those of a batch of `length` entries that have finished: as `leave`, without a look at all of the queue."""
    for k in range(length):
        r = entries[k].request
        if requests[r].num_output_tokens - outcomes[r].under_way < outcomes[r].output_tokens:
            continue
        position = place_of(queue, r)
        drop_first(queue[position : engine.queue_length])
        if engine.visits.previous_length > 0:
            drop_first(previous_order[position : engine.queue_length])
        engine.queue_length -= 1
