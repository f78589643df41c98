"""What a router knows: its book of the requests it sent to each engine, and the engines' reports, both perhaps late.

Never an engine's live state. With one engine there is nothing to know, and nothing is kept.
"""

import numpy as np

from servegym.simulator.compilation import kernel
from servegym.simulator.prefixes import use_chunks
from servegym.simulator.signatures import router
from servegym.simulator.types import FIRST_TOKEN, LAST_TOKEN, REPORTS, ROLE_DECODE, ROLE_PREFILL


@kernel
def takes(view, request):
    """Whether an engine takes the request: one whose KV waits on a prefill engine a decode engine, any other not."""
    return view.up == 1 and view.closed == 0 and (view.role == ROLE_DECODE) == (request.computed_tokens > 0)


@kernel
def may_decode(view):
    """Whether an engine can be named for the decode of a request that has yet to be prefilled."""
    return view.up == 1 and view.closed == 0 and view.role == ROLE_DECODE


@kernel
def would_take(view, request):
    """Whether an engine would take the request if it were not pending."""
    return view.pending == 1 and (view.role == ROLE_DECODE) == (request.computed_tokens > 0)


@kernel
def takers(views, request):
    """How many engines take the request."""
    count = 0
    for e in range(views.shape[0]):
        count += takes(views[e], request)
    return count


@kernel
def nth_taker(n, views, request):
    """The engine at place n, from 0, of those that take the request."""
    for e in range(views.shape[0]):
        if takes(views[e], request):
            if n == 0:
                return e
            n -= 1
    return -1


@router
def in_turn(now_s, r, requests, known, state, parameters, estimates, plan, order, route):
    """Request i goes to engine i mod n, of those that take it."""
    route.engine = nth_taker(r % takers(known.views, requests[r]), known.views, requests[r])


@kernel
def has_room(run, books, e):
    """Whether the queue and the lists of engine e have room for one more (and the record of a router for its work)."""
    capacity = run.queues.shape[1]
    if run.engines[e].queue_length == capacity:
        return False
    return run.engines.shape[0] == 1 or books.known.views[e].requests + 2 <= capacity


@kernel
def send(books, e, r, request, outcome, now_s):
    """The router notes that it sends request r to engine e."""
    view = books.known.views[e]
    view.requests += 1
    view.version += 1
    if view.role == ROLE_DECODE:
        books.known.running[e, view.decodes] = r
        view.decodes += 1
        return
    outcome.sent_tokens = request.emitted_tokens
    books.known.records[e, view.prefills] = r
    view.prefills += 1
    view.prefill_tokens += request.prompt_tokens + request.emitted_tokens
    view.changed_s = now_s
    if view.store_sets > 0:
        prefixes = books.known.prefixes
        view.store_uses = use_chunks(prefixes, prefixes.sent[e], view.store_sets, r, view.store_uses)


@kernel
def tell(run, books, e, r, kind, now_s):
    """A first or last token of request r on engine e is on its way to the router."""
    clock = run.clock[0]
    tokens = run.outcomes[r].sent_tokens if kind == FIRST_TOKEN else run.requests[r].emitted_tokens
    if clock.signal_delay_s == 0.0:
        take_in(clock, books.known, e, r, run.requests[r].prompt_tokens, tokens, kind, now_s)
        return
    signal = books.signals[clock.signals]
    clock.signals += 1
    signal.time_s, signal.request, signal.engine, signal.tokens, signal.kind = now_s, r, e, tokens, kind


@kernel
def signals_fit(run, books, length):
    """Whether an iteration of so many requests can tell the router of its tokens."""
    clock, capacity = run.clock[0], books.signals.shape[0]
    if clock.signal_delay_s > 0.0 and clock.signals + 2 * length > capacity:
        forget_signals(clock, books.signals, -1)
        return clock.signals + 2 * length <= capacity
    return True


@kernel
def report(run, books, e, now_s):
    """Engine e reports what memory it has at the end of an iteration."""
    engine, view = run.engines[e], books.known.views[e]
    if run.clock[0].signal_delay_s == 0.0:
        view.free_blocks, view.decode_tokens, view.busy_until_s = engine.free_blocks, engine.decode_tokens, now_s
        return
    latest = next_report(books.reports[e], now_s)
    latest.free_blocks, latest.decode_tokens, latest.busy_until_s = engine.free_blocks, engine.decode_tokens, now_s


@kernel
def report_busy(run, books, e, until_s, now_s):
    """Engine e reports how long its iteration is estimated to take."""
    if run.clock[0].signal_delay_s == 0.0:
        books.known.views[e].busy_until_s = until_s
        return
    next_report(books.reports[e], now_s).busy_until_s = until_s


