"""The event loop: arrivals, iterations and their ends, in the order docs/simulation.md gives ("Time")."""

import numpy as np

from servegym.simulator.compilation import compiled, inlined_kernel, kernel
from servegym.simulator.disturbances import correct, disturbed
from servegym.simulator.events import pop, push
from servegym.simulator.memory import count_blocks, release
from servegym.simulator.packer import FORMED, NO_LINES, form_batch
from servegym.simulator.requests import next_deadline_s
from servegym.simulator.routing import has_room, report, route, send, tell
from servegym.simulator.signatures import Decider, Estimator, advance_signature
from servegym.simulator.statistics import count_emitted, count_finished, count_queued, counts
from servegym.simulator.timeline import lines_left, note
from servegym.simulator.transfers import depart, leave_source, next_transfer, start_transfer
from servegym.simulator.types import (
    ARRIVAL,
    BATCH_END,
    BATCH_START,
    EVENT_BATCH_END,
    EVENT_KV_ARRIVAL,
    FINISH,
    FIRST_TOKEN,
    LAST_TOKEN,
    RECEIVED,
    ROLE_PREFILL,
    SCHEDULED,
    TBT_BINS,
    TBT_BINS_PER_OCTAVE,
    TBT_SMALLEST_EXPONENT,
    TOKEN,
)

# Why `advance` returned.
DONE, DECISION, PAUSED, QUEUE_FULL, TIMELINE_FULL, BAD_DURATION = range(6)
STARTED, NOT_STARTED = -1, -2

_MANTISSA_SHIFT = 52 - 5  # leaves the exponent and 5 bits: 32 bins an octave
_FIRST_BIN = (1023 + TBT_SMALLEST_EXPONENT) * TBT_BINS_PER_OCTAVE


@compiled(advance_signature)
def advance(run, books, functions, stop_at_batches, until_s):
    """Run on until there is nothing left to do or a reason to return to the caller.

    DONE: all requests that arrived are finished and none will arrive. DECISION: engine clock.deciding_engine
    is about to form a batch (only if stop_at_batches). PAUSED: nothing more happens up to until_s. QUEUE_FULL,
    TIMELINE_FULL: an array is too short; make it longer and call again. BAD_DURATION: the device model gave a
    duration that is no time; there is no going on.
    """
    clock = run.clock[0]
    while True:
        # Where the caller comes back in the middle of starting engines, the events of this instant are done with.
        while clock.starting == 0 and clock.events > 0 and run.events[0].time_s <= clock.now_s:
            if run.events[0].kind == EVENT_KV_ARRIVAL:
                r = run.events[0].index
                if run.engines[run.requests[r].engine].queue_length == run.queues.shape[1]:
                    return QUEUE_FULL
                if clock.recording and lines_left(run) < 1:
                    return TIMELINE_FULL
                pop(run.events, clock)
                receive(run, books, r, clock.now_s)
                continue
            e = run.events[0].index
            if clock.recording and lines_left(run) < 3 * run.engines[e].batch_length + 1:
                return TIMELINE_FULL
            pop(run.events, clock)
            length = run.engines[e].batch_length
            end_batch(run, functions.gain, e, clock.now_s)
            if run.engines.shape[0] > 1:
                tell_router(run, books, e, length, clock.now_s)
            if run.engines[e].queue_length > 0:
                make_due(run, e)
        while clock.next_arrival < run.requests.shape[0] and (run.outcomes[clock.next_arrival].ready_s <= clock.now_s):
            if clock.routed == clock.next_arrival:
                route(run, books, clock.next_arrival, clock.now_s)
                clock.routed += 1
                run.outcomes[clock.next_arrival].decode_engine = books.route[0].decode_engine
            e = books.route[0].engine
            if not has_room(run, books, e):
                return QUEUE_FULL
            if clock.recording and lines_left(run) < 1:
                return TIMELINE_FULL
            send(books, e, clock.next_arrival, run.requests[clock.next_arrival], clock.now_s)
            arrive(run, e, clock.next_arrival)
            clock.next_arrival += 1
        while clock.starting < clock.due:
            e = run.due[clock.starting]
            if run.engines[e].batch_length == 0 and run.engines[e].queue_length > 0:
                if run.correction[0].window_iterations > 0:
                    correct_estimator(run, e)
                if stop_at_batches and clock.deciding_engine != e:
                    clock.deciding_engine = e
                    return DECISION
                status = start_batch(run, functions, e, clock.now_s)
                if status != STARTED and status != NOT_STARTED:
                    return status
                clock.deciding_engine = -1
            clock.starting += 1
        clock.starting = 0
        clock.due = 0
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


@inlined_kernel
def arrive(run, e, r):
    """A request joins the queue of engine e."""
    engine = run.engines[e]
    run.queues[e][engine.queue_length] = r
    engine.queue_length += 1
    run.requests[r].engine = e
    count_queued(run.state, e, run.requests[r])
    if engine.batch_length == 0:
        make_due(run, e)
    if run.clock[0].recording:
        note(run, ARRIVAL, e, r, 0, 0.0)


