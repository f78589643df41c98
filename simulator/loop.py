"""The event loop: arrivals, iterations and their ends, in the order docs/simulation.md gives ("Time")."""

import numpy as np

from servegym.simulator.compilation import compiled, inlined_kernel, kernel
from servegym.simulator.disturbances import correct, disturbed
from servegym.simulator.events import pop, push
from servegym.simulator.incidents import count_service, happen, move
from servegym.simulator.lines import NO_LINE, READY, ask, is_legal, keep_waiting, next_line, take_from
from servegym.simulator.memory import count_blocks, release
from servegym.simulator.ordering import first_ranked
from servegym.simulator.packer import NO_LINES, RESUME, WAITING, form_batch, rank
from servegym.simulator.prefixes import borrow, use_chunks
from servegym.simulator.requests import next_deadline_s
from servegym.simulator.routing import catch_up, has_room, report, report_busy, send, takers, tell
from servegym.simulator.scaling import are_legal, ask_scaler, make_moves
from servegym.simulator.signatures import Decider, Estimator, advance_signature
from servegym.simulator.statistics import clear_state, count_emitted, count_finished, count_queued, counts
from servegym.simulator.tasks import (
    becomes_task,
    boundaries_of,
    close_task,
    open_task,
    preempt,
    resume,
    schedule_end,
    suspend,
)
from servegym.simulator.timeline import lines_left, note
from servegym.simulator.transfers import depart, leave_source, line_up, next_transfer, start_transfer
from servegym.simulator.types import (
    ARRIVAL,
    BATCH_END,
    BATCH_START,
    EVENT_BATCH_END,
    EVENT_KV_ARRIVAL,
    EVENT_SUSPENSION,
    FINISH,
    FIRST_TOKEN,
    HOLD,
    LAST_TOKEN,
    RECEIVED,
    ROLE_DECODE,
    ROLE_PREFILL,
    SCHEDULED,
    STAY,
    TBT_BINS,
    TBT_BINS_PER_OCTAVE,
    TBT_SMALLEST_EXPONENT,
    TOKEN,
)

# Why `advance` returned.
DONE, DECISION, PAUSED, QUEUE_FULL, TIMELINE_FULL, BAD_DURATION, BAD_ROUTE, BAD_MOVE, STUCK = range(9)
STARTED, NOT_STARTED, GOING_ON = -1, -2, -3
# Where it stops for decisions, to be added up.
AT_BATCHES, AT_ROUTES, AT_CHECKS = 1, 2, 4

_MANTISSA_SHIFT = 52 - 5  # leaves the exponent and 5 bits: 32 bins an octave
_FIRST_BIN = (1023 + TBT_SMALLEST_EXPONENT) * TBT_BINS_PER_OCTAVE


