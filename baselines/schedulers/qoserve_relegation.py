"""QoServe's eager relegation (section 3.4, Algorithm 1): a prefill that comes to its turn too late goes behind all.

The batch is filled on paper, in rank order, and each request is tested when it comes to its turn. Most often few get
one, so the first few are picked out of the queue in one pass; only if they are used up, a heap is made of the others.
"""

import numpy as np

from servegym.simulator import batches
from servegym.simulator.compilation import kernel
from servegym.simulator.ordering import ranks_before
from servegym.simulator.requests import cached_of, left_of, next_deadline_s

RELEGATION = ("paper", "code", "off")
BY_ITERATION, BY_THROUGHPUT, OFF = range(3)
IMPORTANCE = ("low-first", "spare", "ignore")
LOW_FIRST, SPARE, IGNORE = range(3)
NONE, RELEGATED = 0.0, 1.0  # marks of a request
DECODES, MUST_RUN, WAITING = range(3)  # tiers
BEHIND = 2**40  # tier of the relegated; a priority may be subtracted
FEW = 8


@kernel
def behind(request, low_first):
    """Tier of a relegated prefill; low_first: of those the less important go first."""
    return BEHIND - int(request.priority) if low_first else BEHIND


@kernel
def expected_output_tokens(group):
    """Output tokens of a request of this application, two standard deviations above the mean; 0: nothing is known."""
    if group.finished == 0:
        return 0.0
    return group.mean_output_tokens + 2.0 * np.sqrt(group.squared_deviations / group.finished)


@kernel
def work_of(request, groups):
    """Tokens left to compute; of a request judged by its last token the output tokens that may come too (Eq. 4, 5)."""
    work = float(left_of(request))
    if request.ttlt_slo_s < np.inf:
        work += max(0.0, expected_output_tokens(groups[request.application]) - request.emitted_tokens)
    return work


@kernel
def is_late(request, now_s, end_s, engine, groups, rule):
    """Whether a request whose turn has come misses its next deadline; end_s: of a batch with it."""
    deadline_s = next_deadline_s(request)
    if rule == BY_ITERATION:
        return deadline_s <= end_s
    if request.blocks > 0:
        return False
    needed_s = 0.0
    if engine.scheduled_tokens > 0:
        needed_s = work_of(request, groups) * engine.busy_s / engine.scheduled_tokens
    return now_s + needed_s > deadline_s


@kernel
def relegate(
    now_s,
    engine,
    requests,
    queue,
    marks,
    groups,
    estimator,
    plan,
    room,
    floor,
    time_budget_s,
    rule,
    importance,
    low_first,
):
    """Mark who is relegated now, and rank it so. estimator.scratch[0] is the batch of all decodes; it is filled up."""
    if test_in_turn(
        now_s, engine, requests, queue, marks, groups, estimator, plan, room, floor, time_budget_s, rule, importance
    ):
        for place in range(queue.shape[0]):
            if in_turn(plan[place]) and marks[queue[place], 0] == RELEGATED:
                plan[place].tier = behind(requests[queue[place]], low_first)


@kernel
def test_in_turn(
    now_s, engine, requests, queue, marks, groups, estimator, plan, room, floor, time_budget_s, rule, importance
):
    """Fill the batch on paper; mark who is late, and the less important. Returns whether anybody is relegated."""
    sums, scratch = estimator.scratch[0], estimator.scratch[1]
    size = first_few(plan, queue.shape[0])
    heaped, taken, place, any_relegated = False, 0, -1, False
    while room > 0:
        if not heaped and taken == size:
            if size < FEW:
                break
            heaped, size = True, heap_of_those_after(plan, queue.shape[0], place)
        if heaped and size == 0:
            break
        if heaped:
            place, size = plan[0].victim_tier, size - 1
            plan[0].victim_tier = plan[size].victim_tier
            sift(plan, size, 0)
        else:
            place, taken = plan[taken].victim_tier, taken + 1
        r = queue[place]
        request = requests[r]
        if marks[r, 0] == RELEGATED:
            continue  # with a more important one, in this step
        chunk = min(left_of(request), room)
        if time_budget_s < np.inf:
            untimed = max(0, min(chunk, floor - int(sums.prefill_tokens)))
            chunk = batches.largest_chunk(sums, scratch, chunk, cached_of(request), False, time_budget_s, estimator)
            chunk = max(chunk, untimed)
        if chunk > 0:
            end_s = now_s + batches.estimate_with(sums, scratch, chunk, cached_of(request), False, estimator)
        else:
            end_s = now_s + estimator.batch_s(sums, estimator.coefficients)
        if is_late(request, now_s, end_s, engine, groups, rule):
            lower = 0
            if importance != IGNORE:
                lower = less_important(requests, queue, marks, plan, place, importance == LOW_FIRST)
            if lower == 0 or importance == LOW_FIRST:
                marks[r, 0] = RELEGATED
                any_relegated = True
                continue
        if chunk == 0:
            break
        batches.add(sums, chunk, cached_of(request), False)
        room -= chunk
    return any_relegated


@kernel
def in_turn(line):
    """Whether this line of the plan is of a prefill that was not relegated before this decision."""
    return line.tier == WAITING or line.tier == MUST_RUN


@kernel
def less_important(requests, queue, marks, plan, place, mark):
    """How many requests that come later in turn are less important than the one at this place; they are marked as
    relegated if `mark`."""
    found, priority = 0, requests[queue[place]].priority
    for other in range(queue.shape[0]):
        r = queue[other]
        if requests[r].priority <= priority or marks[r, 0] != NONE or not in_turn(plan[other]):
            continue
        if ranks_before(plan, place, other):
            found += 1
            if mark:
                marks[r, 0] = RELEGATED
    return found


@kernel
def first_few(plan, length):
    """Places of the `FEW` that come first in turn, in plan[...].victim_tier (victims rank later); their number."""
    size = 0
    for place in range(length):
        if not in_turn(plan[place]):
            continue
        if size == FEW and not ranks_before(plan, place, plan[FEW - 1].victim_tier):
            continue
        at = min(size, FEW - 1)
        while at > 0 and ranks_before(plan, place, plan[at - 1].victim_tier):
            plan[at].victim_tier = plan[at - 1].victim_tier
            at -= 1
        plan[at].victim_tier = place
        size = min(size + 1, FEW)
    return size


@kernel
def heap_of_those_after(plan, length, last):
    """Places of those who come after `last` in turn, as a heap in plan[...].victim_tier; their number."""
    size = 0
    for place in range(length):
        if in_turn(plan[place]) and ranks_before(plan, last, place):
            plan[size].victim_tier = place
            size += 1
    for at in range(size // 2 - 1, -1, -1):
        sift(plan, size, at)
    return size


@kernel
def sift(plan, size, at):
    """Move what is at this position of the heap down to where it belongs."""
    place = plan[at].victim_tier
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and ranks_before(plan, plan[child + 1].victim_tier, plan[child].victim_tier):
            child += 1
        if not ranks_before(plan, plan[child].victim_tier, place):
            break
        plan[at].victim_tier = plan[child].victim_tier
        at = child
    plan[at].victim_tier = place