@kernel
def receive(run, books, r, now_s):
    """The KV of request r has arrived: it joins the queue of its decode engine, with memory."""
    clock, request = run.clock[0], run.requests[r]
    e, source = request.engine, leave_source(run, r, now_s)
    engine = run.engines[e]
    engine.coming_blocks -= request.blocks
    engine.decode_tokens += request.prompt_tokens + request.emitted_tokens
    clock.admissions += 1
    request.admitted = clock.admissions
    clear_state(run.state, r)
    run.queues[e][engine.queue_length] = r
    engine.queue_length += 1
    count_queued(run.state, e, request)
    if clock.recording:
        note(run, RECEIVED, e, r, request.blocks, 0.0)
    if engine.batch_length == 0:
        make_due(run, e)
    if run.engines[source].batch_length == 0 and run.engines[source].queue_length > 0:
        make_due(run, source)
    next_transfer(run, books, e, now_s)


@kernel
def clear_state(tables, r):
    """What another engine's scheduler has noted of request r means nothing here."""
    if tables.requests.shape[0] > 0:
        for field in range(tables.requests.shape[1]):
            tables.requests[r, field] = 0.0


@kernel
def correct_estimator(run, e):
    """The estimator of engine e, as corrected."""
    for i in range(run.fitted.shape[1]):
        run.estimate[e, i] = run.engines[e].estimate_scale * run.fitted[e, i]


@kernel
def make_due(run, e):
    """Engine e, idle, has requests: it may start an iteration once the events of this instant are done with."""
    clock, due = run.clock[0], run.due
    i = clock.due
    while i > 0 and due[i - 1] > e:
        i -= 1
    if i > 0 and due[i - 1] == e:
        return
    for k in range(clock.due, i, -1):
        due[k] = due[k - 1]
    due[i] = e
    clock.due += 1


@inlined_kernel
def start_batch(run, functions, e, now_s):
    """Form a batch and start its iteration. Returns STARTED, or why it has not."""
    engine = run.engines[e]
    kind = engine.kind
    estimator = Estimator(functions.batch_s[kind], functions.exec_s[kind], run.estimate[e], run.sums[2:])
    formed = form_batch(run, Decider(functions.schedulers[kind], functions.victims[kind], estimator), e, now_s)
    if formed != FORMED:
        return TIMELINE_FULL if formed == NO_LINES else NOT_STARTED
    engine.batch_start_s = now_s
    engine.batch_estimate_s = estimator.batch_s(run.sums[0], estimator.coefficients) + engine.moving_s
    model_s = functions.devices[kind](run.sums[0], run.device[e])
    computing_s = disturbed(model_s, run.disturbance[0], engine, now_s)
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


@inlined_kernel
def end_batch(run, gain, e, now_s):
    """The iteration of engine e ends: chunks are computed, tokens come out, finished requests leave."""
    clock, engine = run.clock[0], run.engines[e]
    entries, requests, outcomes, histogram = run.entries[e], run.requests, run.outcomes, run.tbt_histogram
    engine.busy_s += now_s - engine.batch_start_s
    if run.correction[0].window_iterations > 0:
        correct(engine, run.correction[0], now_s - engine.batch_start_s - engine.moving_s)
    engine.moving_s = 0.0
    used_blocks = engine.total_blocks - engine.free_blocks
    counting = counts(run.state)
    finished = 0
    for k in range(engine.batch_length):
        entry = entries[k]
        r = entry.request
        request = requests[r]
        request.computed_tokens += entry.tokens
        entry.emitted = request.computed_tokens == request.prompt_tokens + request.emitted_tokens
        if entry.emitted == 0:
            continue
        outcome = outcomes[r]
        earned = gain(request, outcome, now_s)
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
def tell_router(run, books, e, length, now_s):
    """After an iteration of engine e with so many requests: who has its first or last token, and who goes elsewhere."""
    engine, departed = run.engines[e], 0
    for k in range(length):
        if run.entries[e, k].emitted == 0:
            continue
        r = run.entries[e, k].request
        request, outcome = run.requests[r], run.outcomes[r]
        engine.decode_tokens += 1
        if request.emitted_tokens == 1:
            engine.decode_tokens += request.prompt_tokens
            tell(run, books, e, r, FIRST_TOKEN, now_s)
        if request.emitted_tokens == outcome.output_tokens:
            engine.decode_tokens -= request.prompt_tokens + request.emitted_tokens
            tell(run, books, e, r, LAST_TOKEN, now_s)
        elif engine.role == ROLE_PREFILL:
            departed += 1
            depart(run, books, e, r, now_s)
    if departed > 0:
        leave(engine, run.queues[e], run.requests, run.outcomes)
    if engine.coming > 0:
        start_transfer(run, books, e, now_s)
    report(run, books, e, now_s)


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
    """Drop requests that have finished or gone elsewhere from the queue, keeping the order of the others."""
    kept = 0
    for place in range(engine.queue_length):
        r = queue[place]
        if requests[r].emitted_tokens < outcomes[r].output_tokens and requests[r].engine == engine.index:
            queue[kept] = r
            kept += 1
    engine.queue_length = kept
