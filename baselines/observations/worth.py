"""What the requests of a queue are still worth, by the rule of `expected-gain`: agents see it and steer by it."""

import numpy as np

from servegym.baselines.deadlines import FROM_EARLY_FIRST_TOKEN, counted_deadline_s
from servegym.baselines.observations.queue import offer
from servegym.baselines.observations.scales import share
from servegym.baselines.schedulers.expected_gain import expected_gain_of
from servegym.simulator.compilation import inlined_kernel, kernel
from servegym.simulator.ordering import sort
from servegym.simulator.requests import is_decoding
from servegym.simulator.statistics import mean_length
from servegym.simulator.types import LEAVE_OUT

PACE = 0.9  # of the smallest TPOT SLO: how long a batch takes where time is short, the default of the schedulers' eta
UNKNOWN_TOKENS = 200.0  # expected of a request before any of its application has finished, as expected-gain has it


@kernel
def tick_of(requests, queue):
    """The smallest TPOT SLO in the queue, s; without interactive requests the smallest TTLT SLO."""
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
    """Tokens that a request is expected to have left: the mean output of its application."""
    group = context.state.by_application[request.application]
    return mean_length(group, UNKNOWN_TOKENS)


@inlined_kernel
def worth_of(context, request, exec_s, constant_s, tick_s):
    """Of what a request could still gain the share that is expected in time if it runs from now on, from 0 to 1."""
    tokens = expected_tokens(context, request)
    slack_s = counted_deadline_s(request, FROM_EARLY_FIRST_TOKEN) - context.now_s - exec_s - constant_s
    possible = request.decode_token_gain * tokens
    if request.emitted_tokens == 0:
        possible += request.first_token_gain
    if slack_s > 0.0 and request.token_interval_s >= PACE * tick_s:  # every token
        return 1.0 if possible > 0.0 else 0.0
    return share(expected_gain_of(request, slack_s, PACE * tick_s, tokens), possible)


@kernel
def weigh(context, ranks, constant_s, tick_s):
    """Write `worth_of` each request into ranks[i].victim_key, which nobody else reads before victims are ranked.

    ranks[i].exec_s: of the estimator.
    """
    queue = context.queue
    for position in range(queue.shape[0]):
        rank = ranks[position]
        rank.victim_key = worth_of(context, context.requests[queue[position]], rank.exec_s, constant_s, tick_s)


@kernel
def fill_with_worthy(requests, queue, ranks, slots, order):
    """Write the positions of the requests that are worth something and rank first into order, in rank order; returns
    how many. Prefills go before decodes, as in `fill_slots`; hopeless requests are in no slot."""
    prefills = fill_on(False, requests, queue, ranks, slots, order)
    return fill_up(requests, queue, ranks, slots, order, prefills)


@kernel
def fill_up(requests, queue, ranks, slots, order, prefills):
    """The same where so many prefills are in order already."""
    filled = prefills + fill_on(True, requests, queue, ranks, slots - prefills, order[prefills:])
    sort(order, ranks, filled)
    return filled


@kernel
def fill_on(decodes, requests, queue, ranks, room, heap):
    """The positions of the decodes (or others) among them, in no order."""
    filled = 0
    if room <= 0:
        return 0
    for position in range(queue.shape[0]):
        if has_slot(ranks[position]) and is_decoding(requests[queue[position]]) == decodes:
            filled = offer(heap, filled, room, position, ranks)
    return filled


@inlined_kernel
def has_slot(rank):
    """Whether a slot can hold it: it is worth something (victim_key), and the base does not leave it out."""
    return rank.victim_key > 0.0 and rank.tier < LEAVE_OUT
