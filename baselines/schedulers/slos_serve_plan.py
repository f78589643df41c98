"""The dynamic program of SLOs-Serve, which decides which new requests to accept.

It visits requests by the deadline of their prefill. For each number of new requests accepted so far it keeps the state
with the most spare prefill tokens: tokens that can be computed by then while all decodes keep their pace.
"""

from typing import NamedTuple

import numpy as np

from servegym.policy import (
    Scratch,
    batches,
    blocks_for,
    is_decoding,
    kernel,
    left_of,
    mean_length,
    next_deadline_s,
    sort,
)

UNDECIDED, ACCEPTED, DECLINED = range(3)
MOST_NEW = 60  # new requests in a plan; a set of them is the bits of an integer
ROUNDING = 1e-6  # tokens: above the rounding errors of means and rates
NONE = -1.0  # spare prefill tokens of a state that does not exist

# At place k: the state with k + 1 new requests: spare prefill tokens; number of decodes by then, their cached tokens,
# shortest TPOT SLO, and tokens due per second; KV blocks; and the accepted new requests as bits.
PLAN = Scratch("spare", "decodes", "cached", "tpot_s", "due_per_s", "blocks", indices=("chosen", "order", "new"))


class Ahead(NamedTuple):
    """A state: spare prefill tokens, and sums over decodes."""

    spare: float
    decodes: float
    cached: float
    tpot_s: float
    due_per_s: float
    blocks: float


@kernel
def state_of(s, place):
    """Return the state at a place."""
    return Ahead(
        s.spare[place], s.decodes[place], s.cached[place], s.tpot_s[place], s.due_per_s[place], s.blocks[place]
    )


@kernel
def keep(s, place, state):
    """Write a state to a place."""
    s.spare[place], s.decodes[place], s.cached[place] = state.spare, state.decodes, state.cached
    s.tpot_s[place], s.due_per_s[place], s.blocks[place] = state.tpot_s, state.due_per_s, state.blocks


@kernel
def fill(sums, state, seconds):
    """Write to `sums` the decode tokens that are due in a batch of `seconds`."""
    batches.clear(sums)
    if state.decodes > 0:
        sums.decode_requests = np.ceil(state.due_per_s * seconds - ROUNDING)
        sums.longest_decode_cached = np.floor(state.cached / state.decodes)
        sums.decode_cached_tokens = sums.decode_requests * sums.longest_decode_cached


@kernel
def after(state, seconds, most_tokens, estimator):
    """Return the state `seconds` later, with the prefill tokens of batches as long as the shortest TPOT SLO added."""
    if not seconds > 0.0:
        return state
    sums, scratch = estimator.scratch[0], estimator.scratch[1]
    batch_s = min(seconds, state.tpot_s)
    fill(sums, state, batch_s)
    most = most_tokens - int(sums.decode_requests)
    if most < 1:
        return state
    chunk = batches.largest_chunk(sums, scratch, most, 0, False, batch_s, estimator)
    if chunk == 0:
        return state
    if state.tpot_s == np.inf:  # no decode has a TPOT SLO: batches take as long as their chunk
        batch_s = batches.estimate_with(sums, scratch, chunk, 0, False, estimator)
    tokens = np.floor(seconds / batch_s) * chunk
    return Ahead(state.spare + tokens, state.decodes, state.cached, state.tpot_s, state.due_per_s, state.blocks)


@kernel
def with_request(state, request, prefill_tokens, blocks):
    """Return the state with this request accepted: its prefill takes spare tokens, and then it is a decode."""
    tpot_s, due_per_s = state.tpot_s, state.due_per_s
    if request.token_interval_s > 0.0:
        tpot_s, due_per_s = min(tpot_s, request.token_interval_s), due_per_s + 1.0 / request.token_interval_s
    return Ahead(
        state.spare - prefill_tokens, state.decodes + 1.0, state.cached + request.prompt_tokens, tpot_s, due_per_s,
        state.blocks + blocks,
    )  # fmt: skip


