"""Requests at the router: those that went there at this instant, those it holds in lines, and those that are ready.

A line is a chain of requests by OUTCOME.next_in_line. known.tiers has one for each tier, one for best effort, and
after them the inbox: requests to be routed now.
"""

from servegym.simulator.compilation import inlined_kernel, kernel
from servegym.simulator.routing import catch_up, may_decode, takers, takes, would_take
from servegym.simulator.timeline import note
from servegym.simulator.types import HELD, HOLD, STAY

READY, NO_LINE = -1, -2  # instead of a line: the request is ready now; there is none to be routed


@kernel
def inbox_of(tiers):
    return tiers.shape[0] - 1


@kernel
def tier_of(request, tiers):
    """The last tier whose TPOT is not above the request's own; the first, if there is none."""
    tier = 0
    for t in range(1, tiers.shape[0] - 2):
        if tiers[t].tpot_slo_s <= request.tpot_slo_s:
            tier = t
    return tier


@kernel
def append(line, outcomes, r):
    """Request r goes to the end of the line."""
    outcomes[r].next_in_line = -1
    if line.waiting == 0:
        line.first = r
    else:
        outcomes[line.last].next_in_line = r
    line.last = r
    line.waiting += 1


@kernel
def drop_first(line, outcomes):
    """The first request leaves the line."""
    line.first = outcomes[line.first].next_in_line
    line.waiting -= 1


@kernel
def drop_from(line, outcomes, r):
    """Request r leaves the line, wherever it stands."""
    if line.first == r:
        drop_first(line, outcomes)
        return
    before = line.first
    while outcomes[before].next_in_line != r:
        before = outcomes[before].next_in_line
    outcomes[before].next_in_line = outcomes[r].next_in_line
    if line.last == r:
        line.last = before
    line.waiting -= 1


@inlined_kernel
def next_line(run, books, alone):
    """The line whose first request is to be routed now; READY: that which is ready next; NO_LINE: there is none."""
    clock, tiers = run.clock[0], books.known.tiers
    inbox = inbox_of(tiers)
    if not alone and tiers[inbox].waiting > 0:
        return inbox
    if not alone and clock.news == 1:
        while clock.held > 0 and clock.asking < inbox:
            if tiers[clock.asking].waiting > 0:
                return clock.asking
            clock.asking += 1
        clock.news, clock.asking = 0, 0
    if clock.next_arrival < run.requests.shape[0] and run.outcomes[clock.next_arrival].ready_s <= clock.now_s:
        return READY
    return NO_LINE


@kernel
def ask(run, books, r, line, now_s):
    """Have the router decide about request r, in books.route. False: there is nothing to decide."""
    request, route, views = run.requests[r], books.route[0], books.known.views
    route.decode_engine, route.tier, route.line = -1, STAY, tier_of(request, books.known.tiers)
    route.engine = run.outcomes[r].decode_engine  # as it said beforehand
    if route.engine >= 0 and request.computed_tokens > 0 and takes(views[route.engine], request):
        return False
    route.engine = HOLD
    catch_up(run, books, now_s)
    if takers(views, request) == 0:
        if 0 <= line < inbox_of(books.known.tiers):
            route.line = line
        return False
    books.router(
        now_s, r, run.requests, books.known, books.state, books.parameters, books.estimates, run.plan, run.order, route
    )  # fmt: skip
    return True


@kernel
def is_legal(run, books, r):
    """Whether what the router has decided about request r can be done."""
    route, tiers, engines = books.route[0], books.known.tiers, run.engines.shape[0]
    if route.engine == HOLD:
        return 0 <= route.line < tiers.shape[0] - 1
    if route.tier != STAY and run.clock[0].moving == 0:
        return False
    if not 0 <= route.engine < engines:
        return False
    view, request = books.known.views[route.engine], run.requests[r]
    if not takes(view, request) and (route.tier == STAY or not would_take(view, request)):
        return False
    if not -1 <= route.tier < tiers.shape[0] - 2:
        return False
    return route.decode_engine == HOLD or (
        0 <= route.decode_engine < engines and may_decode(books.known.views[route.decode_engine])
    )


@kernel
def keep_waiting(run, books, line, r):
    """The router holds request r, which comes from a line."""
    clock, tiers, to = run.clock[0], books.known.tiers, books.route[0].line
    if line == to:
        clock.asking += 1
        return
    take_from(run, books, line)
    append(tiers[to], run.outcomes, r)
    clock.held += 1
    if clock.recording:
        note(run, HELD, -1, r, to, 0.0)


@kernel
def take_from(run, books, line):
    """The first request of a line, or the one that is ready, is on its way somewhere."""
    clock, tiers = run.clock[0], books.known.tiers
    if line == READY:
        clock.next_arrival += 1
        return
    drop_first(tiers[line], run.outcomes)
    if line != inbox_of(tiers):
        clock.held -= 1


@kernel
def to_router(run, books, r):
    """Request r goes to the router, to be routed at this instant."""
    append(books.known.tiers[inbox_of(books.known.tiers)], run.outcomes, r)
