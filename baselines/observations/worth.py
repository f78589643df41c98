"""The worth of queued requests by the rule of `expected-gain`, which agents observe and act on."""

import numpy as np

from servegym.baselines.observations.scales import share
from servegym.baselines.schedulers.expected_gain import ROUNDING
from servegym.baselines.time_budgets import FROM_EARLY_FIRST_TOKEN, counted_deadline_s
from servegym.policy import UNKNOWN_TOKENS, allocating_kernel, inlined_kernel, kernel, mean_length

PACE = 0.9  # shortest batch time in smallest TPOT SLOs: the default eta of the schedulers

BLOCK = 128  # requests; few enough that their prospects stay in the L1 cache

# Rows of float64[PROSPECTS, BLOCK], the inputs of a request's worth. DUE_S: next deadline minus the end of its work, if
# it ran alone; overwritten by IN_TIME, the worth. FIRST_GAIN: 0 once it has its first token. TOKENS: expected number.
DUE_S, INTERVAL_S, FIRST_GAIN, DECODE_GAIN, TOKENS = range(5)
PROSPECTS, IN_TIME = 5, DUE_S


@kernel
def tick_of(requests, queue):
    """Return the smallest TPOT SLO in the queue, s; without interactive requests the smallest TTLT SLO."""
    tick_s, longest_slo_s = np.inf, np.inf
    for position in range(queue.shape[0]):
        request = requests[queue[position]]
        if request.token_interval_s > 0.0:
            tick_s = min(tick_s, request.token_interval_s)
        else:
            longest_slo_s = min(longest_slo_s, request.first_deadline_s - request.arrival_s)
    return tick_s if tick_s < np.inf else longest_slo_s


@kernel
def expected_tokens(context, request):
    """Return the tokens that a request is expected to have left, by the mean output of its application."""
    group = context.state.by_application[request.application]
    return mean_length(group, UNKNOWN_TOKENS)


@inlined_kernel
def note_prospects(request, due_s, first_gain, prospects, k):
    """Write the inputs of a request's worth into column k of prospects, except for its tokens."""
    prospects[DUE_S, k] = due_s
    prospects[INTERVAL_S, k] = request.token_interval_s
    prospects[FIRST_GAIN, k] = first_gain
    prospects[DECODE_GAIN, k] = request.decode_token_gain


@kernel
def blocks_of(n):
    """Return the number of blocks for n requests."""
    return (n + BLOCK - 1) // BLOCK


@kernel
def weigh(context, prospects, block, tick_s):
    """Write the worth of a block's requests into prospects[IN_TIME], and return the number of requests.

    The last loop has no branches or calls, so that it vectorises.
    """
    queue, groups = context.queue[block * BLOCK : (block + 1) * BLOCK], context.state.by_application
    pace_s, dues_s, intervals_s = PACE * tick_s, prospects[DUE_S], prospects[INTERVAL_S]
    firsts, laters, tokens = prospects[FIRST_GAIN], prospects[DECODE_GAIN], prospects[TOKENS]
    mean = mean_length(groups[0], UNKNOWN_TOKENS)
    for k in range(queue.shape[0]):
        tokens[k] = mean
    if groups.shape[0] > 1:  # else the records' second cache line is not read
        for k in range(queue.shape[0]):
            tokens[k] = expected_tokens(context, context.requests[queue[k]])
    for k in range(queue.shape[0]):
        dues_s[k] = worth_of(dues_s[k], intervals_s[k], firsts[k], laters[k], tokens[k], pace_s)
    return queue.shape[0]


@inlined_kernel
def worth_of(slack_s, interval_s, first_gain, decode_gain, tokens, pace_s):
    """Return the share of a request's remaining gain that is expected in time if it runs from now on, from 0 to 1.

    It is the rule of `expected_gain_of`. first_gain: 0 once the request has its first token.
    """
    gained_s = interval_s - pace_s
    steps = -slack_s / (gained_s if gained_s != 0.0 else 1.0)  # until it is late, or has caught up
    caught_up = tokens - np.floor(steps) - 1.0
    caught_up = caught_up if caught_up > ROUNDING and -slack_s < tokens * gained_s else 0.0
    in_time = tokens if gained_s >= 0.0 else min(tokens, np.ceil(steps))
    late = caught_up if gained_s > 0.0 else 0.0
    gain = decode_gain * (in_time if slack_s > 0.0 else late) + (first_gain if slack_s > 0.0 else 0.0)
    return share(gain, decode_gain * tokens + first_gain)


@kernel
def weigh_block(context, ranks, block, constant_s, tick_s, prospects):
    """Write the prospects of a block, then `weigh` it. ranks[i].exec_s: of the estimator."""
    first = block * BLOCK
    for position in range(first, min(first + BLOCK, context.queue.shape[0])):
        request = context.requests[context.queue[position]]
        due_s = (
            counted_deadline_s(request, FROM_EARLY_FIRST_TOKEN) - context.now_s - ranks[position].exec_s - constant_s
        )
        first_gain = request.first_token_gain if request.num_output_tokens == 0 else 0.0
        note_prospects(request, due_s, first_gain, prospects, position - first)
    return weigh(context, prospects, block, tick_s)


@allocating_kernel
def note_worth(context, ranks, constant_s, tick_s):
    """Write the worth of requests into ranks[i].victim_key, which is not used until victims are ranked."""
    prospects = np.empty((PROSPECTS, BLOCK))
    for block in range(blocks_of(context.queue.shape[0])):
        for k in range(weigh_block(context, ranks, block, constant_s, tick_s, prospects)):
            ranks[block * BLOCK + k].victim_key = prospects[IN_TIME, k]
