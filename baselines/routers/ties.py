"""Ties of routers: the engine that was sent a request longest ago wins, then the lower index."""

from servegym.policy import kernel, takes

# A router's state per engine begins with these. last_sent: running number, from 1, of the last request sent there; 0:
# none. sent: at engine 0, the number of requests sent. measure: what is compared in this decision.
FIELDS = ("last_sent", "sent", "measure")
LAST_SENT, SENT, MEASURE = range(3)


@kernel
def goes_first(snapshots, state, a, b):
    """Return whether engine a wins a tie with engine b."""
    if state[a, LAST_SENT] != state[b, LAST_SENT]:
        return state[a, LAST_SENT] < state[b, LAST_SENT]
    return snapshots[a].index < snapshots[b].index


@kernel
def is_below(snapshots, state, a, b, field):
    """Return whether a number of engine a is smaller than that of engine b, ties broken."""
    if state[a, field] != state[b, field]:
        return state[a, field] < state[b, field]
    return goes_first(snapshots, state, a, b)


@kernel
def least_of_takers(context, request):
    """Return the engine with the smallest measure among those that take the request. request: an index."""
    snapshots, state, least = context.known.snapshots, context.state, -1
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], context.requests[request]) and (
            least < 0 or is_below(snapshots, state, e, least, MEASURE)
        ):
            least = e
    return least


@kernel
def send_to_least(context, request, route):
    """Route the request to the engine with the smallest measure among those that take it. request: an index."""
    send_to(least_of_takers(context, request), context.state, route)


@kernel
def send_to(e, state, route):
    """Route the request to engine e, and count it for later ties."""
    state[0, SENT] += 1.0
    state[e, LAST_SENT] = state[0, SENT]
    route.engine = e


@kernel
def subtract_finished(snapshot, state, e, summed, of_tokens):
    """Scale a sum over the queued prompts of engine e by the share of their tokens that is still queued.

    A router has state per engine, not per request, so it does not know what each prompt added to the sum. summed,
    of_tokens: indices of the sum, and of the queued tokens when it was exact.
    """
    if state[e, of_tokens] > 0:
        state[e, summed] *= snapshot.prefill_tokens / state[e, of_tokens]
    state[e, of_tokens] = snapshot.prefill_tokens