@compiled(advance_signature)
def advance(run, books, functions, stop_at, until_s):
    """Run on until there is nothing left to do or a reason to return to the caller.

    DONE: all requests that arrived are finished and none will arrive. DECISION: engine clock.deciding_engine
    is about to form a batch, the router is about to send request clock.deciding_request (what the caller writes into
    books.route then counts), or the scaler is to be asked (clock.deciding_check; books.moves), as `stop_at` asks for.
    PAUSED: nothing more happens up to until_s. QUEUE_FULL, TIMELINE_FULL: an array is too short; make it longer and
    call again. BAD_DURATION: the device model gave a duration that is no time; BAD_ROUTE: the router named an engine
    that does not take the request; BAD_MOVE: the scaler named no tier; STUCK: the router holds requests while nothing
    can happen any more. There is no going on after these.
    """
    clock = run.clock[0]
    alone = run.engines.shape[0] == 1
    while True:
        # Where the caller comes back in the middle of starting engines, the events of this instant are done with.
        while clock.starting == 0 and clock.events > 0 and run.events[0].time_s <= clock.now_s:
            status = handle_event(run, books, functions)
            if status != GOING_ON:
                return status
        if clock.starting == 0:
            while clock.next_incident < books.incidents.shape[0] and (
                books.incidents[clock.next_incident].time_s <= clock.now_s
            ):
                e = books.incidents[clock.next_incident].engine
                if clock.recording and lines_left(run) < 2 * run.requests.shape[0] + 2:
                    return TIMELINE_FULL
                happen(run, books, clock.now_s)
                make_due(run, e)
            if clock.next_check_s <= clock.now_s:
                if clock.recording and lines_left(run) < run.requests.shape[0] + 2 * run.engines.shape[0]:
                    return TIMELINE_FULL
                if clock.deciding_check == 0:
                    ask_scaler(run, books, clock.now_s)
                    if stop_at & AT_CHECKS:
                        clock.deciding_check = 1
                        return DECISION
                clock.deciding_check = 0
                if not are_legal(books):
                    return BAD_MOVE
                make_moves(run, books, clock.now_s)
        if clock.held > 0:
            catch_up(run, books, clock.now_s)
        while True:
            line = next_line(run, books, alone)
            if line == NO_LINE:
                break
            status = route_one(run, books, line, alone, stop_at)
            if status != GOING_ON:
                return status
        while clock.starting < clock.due:
            e = run.due[clock.starting]
            status = start_engine(run, books, functions, e, stop_at)
            if status != STARTED and status != NOT_STARTED:
                return status
            clock.deciding_engine = -1
            clock.starting += 1
        clock.starting = 0
        clock.due = 0
        next_s = next_time_s(run, books, alone)
        if next_s == np.inf:
            return STUCK if is_stuck(run, books) else DONE
        if next_s > until_s:
            return PAUSED
        clock.now_s = next_s


@kernel
def next_time_s(run, books, alone):
    """When something happens next; inf: never."""
    clock, next_s = run.clock[0], np.inf
    if clock.events > 0:
        next_s = run.events[0].time_s
    if clock.next_arrival < run.requests.shape[0]:
        next_s = min(next_s, run.outcomes[clock.next_arrival].ready_s)
    if clock.next_incident < books.incidents.shape[0] and clock.finished < run.requests.shape[0]:
        next_s = min(next_s, books.incidents[clock.next_incident].time_s)
    if alone:
        return next_s
    if clock.held > 0 and clock.next_signal < clock.signals:  # what is heard then is news
        next_s = min(next_s, books.signals[clock.next_signal].time_s + clock.signal_delay_s)
    if next_s < np.inf:
        return min(next_s, clock.next_check_s)
    if clock.held > 0 and clock.vain == 0:  # a last check and a last asking
        clock.vain, clock.news, clock.asking = 1, 1, 0
        return max(clock.now_s, clock.next_check_s) if clock.interval_s > 0.0 else clock.now_s
    return np.inf


@kernel
def is_stuck(run, books):
    """Whether requests are held though there are engines that take the first of a line."""
    tiers = books.known.tiers
    for line in range(tiers.shape[0] - 1):
        if tiers[line].waiting > 0 and takers(books.known.views, run.requests[tiers[line].first]) > 0:
            return True
    return False


@inlined_kernel
def handle_event(run, books, functions):
    """The first event happens. Returns GOING_ON, or why it has not."""
    clock, kind = run.clock[0], run.events[0].kind
    if kind == EVENT_KV_ARRIVAL:
        r = run.events[0].index
        if run.engines[run.requests[r].engine].queue_length == run.queues.shape[1]:
            return QUEUE_FULL
        if clock.recording and lines_left(run) < 1:
            return TIMELINE_FULL
        pop(run.events, clock)
        receive(run, books, r, clock.now_s)
        return GOING_ON
    e = run.events[0].index
    engine = run.engines[e]
    length = engine.batch_length
    if clock.recording and lines_left(run) < 3 * length + 1:
        return TIMELINE_FULL
    pop(run.events, clock)
    if kind == EVENT_SUSPENSION:
        suspend(run, e, clock.now_s)
        if run.engines.shape[0] > 1:
            report_busy(run, books, e, clock.now_s, clock.now_s)
    else:
        end_batch(run, books, functions.gain, e, clock.now_s)
        if run.engines.shape[0] > 1:
            tell_router(run, books, e, length, clock.now_s)
        if engine.drained == 1:
            count_service(clock, books, engine, clock.now_s)
    if engine.queue_length > 0:
        make_due(run, e)
    return GOING_ON


