"""QoServe's eager relegation (section 3.4, Algorithm 1): a prefill that would be late goes behind all others.

A trial batch is filled in rank order, and each request is tested at its turn. Usually few requests get a turn, so one
pass picks the first few; a heap of the others is built only if these do not suffice.
"""

from typing import Any, NamedTuple

import numpy as np

from servegym.policy import batches, cached_of, kernel, left_of, next_deadline_s, ranks_before

RELEGATION = ("paper", "code", "off")
BY_ITERATION, BY_THROUGHPUT, OFF = range(3)
IMPORTANCE = ("low-first", "spare", "ignore")
LOW_FIRST, SPARE, IGNORE = range(3)
RELEGATED_ORDERS = ("hybrid", "low-first")
LOW_FIRST_BEHIND = 1
NONE, RELEGATED = 0.0, 1.0  # marks of a request
DECODES, MUST_RUN, WAITING = range(3)  # tiers
BEHIND = 2**40  # tier of the relegated; a priority may be subtracted
FEW = 8


@kernel
def behind(request, low_first):
    """Return the tier of a relegated prefill; low_first: less important ones go first."""
    return BEHIND - int(request.priority) if low_first else BEHIND


@kernel
def expected_output_tokens(group):
    """Return the mean output tokens of an application plus two standard deviations; 0: none has finished."""
    if group.finished == 0:
        return 0.0
    return group.mean_output_tokens + 2.0 * np.sqrt(group.squared_deviations / group.finished)


@kernel
def work_of(request, groups):
    """Return the tokens left to compute, with a TTLT SLO plus the output tokens that may still come (Eq. 4, 5)."""
    work = float(left_of(request))
    if request.ttlt_slo_s < np.inf:
        work += max(0.0, expected_output_tokens(groups[request.application]) - request.num_output_tokens)
    return work


class Room(NamedTuple):
    """The room that decodes leave for prefills in a batch."""

    tokens: Any
    time_budget_s: Any  # of the whole batch


@kernel
def is_late(context, p, request, end_s):
    """Return whether a request misses its next deadline at its turn. end_s: end of a batch with it."""
    engine, deadline_s = context.engine, next_deadline_s(request)
    if p.relegation == BY_ITERATION:
        return deadline_s <= end_s
    if request.blocks > 0:
        return False
    needed_s = 0.0
    if engine.scheduled_tokens > 0:
        needed_s = work_of(request, context.state.by_application) * engine.busy_s / engine.scheduled_tokens
    return context.now_s + needed_s > deadline_s


@kernel
def relegate(context, p, ranks, positions, room):
    """Mark and rank the requests that are relegated now. estimator.scratch[0]: batch of all decodes, extended here.

    p: the parameters of qoserve. positions: working memory.
    """
    if test_in_turn(context, p, ranks, positions, room):
        requests, queue, low_first = context.requests, context.queue, p.relegated_order == LOW_FIRST_BEHIND
        for position in range(queue.shape[0]):
            if in_turn(ranks[position]) and context.state.requests[queue[position], 0] == RELEGATED:
                ranks[position].tier = behind(requests[queue[position]], low_first)


@kernel
def test_in_turn(context, p, ranks, positions, room):
    """Fill a trial batch; mark late requests, or less important ones, as relegated. Returns whether any was marked."""
    requests, queue, marks = context.requests, context.queue, context.state.requests
    now_s, estimator, left, time_budget_s = context.now_s, context.estimator, room.tokens, room.time_budget_s
    sums, scratch = estimator.scratch[0], estimator.scratch[1]
    size = first_few(ranks, positions, queue.shape[0])
    heaped, taken, position, any_relegated = False, 0, -1, False
    while left > 0:
        if not heaped and taken == size:
            if size < FEW:
                break
            heaped, size = True, heap_of_those_after(ranks, positions, queue.shape[0], position)
        if heaped and size == 0:
            break
        if heaped:
            position, size = positions[0], size - 1
            positions[0] = positions[size]
            sift(ranks, positions, size, 0)
        else:
            position, taken = positions[taken], taken + 1
        r = queue[position]
        request = requests[r]
        if marks[r, 0] == RELEGATED:
            continue  # relegated in this pass in favour of a more important request
        chunk = min(left_of(request), left)
        if time_budget_s < np.inf:
            untimed = max(0, min(chunk, p.least_chunk_tokens - int(sums.prefill_tokens)))
            chunk = batches.largest_chunk(sums, scratch, chunk, cached_of(request), False, time_budget_s, estimator)
            chunk = max(chunk, untimed)
        if chunk > 0:
            end_s = now_s + batches.estimate_with(sums, scratch, chunk, cached_of(request), False, estimator)
        else:
            end_s = now_s + estimator.batch_s(sums, estimator.coefficients)
        if is_late(context, p, request, end_s):
            lower = 0
            if p.importance != IGNORE:
                lower = less_important(context, ranks, position, p.importance == LOW_FIRST)
            if lower == 0 or p.importance == LOW_FIRST:
                marks[r, 0] = RELEGATED
                any_relegated = True
                continue
        if chunk == 0:
            break
        batches.add(sums, chunk, cached_of(request), False)
        left -= chunk
    return any_relegated


@kernel
def in_turn(rank):
    """Return whether this is the rank of a prefill that was not relegated before this decision."""
    return rank.tier == WAITING or rank.tier == MUST_RUN


@kernel
def less_important(context, ranks, position, mark):
    """Return how many less important requests rank after this position. mark: mark them as relegated."""
    requests, queue, marks = context.requests, context.queue, context.state.requests
    found, priority = 0, requests[queue[position]].priority
    for other in range(queue.shape[0]):
        r = queue[other]
        if requests[r].priority <= priority or marks[r, 0] != NONE or not in_turn(ranks[other]):
            continue
        if ranks_before(ranks, position, other):
            found += 1
            if mark:
                marks[r, 0] = RELEGATED
    return found


@kernel
def first_few(ranks, first, length):
    """Write the positions of the first-ranked `FEW` prefills, and return their number."""
    size = 0
    for position in range(length):
        if not in_turn(ranks[position]):
            continue
        if size == FEW and not ranks_before(ranks, position, first[FEW - 1]):
            continue
        at = min(size, FEW - 1)
        while at > 0 and ranks_before(ranks, position, first[at - 1]):
            first[at] = first[at - 1]
            at -= 1
        first[at] = position
        size = min(size + 1, FEW)
    return size


@kernel
def heap_of_those_after(ranks, heap, length, last):
    """Write the positions of prefills that rank after `last`, as a heap, and return their number."""
    size = 0
    for position in range(length):
        if in_turn(ranks[position]) and ranks_before(ranks, last, position):
            heap[size] = position
            size += 1
    for at in range(size // 2 - 1, -1, -1):
        sift(ranks, heap, size, at)
    return size


@kernel
def sift(ranks, heap, size, at):
    """Move the entry at this index of the heap down to its place."""
    position = heap[at]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and ranks_before(ranks, heap[child + 1], heap[child]):
            child += 1
        if not ranks_before(ranks, heap[child], position):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = position
