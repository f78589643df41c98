"""FlowPrefill's order of waiting, suspended and running prefills (Eq. 3; Alg. 2, lines 7-11)."""

import numpy as np

from servegym.baselines.remaining_time import prefill_s
from servegym.baselines.schedulers import AT_A_TIME, write_all
from servegym.policy import LEAVE_OUT, Scratch, cached_of, inlined_kernel, is_decoding, kernel, left_of, next_deadline_s

PRIORITIES = ("s-edf", "d-edf", "edf")
S_EDF, D_EDF, EDF = range(3)
LATE_ORDERS = ("latest-first", "edf")
LATE_BY_DEADLINE = 1
DUE, IN_TIME, LATE, DECODES, NO_ROOM = -1, 0, 1, 2, 3  # tiers; without room: NO_ROOM + IN_TIME or LATE
NO_POSITION = -1
SCRATCH = Scratch(indices=("order", "some"), ranks=("task_ranks",))


@kernel
def by_deadline(deadline_s, left_s, now_s, p):
    """Return (tier, key) by Eq. 3: sgn(slack) / deadline, highest first, sgn(0) = -1. left_s: remaining time."""
    slack_s = np.inf
    if p.priority == S_EDF:
        slack_s = deadline_s - now_s - left_s
    elif p.priority == D_EDF:
        slack_s = deadline_s - now_s
    if slack_s > 0.0:
        return IN_TIME, deadline_s
    return LATE, deadline_s if p.late_order == LATE_BY_DEADLINE else -deadline_s


@kernel
def task_left_s(task, runs, engine, now_s):
    """Return the estimated remaining time of a task, s."""
    ran_s = task.executed_s + (now_s - engine.batch_start_s if runs else 0.0)
    return max(0.0, task.estimate_s - ran_s)


@kernel
def room_for_waiting(engine, limits):
    """Return the longest context of a waiting request that fits in free memory, in tokens."""
    return (engine.free_blocks - (limits.watermark_blocks if engine.running > 0 else 0)) * engine.block_tokens


@kernel
def has_free_blocks(request, engine, limits):
    """Return whether the memory that a request needs is free (docs/simulation.md, rules 4 and 5)."""
    # In tokens instead of blocks, which needs no division.
    if request.blocks > 0:
        tokens = request.computed_tokens + min(left_of(request), limits.chunk_tokens)
        return tokens <= (engine.free_blocks + request.blocks) * engine.block_tokens
    return request.prompt_tokens + request.num_output_tokens <= room_for_waiting(engine, limits)


@kernel
def rank_tasks(context, p):
    """Write the ranks of suspended and running tasks.

    Returns the index of the first-ranked task, or NO_POSITION, and whether another has the same rank.
    """
    task_ranks, engine, index = SCRATCH.read(context).task_ranks, context.engine, 0
    to_come, first, tied = engine.suspended + (engine.running_task >= 0), NO_POSITION, False
    while to_come > 0:
        task, rank = context.state.tasks[index], task_ranks[index]
        if task.length > 0:
            left_s = task_left_s(task, index == engine.running_task, engine, context.now_s)
            deadline_s = next_deadline_s(context.requests[task.leader])
            rank.tier, rank.key = by_deadline(deadline_s, left_s, context.now_s, p)
            if first == NO_POSITION or goes_before(rank.tier, rank.key, task_ranks[first].tier, task_ranks[first].key):
                first, tied = index, False
            elif rank.tier == task_ranks[first].tier and rank.key == task_ranks[first].key:
                tied = True
            to_come -= 1
        index += 1
    return first, tied


@kernel
def goes_before(tier, key, other_tier, other_key):
    """Return whether the first (tier, key) ranks before the other."""
    return tier < other_tier or (tier == other_tier and key < other_key)


@inlined_kernel
def by_own_deadline(request, context, p):
    """Return (tier, key) of a waiting request with room in memory."""
    deadline_s, left_s = next_deadline_s(request), 0.0
    if p.priority == S_EDF and context.now_s < deadline_s:  # past its deadline it is late in any case
        left_s = prefill_s(left_of(request), cached_of(request), context.estimator)
    return by_deadline(deadline_s, left_s, context.now_s, p)


@inlined_kernel
def rank_waiting(rank, request, context, limits, p):
    """Write the rank of a waiting request, with or without room in memory."""
    rank.tier, rank.key = by_own_deadline(request, context, p)
    rank.tier += NO_ROOM * (
        not has_free_blocks(request, context.engine, limits)
    )  # no branch: it would be unpredictable