@inlined_kernel
def route_one(run, books, line, alone, stop_at):
    """Route the first request of a line, or the next that is ready. Returns GOING_ON, or why it has not."""
    clock, tiers, route, now_s = run.clock[0], books.known.tiers, books.route[0], run.clock[0].now_s
    if alone:
        if run.engines[0].queue_length == run.queues.shape[1]:
            return QUEUE_FULL
        if clock.recording and lines_left(run) < 1:
            return TIMELINE_FULL
        arrive(run, books, 0, clock.next_arrival)
        clock.next_arrival += 1
        return GOING_ON
    r = clock.next_arrival if line == READY else tiers[line].first
    request = run.requests[r]
    if clock.decided != r:
        undecided = ask(run, books, r, now_s)
        clock.decided = r
        if undecided and stop_at & AT_ROUTES:
            clock.deciding_request = r
            return DECISION
    clock.deciding_request = -1
    if not is_legal(run, books, r):
        return BAD_ROUTE
    e = route.engine
    if clock.recording and lines_left(run) < (2 if route.tier == STAY else run.requests.shape[0] + 2):
        return TIMELINE_FULL
    if e != HOLD and not has_room(run, books, e):
        return QUEUE_FULL
    clock.decided = -1
    if e == HOLD:
        keep_waiting(run, books, line, r)
        return GOING_ON
    clock.vain = 0
    if route.tier != STAY:
        move(run, books, e, route.tier, now_s)
    take_from(run, books, line)
    send(books, e, r, request, run.outcomes[r], now_s)
    if request.computed_tokens > 0:
        line_up(run, books, e, r, now_s)
    else:
        run.outcomes[r].decode_engine = route.decode_engine
        arrive(run, books, e, r)
    return GOING_ON


@inlined_kernel
def arrive(run, books, e, r):
    """A request joins the queue of engine e."""
    engine, request = run.engines[e], run.requests[r]
    run.queues[e][engine.queue_length] = r
    engine.queue_length += 1
    request.engine = e
    if engine.store_sets > 0:
        borrow(request, run.outcomes[r], engine, books.known.prefixes, books.stores[e], r)
    count_queued(run.state, e, request)
    if engine.batch_length == 0 or engine.running_task >= 0:
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
    if run.engines[source].drained == 1:
        count_service(clock, books, run.engines[source], now_s)
    next_transfer(run, books, e, now_s)


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


@kernel
def decider_of(run, functions, e):
    """What decides at engine e."""
    kind = run.engines[e].kind
    estimator = Estimator(functions.batch_s[kind], functions.exec_s[kind], run.estimate[e], run.sums[2:])
    return Decider(functions.schedulers[kind], functions.victims[kind], estimator)


@inlined_kernel
def start_engine(run, books, functions, e, stop_at):
    """Engine e, if it can, starts an iteration; or a round is held. Returns STARTED, NOT_STARTED, or why it stops."""
    engine, clock = run.engines[e], run.clock[0]
    if engine.up == 0 or engine.queue_length == 0:
        return NOT_STARTED
    if engine.batch_length > 0 and (engine.running_task < 0 or engine.suspending == 1):
        return NOT_STARTED
    if run.correction[0].window_iterations > 0:
        correct_estimator(run, e)
    if stop_at & AT_BATCHES and clock.deciding_engine != e:
        clock.deciding_engine = e
        return DECISION
    if engine.batch_length == 0:
        return start_batch(run, books, functions, e, clock.now_s)
    engine.rounds += 1
    rank(run, decider_of(run, functions, e), e, clock.now_s)
    first = run.queues[e][first_ranked(run.plan, engine.queue_length)]
    if run.requests[first].task != engine.running_task:
        preempt(run, books, e, clock.now_s)
    return NOT_STARTED


