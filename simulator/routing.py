"""What a router knows: its book of the requests it sent to each engine, and the engines' reports, both perhaps late.

Never an engine's live state. With one engine there is nothing to know, and nothing is kept.
"""

from servegym.simulator.compilation import kernel
from servegym.simulator.signatures import router
from servegym.simulator.types import LAST_TOKEN, REPORTS, ROLE_DECODE, ROLE_PREFILL


@kernel
def takes(view, request):
    """Whether an engine takes the request: one without a token a prefill or co-located engine, else a decode engine."""
    return (view.role == ROLE_DECODE) == (request.emitted_tokens > 0)


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
def in_turn(now_s, r, requests, views, records, state, parameters, estimates, plan, order, route):
    """Request i goes to engine i mod n, of those that take it."""
    route.engine = nth_taker(r % takers(views, requests[r]), views, requests[r])


@kernel
def route(run, books, r, now_s):
    """Have the router name an engine for request r, in books.route."""
    clock = run.clock[0]
    books.route[0].decode_engine = -1
    if run.engines.shape[0] == 1:
        books.route[0].engine = 0
        return
    catch_up(run, books, now_s - clock.signal_delay_s)
    books.router(
        now_s, r, run.requests, books.views, books.records, books.state, books.parameters, books.estimates, run.plan,
        run.order, books.route[0],
    )  # fmt: skip


@kernel
def has_room(run, books, e):
    """Whether the queue and the record of engine e have room for one more (and the record of a router for its work)."""
    capacity = run.queues.shape[1]
    return run.engines[e].queue_length < capacity and books.views[e].prefills + 2 <= capacity


@kernel
def send(books, e, r, request, now_s):
    """The router notes that it sends request r to engine e."""
    if books.views.shape[0] == 1:
        return
    view = books.views[e]
    if view.role == ROLE_DECODE:
        view.requests += 1
        view.decodes += 1
        return
    books.records[e, view.prefills] = r
    view.prefills += 1
    view.prefill_tokens += request.prompt_tokens
    view.requests += 1
    view.changed_s = now_s


@kernel
def tell(run, books, e, r, kind, now_s):
    """A first or last token of request r on engine e is on its way to the router."""
    clock = run.clock[0]
    if kind == LAST_TOKEN and run.engines[e].role == ROLE_PREFILL:
        return  # the first token told all
    if clock.signal_delay_s == 0.0:
        take_in(books.views[e], books.records[e], run.requests[r], r, kind, now_s)
        return
    signal = books.signals[clock.signals]
    clock.signals += 1
    signal.time_s, signal.request, signal.engine, signal.kind = now_s, r, e, kind


@kernel
def report(run, books, e, now_s):
    """Engine e reports at the end of an iteration."""
    engine, view = run.engines[e], books.views[e]
    if run.clock[0].signal_delay_s == 0.0:
        view.free_blocks, view.decode_tokens = engine.free_blocks, engine.decode_tokens
        return
    reports = books.reports[e]
    for k in range(REPORTS - 1, 0, -1):
        older, newer = reports[k], reports[k - 1]
        older.time_s, older.free_blocks, older.decode_tokens = newer.time_s, newer.free_blocks, newer.decode_tokens
    latest = reports[0]
    latest.time_s, latest.free_blocks, latest.decode_tokens = now_s, engine.free_blocks, engine.decode_tokens


@kernel
def catch_up(run, books, until_s):
    """Take in the signals and reports sent up to `until_s`."""
    clock = run.clock[0]
    if clock.signal_delay_s == 0.0:
        return
    while clock.next_signal < clock.signals and books.signals[clock.next_signal].time_s <= until_s:
        signal = books.signals[clock.next_signal]
        clock.next_signal += 1
        e, r = signal.engine, signal.request
        heard_s = signal.time_s + clock.signal_delay_s
        take_in(books.views[e], books.records[e], run.requests[r], r, signal.kind, heard_s)
    for e in range(run.engines.shape[0]):
        for k in range(REPORTS):
            one = books.reports[e, k]
            if one.time_s <= until_s:
                books.views[e].free_blocks, books.views[e].decode_tokens = one.free_blocks, one.decode_tokens
                break


@kernel
def take_in(view, record, request, r, kind, now_s):
    """The router hears of a first token (the prefill leaves the queue record), or of a last one."""
    if kind == LAST_TOKEN:
        view.decodes -= 1
        view.requests -= 1
        return
    place = 0
    while record[place] != r:
        place += 1
    view.prefills -= 1
    for k in range(place, view.prefills):
        record[k] = record[k + 1]
    view.prefill_tokens -= request.prompt_tokens
    view.changed_s = now_s
    if view.role == ROLE_PREFILL:
        view.requests -= 1
    else:
        view.decodes += 1
