"""The event loop: arrivals, iterations and their ends, in the order docs/simulation.md gives ("Time")."""

import numpy as np

from servegym.simulator.compilation import compiled, kernel
from servegym.simulator.disturbances import correct, disturbed
from servegym.simulator.events import pop, push
from servegym.simulator.memory import count_blocks, release
from servegym.simulator.packer import form_batch
from servegym.simulator.requests import next_deadline_s
from servegym.simulator.signatures import advance_signature
from servegym.simulator.statistics import count_emitted, count_finished, count_queued, counts
from servegym.simulator.timeline import lines_left, note
from servegym.simulator.types import (
    ARRIVAL,
    BATCH_END,
    BATCH_START,
    EVENT_BATCH_END,
    FINISH,
    SCHEDULED,
    TBT_BINS,
    TBT_BINS_PER_OCTAVE,
    TBT_SMALLEST_EXPONENT,
    TOKEN,
)

# Why `advance` returned.
DONE, DECISION, PAUSED, QUEUE_FULL, TIMELINE_FULL, BAD_DURATION = range(6)
STARTED = -1

_MANTISSA_SHIFT = 52 - 5  # leaves the exponent and 5 bits: 32 bins an octave
_FIRST_BIN = (1023 + TBT_SMALLEST_EXPONENT) * TBT_BINS_PER_OCTAVE


@compiled(advance_signature)
def advance(run, functions, stop_at_batches, until_s):
    """Run on until there is nothing left to do or a reason to return to the caller.

    DONE: all requests that arrived are finished and none will arrive. DECISION: engine clock.deciding_engine
    is about to form a batch (only if stop_at_batches). PAUSED: nothing more happens up to until_s. QUEUE_FULL,
    TIMELINE_FULL: an array is too short; make it longer and call again. BAD_DURATION: the device model gave a
    duration that is no time; there is no going on.
    """
    clock = run.clock[0]
    engines = run.engines.shape[0]
    while True:
        # Where the caller comes back in the middle of starting engines, the events of this instant are done with.
        while clock.starting == 0 and clock.events > 0 and run.events[0].time_s <= clock.now_s:
            e = run.events[0].index
            if clock.recording and lines_left(run) < 2 * run.engines[e].batch_length + 1:
                return TIMELINE_FULL
            pop(run.events, clock)
            end_batch(run, functions, e, clock.now_s)
        while clock.next_arrival < run.requests.shape[0] and (run.outcomes[clock.next_arrival].ready_s <= clock.now_s):
            e = clock.next_arrival % engines
            if run.engines[e].queue_length == run.queues.shape[1]:
                return QUEUE_FULL
            if clock.recording and lines_left(run) < 1:
                return TIMELINE_FULL
            arrive(run, e, clock.next_arrival)
            clock.next_arrival += 1
        while clock.starting < engines:
            e = clock.starting
            if run.engines[e].batch_length == 0 and run.engines[e].queue_length > 0:
                if run.correction[0].window_iterations > 0:
                    for i in range(run.fitted.shape[0]):
                        run.estimator.coefficients[i] = run.engines[e].estimate_scale * run.fitted[i]
                if stop_at_batches and clock.deciding_engine != e:
                    clock.deciding_engine = e
                    return DECISION
                status = start_batch(run, functions, e, clock.now_s)
                if status != STARTED:
                    return status
                clock.deciding_engine = -1
            clock.starting += 1
        clock.starting = 0
        next_s = np.inf
        if clock.events > 0:
            next_s = run.events[0].time_s
        if clock.next_arrival < run.requests.shape[0]:
            next_s = min(next_s, run.outcomes[clock.next_arrival].ready_s)
        if next_s == np.inf:
            return DONE
        if next_s > until_s:
            return PAUSED
        clock.now_s = next_s


@kernel
def arrive(run, e, r):
    """A request joins the queue of engine e."""
    engine = run.engines[e]
    run.queues[e][engine.queue_length] = r
    engine.queue_length += 1
    run.requests[r].engine = e
    count_queued(run.state, e, run.requests[r])
    if run.clock[0].recording:
        note(run, ARRIVAL, e, r, 0, 0.0)


