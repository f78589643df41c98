"""The event loop: arrivals, iterations and their ends, in the order docs/simulation.md gives ("Time")."""

import numpy as np

from servegym.simulator.compilation import compiled, inlined_kernel, kernel
from servegym.simulator.events import make_due, pop
from servegym.simulator.incidents import close, count_service, happen, move
from servegym.simulator.iterations import end_batch, leave, start_engine
from servegym.simulator.lines import NO_LINE, READY, ask, is_legal, keep_waiting, next_line, take_from
from servegym.simulator.prefixes import borrow
from servegym.simulator.routing import (
    catch_up,
    has_room,
    is_heard_now,
    report,
    report_busy,
    send,
    signals_fit,
    takers,
    tell,
)
from servegym.simulator.scaling import are_legal, ask_scaler, make_moves
from servegym.simulator.signatures import advance_signature
from servegym.simulator.statistics import clear_state, count_queued
from servegym.simulator.statuses import (
    AT_CHECKS,
    AT_ROUTES,
    BAD_MOVE,
    BAD_ROUTE,
    BAD_TIME,
    DECISION,
    DONE,
    FAILED,
    GOING_ON,
    NOT_STARTED,
    PAUSED,
    QUEUE_FULL,
    SIGNALS_FULL,
    STARTED,
    STUCK,
    TIMELINE_FULL,
    TOO_OFTEN,
)
from servegym.simulator.tasks import suspend
from servegym.simulator.timeline import lines_left, note
from servegym.simulator.transfers import depart, leave_source, line_up, next_transfer, start_transfer
from servegym.simulator.types import (
    ARRIVAL,
    EVENT_KV_ARRIVAL,
    EVENT_SUSPENSION,
    FIRST_TOKEN,
    HOLD,
    LAST_TOKEN,
    LATEST_S,
    MOST_CHECKS,
    RECEIVED,
    ROLE_DECODE,
    ROLE_PREFILL,
    STAY,
)


@compiled(advance_signature)
def advance(run, books, functions, stop_at, until_s):
    """Run on until there is nothing left to do or a reason to return to the caller (statuses.py).

    stop_at: where to stop for decisions. At a route the caller may change books.route[0], at a check books.moves.
    """
    clock = run.clock[0]
    alone, transfers = run.engines.shape[0] == 1, run.engines.shape[0]
    while True:
        # Where the caller comes back in the middle of routing or starting engines, this instant's events are done with.
        while clock.routing == 0 and clock.starting == 0 and clock.events > 0 and run.events[0].time_s <= clock.now_s:
            status = handle_event(run, books, functions)
            if status != GOING_ON:
                return status
        if clock.routing == 0 and clock.starting == 0:
            while clock.next_incident < books.incidents.shape[0] and (
                books.incidents[clock.next_incident].time_s <= clock.now_s
            ):
                if clock.recording and lines_left(run) < 2 * run.requests.shape[0] + transfers + 2:
                    return TIMELINE_FULL
                happen(run, books, clock.now_s)
            if clock.next_check_s <= clock.now_s:
                if clock.recording and lines_left(run) < 2 * run.requests.shape[0] + 2 * transfers:
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
        elif clock.signal_delay_s > 0.0 and is_heard_now(clock, books.signals):
            clock.news = 1  # for those who went to the router just now, if it holds them
        clock.routing = 1
        while True:
            line = next_line(run, books, alone)
            if line == NO_LINE:
                break
            status = route_one(run, books, line, alone, stop_at)
            if status != GOING_ON:
                return status
        clock.routing = 0
        if clock.starting == 0 and clock.events > 0 and run.events[0].time_s <= clock.now_s:
            continue  # KV that was sent just now over a link that takes no time
        while clock.starting < clock.due:
            e = run.due[clock.starting]
            status = start_engine(run, books, functions, e, stop_at)
            if status != STARTED and status != NOT_STARTED:
                return status
            clock.deciding_engine = -1
            clock.starting += 1
        clock.starting = 0
        clock.due = 0
        if clock.failed:
            return FAILED
        next_s = next_time_s(run, books, alone)
        if next_s == np.inf and clock.events == 0 and clock.next_arrival == run.requests.shape[0]:
            return STUCK if is_stuck(run, books) else DONE
        if next_s > until_s:
            return PAUSED
        if next_s > LATEST_S:
            return BAD_TIME
        if next_s == clock.next_check_s and too_often(clock, min(next_known_s(run, books), until_s)):
            return TOO_OFTEN
        clock.now_s = next_s