@kernel
def rank_in_one_order(context, ranks, limits, p):
    """Rank waiting, suspended and running requests in one order (Alg. 2, lines 7-11); tasks are ranked already.

    Returns the number of decodes; they are at the start of `order`.
    """
    s, decodes = SCRATCH.read(context), 0
    for position in range(context.queue.shape[0]):
        rank, request = ranks[position], context.requests[context.queue[position]]
        if request.task >= 0:
            rank.tier, rank.key = s.task_ranks[request.task].tier, s.task_ranks[request.task].key
        elif is_decoding(request):
            rank.tier, rank.key = DECODES, request.arrival_s
            s.order[decodes] = position
            decodes += 1
        else:
            rank_waiting(rank, request, context, limits, p)
    return decodes


@kernel
def deadline_to_reach(tier, key, now_s, p):
    """Return a deadline such that a waiting request with an earlier one ranks after (tier, key)."""
    if tier == IN_TIME:
        return -np.inf if p.priority == EDF else now_s
    if tier == LATE and p.late_order != LATE_BY_DEADLINE:
        return min(-key, now_s)
    return -np.inf


@kernel
def write_eligible(some, requests, queue, earliest_s, most_tokens):
    """Write the positions of requests that have been served, or that have a deadline from earliest_s on and at most
    most_tokens prompt tokens.

    Of a short queue all positions are written. Returns their number.
    The conditions are unpredictable, so there are no branches; unsigned indices need no check for negative ones.
    """
    if queue.shape[0] < AT_A_TIME:
        return write_all(some, queue.shape[0])
    found = 0
    for i in range(queue.shape[0]):
        request = requests[np.uint32(queue[i])]
        may_be_first = (request.first_deadline_s >= earliest_s) & (request.prompt_tokens <= most_tokens)
        some[found] = i
        found += ((request.blocks | request.num_output_tokens) > 0) | may_be_first
    return found


@kernel
def look_through(context, ranks, limits, p):
    """Rank requests that have been served and are in no task, and find the first-ranked waiting request with room.

    Returns the number of served requests, which are at the end of `order`, the number of running decodes, and position
    (NO_POSITION: none), tier and key of that waiting request. The scan begins with the last arrivals, which mostly have
    the latest deadlines, so that few earlier ones need a rank.
    """
    s, n = SCRATCH.read(context), context.queue.shape[0]
    served, running, first, tier, key = 0, 0, NO_POSITION, LEAVE_OUT, np.inf
    earliest_s, most_tokens = -np.inf, room_for_waiting(context.engine, limits)
    for end in range(n, 0, -AT_A_TIME):
        begin = max(0, end - AT_A_TIME)
        found = write_eligible(s.some, context.requests, context.queue[begin:end], earliest_s, most_tokens)
        for i in range(found - 1, -1, -1):
            position = begin + s.some[i]
            request = context.requests[context.queue[position]]
            if request.task >= 0:
                continue
            if request.blocks > 0 or request.num_output_tokens > 0:
                served += 1
                s.order[n - served] = position
                if is_decoding(request):
                    ranks[position].tier, ranks[position].key = DECODES, request.arrival_s
                    running += request.blocks > 0
                    continue
                rank_waiting(ranks[position], request, context, limits, p)
            own_tier, own_key = by_own_deadline(request, context, p)
            if not goes_before(tier, key, own_tier, own_key) and has_free_blocks(request, context.engine, limits):
                first, tier, key = position, own_tier, own_key
        if first != NO_POSITION:
            earliest_s = deadline_to_reach(tier, key, context.now_s, p)
    return served, running, first, tier, key


@kernel
def first_of_all(index, tied, first, tier, key, context):
    """Return position, tier and key of the first-ranked of all.

    index: the first-ranked task; tied: another task has its rank. first, tier, key: the first-ranked waiting request.
    Of a task any request is returned, unless a tie is decided by position.
    """
    task_ranks, requests, queue = SCRATCH.read(context).task_ranks, context.requests, context.queue
    if index == NO_POSITION or goes_before(tier, key, task_ranks[index].tier, task_ranks[index].key):
        return first, tier, key
    if goes_before(task_ranks[index].tier, task_ranks[index].key, tier, key):
        first = NO_POSITION
    tier, key = task_ranks[index].tier, task_ranks[index].key
    leader, position = context.state.tasks[index].leader, 0
    while queue[position] != leader:
        position += 1
    if tied or first != NO_POSITION:
        for earlier in range(position):
            task = requests[queue[earlier]].task
            if earlier == first or (task >= 0 and task_ranks[task].tier == tier and task_ranks[task].key == key):
                return earlier, tier, key
    return position, tier, key
