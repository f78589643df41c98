"""FlowPrefill's batching: which requests join the first-ranked one in its batch (Alg. 1)."""

import numpy as np

from servegym.baselines.remaining_time import prefill_s
from servegym.baselines.schedulers.flow_prefill_ranking import (
    DECODES,
    NO_ROOM,
    SCRATCH,
    by_own_deadline,
    has_free_blocks,
)
from servegym.policy import (
    EMPTY_BATCH,
    LEAVE_OUT,
    batches,
    bring_forward,
    cached_of,
    kernel,
    left_of,
    next_deadline_s,
)  # fmt: skip
from servegym.simulator.batching.windows import FIRST_WINDOW

MISFITS = ("pass-over", "stop")
STOP = 1


@kernel
def time_for_others(head, now_s, p):
    """Return the time until a batch must end by its first request's deadline (Alg. 1), s."""
    return next_deadline_s(head) - now_s - p.margin * head.ttft_slo_s


@kernel
def may_be_joined(head, context, p):
    """Return whether the request alone leaves tokens and time for others in its batch."""
    tokens = left_of(head)
    if tokens > p.longest_batched_tokens or tokens + 1 >= p.batch_token_budget:
        return False
    return prefill_s(tokens, cached_of(head), context.estimator) < time_for_others(head, context.now_s, p)


@kernel
def longest_candidate(tokens, cached, remain_s, context, p):
    """Return the most tokens of a request that may join a batch of `tokens`; with misfit=stop a longer one ends it."""
    if p.misfit == STOP:
        return p.longest_batched_tokens
    most = min(p.longest_batched_tokens, p.batch_token_budget - tokens - 1)
    if most <= 0:
        return most
    estimator, budget_s = context.estimator, np.nextafter(remain_s, -np.inf)  # strictly less than remain_s
    summed = batches.largest_chunk(
        EMPTY_BATCH[0], estimator.scratch[0], tokens + most, cached, False, budget_s, estimator
    )
    return max(0, summed - tokens)


@kernel
def choose_batch(first, waiting, context, ranks, p):
    """Leave out the requests of order[:waiting] that do not run with the one at `first` (Alg. 1)."""
    order, estimator = SCRATCH.read(context).order, context.estimator
    requests, queue, budget = context.requests, context.queue, p.batch_token_budget
    head, window = requests[queue[first]], FIRST_WINDOW
    tokens, cached, more = left_of(head), cached_of(head), may_be_joined(head, context, p)
    remain_s = time_for_others(head, context.now_s, p)
    while waiting > 0:
        # Requests that are too long in any case need not be sorted.
        longest, candidates = longest_candidate(tokens, cached, remain_s, context, p), 0
        for i in range(waiting):
            if more and left_of(requests[queue[order[i]]]) <= longest:
                order[candidates] = order[i]
                candidates += 1
            else:
                ranks[order[i]].tier = LEAVE_OUT
        sorted_ones = bring_forward(order, ranks, candidates, window)
        for i in range(sorted_ones):
            request = requests[queue[order[i]]]
            if more:
                summed, summed_cached = tokens + left_of(request), cached + cached_of(request)
                if summed < budget and prefill_s(summed, summed_cached, estimator) < remain_s:
                    tokens, cached = summed, summed_cached
                    continue
                more = p.misfit != STOP
            ranks[order[i]].tier = LEAVE_OUT
        order, waiting, window = order[sorted_ones:], candidates - sorted_ones, 2 * window


@kernel
def rank_candidates(first, context, ranks, limits, p):
    """Rank the requests that may join the one at `first`, and leave out other waiting requests and tasks.

    Served requests are ranked already. Returns the number that may join; they are at the start of `order`.
    """
    order, engine, candidates = SCRATCH.read(context).order, context.engine, 0
    head = context.requests[context.queue[first]]
    remain_s = time_for_others(head, context.now_s, p)
    longest = longest_candidate(left_of(head), cached_of(head), remain_s, context, p)
    for position in range(context.queue.shape[0]):
        rank, request = ranks[position], context.requests[context.queue[position]]
        if (request.task < 0) & ((request.blocks > 0) | (request.num_output_tokens > 0)):
            if rank.tier == DECODES or position == first:
                continue
            joins = rank.tier < NO_ROOM and left_of(request) <= longest
        else:
            joins = (request.task < 0) & (left_of(request) <= longest) and has_free_blocks(request, engine, limits)
            rank.key = request.arrival_s
            if joins:
                rank.tier, rank.key = by_own_deadline(request, context, p)
        if joins and position != first:
            order[candidates] = position
            candidates += 1
        else:
            rank.tier = LEAVE_OUT
    return candidates