@kernel
def start_batch(run, functions, e, now_s):
    """Form a batch and start its iteration. Returns STARTED, or why it has not."""
    engine = run.engines[e]
    if not form_batch(run, functions, e, now_s):
        return TIMELINE_FULL
    engine.batch_start_s = now_s
    engine.batch_estimate_s = run.estimator.batch_s(run.sums[0], run.estimator.coefficients) + engine.moving_s
    computing_s = disturbed(functions.device_batch_s(run.sums[0], run.device[e]), run.disturbance[0], engine, now_s)
    duration_s = computing_s + engine.moving_s
    if not 0.0 <= duration_s < np.inf or now_s + duration_s == np.inf:
        return BAD_DURATION
    engine.iterations += 1
    push(run.events, run.clock[0], now_s + duration_s, EVENT_BATCH_END, e)
    if run.clock[0].recording:
        note(run, BATCH_START, e, -1, engine.queue_length, engine.batch_estimate_s)
        for k in range(engine.batch_length):
            note(run, SCHEDULED, e, run.entries[e][k].request, run.entries[e][k].tokens, 0.0)
    return STARTED


@kernel
def end_batch(run, functions, e, now_s):
    """The iteration of engine e ends: chunks are computed, tokens come out, finished requests leave."""
    clock, engine = run.clock[0], run.engines[e]
    entries, requests, outcomes, histogram = run.entries[e], run.requests, run.outcomes, run.tbt_histogram
    engine.busy_s += now_s - engine.batch_start_s
    if run.correction[0].window_iterations > 0:
        correct(engine, run.correction[0], now_s - engine.batch_start_s - engine.moving_s)
    used_blocks = engine.total_blocks - engine.free_blocks
    counting = counts(run.state)
    finished = 0
    for k in range(engine.batch_length):
        entry = entries[k]
        r = entry.request
        request = requests[r]
        request.computed_tokens += entry.tokens
        if request.computed_tokens < request.prompt_tokens + request.emitted_tokens:
            continue
        outcome = outcomes[r]
        earned = functions.gain(request, outcome, now_s)
        emit(request, outcome, clock, histogram, earned, now_s)
        engine.emitted_tokens += 1
        if counting:
            count_emitted(run.state, e, request)
        if clock.recording:
            note(run, TOKEN, e, r, 1, earned)
        if request.emitted_tokens == outcome.output_tokens:
            if finished == 0:
                count_blocks(engine, now_s)
            finished += 1
            count_finished(run.state, e, request)
            outcome.finish_s = now_s
            release(request, engine, run.blocks[e])
            if clock.recording:
                note(run, FINISH, e, r, 0, 0.0)
    if clock.recording:
        note(run, BATCH_END, e, -1, used_blocks, now_s - engine.batch_start_s)
    engine.batch_length = 0
    if finished > 0:
        clock.finished += finished
        leave(engine, run.queues[e], requests, outcomes)


@kernel
def emit(request, outcome, clock, histogram, earned, now_s):
    """A token of the request comes out and earns its gain."""
    outcome.gain += earned
    clock.gain += earned
    if now_s < next_deadline_s(request):
        outcome.on_time_tokens += 1
    if request.emitted_tokens == 0:
        outcome.first_token_s = now_s
        if clock.buffered_first_token == 0 and request.ttlt_slo_s == np.inf:
            request.first_deadline_s = min(request.first_deadline_s, now_s)
    else:
        interval_s = now_s - outcome.last_token_s
        outcome.longest_tbt_s = max(outcome.longest_tbt_s, interval_s)
        histogram[tbt_bin(interval_s)] += 1
    outcome.last_token_s = now_s
    request.emitted_tokens += 1


@kernel
def tbt_bin(interval_s):
    """Bin of the log-linear histogram: the exponent and the first bits of the fraction of a float64."""
    bits = np.float64(interval_s).view(np.int64) >> _MANTISSA_SHIFT
    return max(0, min(TBT_BINS - 1, bits - _FIRST_BIN))


@kernel
def leave(engine, queue, requests, outcomes):
    """Drop finished requests from the engine's queue, keeping the order of the others."""
    kept = 0
    for place in range(engine.queue_length):
        r = queue[place]
        if requests[r].emitted_tokens < outcomes[r].output_tokens:
            queue[kept] = r
            kept += 1
    engine.queue_length = kept