@kernel
def next_report(reports, now_s):
    """The latest report, at present like the one before it; two at one time are one."""
    if reports[0].time_s < now_s:
        for k in range(REPORTS - 1, 0, -1):
            older, newer = reports[k], reports[k - 1]
            older.time_s, older.busy_until_s = newer.time_s, newer.busy_until_s
            older.free_blocks, older.decode_tokens = newer.free_blocks, newer.decode_tokens
        reports[0].time_s = now_s
    return reports[0]


@kernel
def catch_up(run, books, now_s):
    """Take in the signals and reports that have come by now."""
    clock, known = run.clock[0], books.known
    if clock.signal_delay_s == 0.0:
        return
    news = clock.news
    while clock.next_signal < clock.signals and (
        books.signals[clock.next_signal].time_s + clock.signal_delay_s <= now_s
    ):
        signal = books.signals[clock.next_signal]
        clock.next_signal += 1
        r, heard_s = signal.request, signal.time_s + clock.signal_delay_s
        take_in(clock, known, signal.engine, r, run.requests[r].prompt_tokens, signal.tokens, signal.kind, heard_s)
    if clock.held == 0:
        clock.news = news  # it came when nobody was waiting for it
    for e in range(run.engines.shape[0]):
        for k in range(REPORTS):
            one = books.reports[e, k]
            if one.time_s + clock.signal_delay_s <= now_s:
                view = known.views[e]
                view.free_blocks, view.decode_tokens = one.free_blocks, one.decode_tokens
                view.busy_until_s = one.busy_until_s
                break


@kernel
def is_heard_now(clock, signals):
    """Whether a signal reaches the router at this very instant; they are in order of time."""
    low, high = clock.next_signal, clock.signals
    while low < high:
        middle = (low + high) // 2
        if signals[middle].time_s + clock.signal_delay_s < clock.now_s:
            low = middle + 1
        else:
            high = middle
    return low < clock.signals and signals[low].time_s + clock.signal_delay_s == clock.now_s


@kernel
def take_in(clock, known, e, r, prompt_tokens, tokens, kind, now_s):
    """The router hears of a first token (the prefill leaves the queue record), or of a last one.

    tokens: those out when the request was sent there; or all it has emitted.
    """
    view = known.views[e]
    clock.news = 1
    view.version += 1
    if kind == LAST_TOKEN:
        view.finished += 1
        view.finished_tokens += tokens
        if view.role == ROLE_PREFILL:
            return  # the first token told the rest
        drop(known.running[e], view.decodes, r)
        view.decodes -= 1
        view.requests -= 1
        return
    drop(known.records[e], view.prefills, r)
    view.prefills -= 1
    view.prefill_tokens -= prompt_tokens + tokens
    view.changed_s = now_s
    if view.role == ROLE_PREFILL:
        view.requests -= 1
    else:
        known.running[e, view.decodes] = r
        view.decodes += 1


@kernel
def take_off(known, e, r):
    """In the router's view request r runs on engine e no more."""
    view = known.views[e]
    drop(known.running[e], view.decodes, r)
    view.decodes -= 1
    view.requests -= 1
    view.version += 1


@kernel
def drop(items, length, r):
    """Take request r out of a list, keeping the order of the others."""
    place = 0
    while items[place] != r:
        place += 1
    for k in range(place, length - 1):
        items[k] = items[k + 1]


@kernel
def forget(run, books, e, now_s):
    """In the router's view nothing is at engine e any more; what was on its way to the router from there is lost."""
    view = books.known.views[e]
    view.requests, view.prefills, view.prefill_tokens, view.decodes = 0, 0, 0, 0
    view.version += 1
    view.changed_s = now_s
    view.free_blocks, view.decode_tokens, view.busy_until_s = run.engines[e].free_blocks, 0, 0.0
    forget_signals(run.clock[0], books.signals, e)
    for k in range(REPORTS):
        one = books.reports[e, k]
        one.time_s, one.busy_until_s = -np.inf, 0.0
        one.free_blocks, one.decode_tokens = view.free_blocks, 0


@kernel
def forget_signals(clock, signals, e):
    """Drop the signals that have been taken in, and those of engine e."""
    kept = 0
    for k in range(clock.next_signal, clock.signals):
        one, to = signals[k], signals[kept]
        if one.engine != e:
            to.time_s, to.request, to.engine = one.time_s, one.request, one.engine
            to.tokens, to.kind = one.tokens, one.kind
            kept += 1
    clock.next_signal, clock.signals = 0, kept