@kernel
def is_paced(state, estimator):
    """Return whether the decodes alone keep their pace."""
    if state.tpot_s == np.inf:
        return True
    fill(estimator.scratch[0], state, state.tpot_s)
    return estimator.batch_s(estimator.scratch[0], estimator.coefficients) <= state.tpot_s


@kernel
def accept_one(s, base, states, request, bit, blocks, total_blocks, estimator):
    """Add a new request to each state, those with most requests first, and return the new number of states."""
    most = states
    for place in range(min(states, MOST_NEW - 1), -1, -1):
        state = base if place == 0 else state_of(s, place - 1)
        if state.spare == NONE:
            continue
        more = with_request(state, request, left_of(request), blocks)
        if more.spare < 0.0 or more.blocks > total_blocks or not is_paced(more, estimator):
            continue
        if place == states:
            s.spare[place] = NONE
            most = states + 1
        if more.spare > s.spare[place]:
            keep(s, place, more)
            s.chosen[place] = (0 if place == 0 else s.chosen[place - 1]) | (np.int64(1) << bit)
    return most


@kernel
def plan(context, ranks, s, most_tokens, output_tokens):
    """Accept or decline the MOST_NEW new requests with the earliest deadlines, in marks. ranks: scratch for sorting."""
    requests, queue, estimator = context.requests, context.queue, context.estimator
    marks, groups = context.state.requests, context.state.by_application
    items, new, states = 0, 0, 0
    base = Ahead(0.0, 0.0, 0.0, np.inf, 0.0, 0.0)
    for position in range(queue.shape[0]):
        request, mark = requests[queue[position]], marks[queue[position], 0]
        if mark == ACCEPTED and is_decoding(request):
            base = with_request(base, request, 0, blocks_of(request, groups, output_tokens, context.engine))
        elif mark != DECLINED:
            ranks[position].tier, ranks[position].key = 0, next_deadline_s(request)
            s.order[items] = position
            items += 1
    sort(s.order, ranks, items)
    at_s = context.now_s
    for k in range(items):
        r = queue[s.order[k]]
        request, mark = requests[r], marks[r, 0]
        if mark == UNDECIDED and new == MOST_NEW:
            continue
        deadline_s = max(at_s, ranks[s.order[k]].key)
        base = after(base, deadline_s - at_s, most_tokens, estimator)
        for place in range(states):
            if s.spare[place] != NONE:
                keep(s, place, after(state_of(s, place), deadline_s - at_s, most_tokens, estimator))
        at_s = deadline_s
        blocks = blocks_of(request, groups, output_tokens, context.engine)
        if mark == UNDECIDED:
            states = accept_one(s, base, states, request, new, blocks, context.engine.total_blocks, estimator)
            s.new[new] = r
            new += 1
        elif base.spare < left_of(request):
            marks[r, 0] = DECLINED  # it cannot be in time any more
        else:
            base = with_request(base, request, left_of(request), blocks)
            for place in range(states):
                if s.spare[place] != NONE:
                    state = with_request(state_of(s, place), request, left_of(request), blocks)
                    keep(s, place, state)
                    if state.spare < 0.0:
                        s.spare[place] = NONE
    while states > 0 and s.spare[states - 1] == NONE:
        states -= 1
    for k in range(new):
        is_chosen = states > 0 and (s.chosen[states - 1] >> k) & 1 == 1
        marks[s.new[k], 0] = ACCEPTED if is_chosen else DECLINED


@kernel
def blocks_of(request, groups, output_tokens, engine):
    """Return the KV blocks of a request if its output has the expected length."""
    expected = max(float(request.num_output_tokens), mean_length(groups[request.application], output_tokens))
    return blocks_for(request.prompt_tokens + int(np.ceil(expected - ROUNDING)), engine.block_tokens)