@inlined_kernel
def next_known_s(run, books):
    """When the next event, arrival or incident is; inf: never."""
    clock, next_s = run.clock[0], np.inf
    if clock.events > 0:
        next_s = run.events[0].time_s
    if clock.next_arrival < run.requests.shape[0]:
        next_s = min(next_s, run.outcomes[clock.next_arrival].ready_s)
    if clock.next_incident < books.incidents.shape[0] and clock.finished < run.requests.shape[0]:
        next_s = min(next_s, books.incidents[clock.next_incident].time_s)
    return next_s


@kernel
def too_often(clock, next_s):
    """Whether the scaler would be asked too many times up to next_s, or its interval is lost in rounding."""
    waits_s = next_s - clock.next_check_s
    lost = clock.next_check_s + clock.interval_s == clock.next_check_s
    return next_s < np.inf and waits_s > 0.0 and (lost or waits_s > MOST_CHECKS * clock.interval_s)


@inlined_kernel
def next_time_s(run, books, alone):
    """When something happens next; inf: never."""
    clock, next_s = run.clock[0], next_known_s(run, books)
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
        if clock.recording and lines_left(run) < 2 + run.engines.shape[0]:
            return TIMELINE_FULL
        pop(run.events, clock)
        receive(run, books, r, clock.now_s)
        return GOING_ON
    e = run.events[0].index
    engine = run.engines[e]
    length = engine.batch_length
    if clock.recording and lines_left(run) < 3 * length + 1 + run.engines.shape[0]:
        return TIMELINE_FULL
    if not signals_fit(run, books, length):
        return SIGNALS_FULL
    pop(run.events, clock)
    if kind == EVENT_SUSPENSION:
        suspend(run, books, e, clock.now_s)
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
        if run.engines[0].drained == 1:
            count_service(clock, books, run.engines[0], clock.now_s)
        return GOING_ON
    r = clock.next_arrival if line == READY else tiers[line].first
    request = run.requests[r]
    if clock.decided != r:
        undecided = ask(run, books, r, line, now_s)
        clock.decided = r
        if undecided and stop_at & AT_ROUTES:
            clock.deciding_request = r
            return DECISION
    clock.deciding_request = -1
    if not is_legal(run, books, r):
        return BAD_ROUTE
    e = route.engine
    most_lines = 3 if route.tier == STAY else 2 * run.requests.shape[0] + run.engines.shape[0] + 3
    if clock.recording and lines_left(run) < most_lines:
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
        close(run, books, e, 0)
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
    """A request without anything computed joins the queue of engine e."""
    engine, request = run.engines[e], run.requests[r]
    request.engine = e
    if engine.store_sets > 0:
        borrow(request, run.outcomes[r], engine, books.known.prefixes, books.stores[e], r)
    join(run, e, r)
    if run.clock[0].recording:
        note(run, ARRIVAL, e, r, 0, 0.0)


@kernel
def receive(run, books, r, now_s):
    """The KV of request r has arrived: it joins the queue of its decode engine, with memory."""
    clock, request = run.clock[0], run.requests[r]
    e, source = request.engine, run.engines[leave_source(run, r, now_s)]
    run.engines[e].coming_blocks -= request.blocks
    run.engines[e].decode_tokens += request.prompt_tokens + request.emitted_tokens
    clock.admissions += 1
    request.admitted = clock.admissions
    clear_state(run.state, r)
    join(run, e, r)
    if clock.recording:
        note(run, RECEIVED, e, r, request.blocks, 0.0)
    if source.batch_length == 0 and source.queue_length > 0:
        make_due(run, source.index)
    if source.drained == 1:
        count_service(clock, books, source, now_s)
    next_transfer(run, books, e, now_s)


@kernel
def join(run, e, r):
    """Request r joins the queue of engine e, which may start or hold a round for it."""
    engine = run.engines[e]
    run.queues[e][engine.queue_length] = r
    engine.queue_length += 1
    count_queued(run.state, e, run.requests[r])
    if engine.batch_length == 0 or engine.running_task >= 0:
        make_due(run, e)


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
