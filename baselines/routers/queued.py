"""What a router has summed over an engine's queue record, when some of the requests have left it."""

from servegym.simulator.compilation import kernel


@kernel
def take_off_left(snapshot, state, e, summed, of_tokens):
    """Subtract from a sum over the queue record of engine e the part of requests that have left: their share of tokens.

    summed, of_tokens: fields of the router's state: the sum, and the tokens of the record when it was right. (A router
    keeps numbers of engines, not of requests.)
    """
    if state[e, of_tokens] > 0:
        state[e, summed] *= snapshot.prefill_tokens / state[e, of_tokens]
    state[e, of_tokens] = snapshot.prefill_tokens