@inlined_kernel
def start_batch(run, books, functions, e, now_s):
    """Form a batch and start its iteration, or resume a task. Returns STARTED, or why it has not."""
    engine = run.engines[e]
    kind = engine.kind
    decider = decider_of(run, functions, e)
    formed = form_batch(run, decider, e, now_s)
    if formed == NO_LINES:
        return TIMELINE_FULL
    engine.rounds += 1 - engine.resuming
    engine.resuming = 0
    if formed == WAITING:
        return NOT_STARTED
    engine.batch_start_s = now_s
    ran_s = 0.0
    if formed == RESUME:
        ran_s = resume(run, books, e, run.packing[0].resumed_task)
    else:
        engine.batch_estimate_s = decider.estimator.batch_s(run.sums[0], decider.estimator.coefficients)
        engine.batch_estimate_s += engine.moving_s
        model_s = functions.devices[kind](run.sums[0], run.device[e])
        computing_s = disturbed(model_s, run.disturbance[0], engine, now_s)
        task = becomes_task(run, engine)
        if task:
            computing_s += engine.check_s * boundaries_of(engine, run.limits[0].preemptible)
        duration_s = computing_s + engine.moving_s
        if not 0.0 <= duration_s < np.inf or now_s + duration_s == np.inf:
            return BAD_DURATION
        engine.iterations += 1
        if run.clock[0].recording:
            note(run, BATCH_START, e, -1, engine.queue_length, engine.batch_estimate_s)
            for k in range(engine.batch_length):
                note(run, SCHEDULED, e, run.entries[e][k].request, run.entries[e][k].tokens, 0.0)
        if task:
            open_task(run, books, e, computing_s)
        else:
            push(run.events, run.clock[0], now_s + duration_s, EVENT_BATCH_END, e)
    if engine.running_task >= 0:
        schedule_end(run, books, e, now_s)
    if run.engines.shape[0] > 1:
        report_busy(run, books, e, now_s + max(0.0, engine.batch_estimate_s - ran_s), now_s)
    return STARTED


@inlined_kernel
def end_batch(run, books, gain, e, now_s):
    """The iteration of engine e ends: chunks are computed, tokens come out, finished requests leave."""
    clock, engine = run.clock[0], run.engines[e]
    entries, requests, outcomes, histogram = run.entries[e], run.requests, run.outcomes, run.tbt_histogram
    engine.busy_s += now_s - engine.batch_start_s
    ran_before_s = close_task(run, e) if engine.running_task >= 0 else 0.0
    if run.correction[0].window_iterations > 0:
        correct(engine, run.correction[0], ran_before_s + now_s - engine.batch_start_s - engine.moving_s)
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
        if engine.store_sets > 0 and request.emitted_tokens == outcome.sent_tokens + 1:
            prefixes = books.known.prefixes
            engine.store_uses = use_chunks(prefixes, books.stores[e], engine.store_sets, r, engine.store_uses)
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
        if engine.role != ROLE_DECODE and request.emitted_tokens == outcome.sent_tokens + 1:
            engine.decode_tokens += request.prompt_tokens + outcome.sent_tokens
            tell(run, books, e, r, FIRST_TOKEN, now_s)
        if request.emitted_tokens == outcome.output_tokens:
            engine.decode_tokens -= request.prompt_tokens + request.emitted_tokens
            tell(run, books, e, r, LAST_TOKEN, now_s)
        elif engine.role == ROLE_PREFILL:
            departed += 1
            depart(run, books, e, r)
    if departed > 0:
        leave(engine, run.queues[e], run.requests, run.outcomes)
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
