"""Correcting a router's sum over an engine's queue record when requests have left the record."""

from servegym.policy import kernel


@kernel
def take_off_left(snapshot, state, e, summed, of_tokens):
    """Subtract the share of requests that have left, by tokens, from a sum over the queue record of engine e.

    summed, of_tokens: fields of the router's state: the sum, and the tokens of the record when it was exact. A router
    keeps state per engine, not per request.
    """
    if state[e, of_tokens] > 0:
        state[e, summed] *= snapshot.prefill_tokens / state[e, of_tokens]
    state[e, of_tokens] = snapshot.prefill_tokens
