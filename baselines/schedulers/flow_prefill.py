"""FlowPrefill (section 5.2, Algorithms 1 and 2): prefills by slack, batched within it, suspended for those before them.

The steps are those of "Rule, exactly" in docs/systems/flowprefill.md.
"""

import numpy as np

from servegym.baselines.remaining_time import prefill_s
from servegym.simulator import batches
from servegym.simulator.compilation import inlined_kernel, kernel
from servegym.simulator.ordering import FIRST_WINDOW, bring_forward, first_ranked
from servegym.simulator.policies import Parameter, Parameters, Policy, Scratch, StateFields, register
from servegym.simulator.requests import cached_of, is_decoding, left_of, next_deadline_s
from servegym.simulator.signatures import scheduler
from servegym.simulator.types import LEAVE_OUT, PHASE_FIRST_DECIDES

PRIORITIES = ("s-edf", "d-edf", "edf")
S_EDF, D_EDF, EDF = range(3)
LATE_ORDERS = ("latest-first", "edf")
LATE_BY_DEADLINE = 1
MISFITS = ("pass-over", "stop")
STOP = 1
BOUNDARIES = ("none", "operator", "layer")  # as NOT_PREEMPTIBLE, AT_OPERATORS, AT_LAYERS
DUE, IN_TIME, LATE, DECODES, NO_ROOM = -1, 0, 1, 2, 3  # tiers; without room: NO_ROOM + IN_TIME or LATE
STARTED, ENDED = range(2)  # of the engine's last decode iteration; the second as estimated
NOBODY = -1  # instead of a position
SCRATCH = Scratch(indices=("order",), ranks=("task_ranks",))

P = Parameters(
    Parameter("priority", "s-edf", "what counts as late: slack (Eq. 3), a deadline that has passed, nothing",
              choices=PRIORITIES, source="FlowPrefill, Eq. 3 and section 6.3"),
    Parameter("late_order", "latest-first", "order of the late: latest deadline first as printed, or edf",
              choices=LATE_ORDERS, source="FlowPrefill, Eq. 3; edf: ours"),
    Parameter("batch_token_budget", 4096, "G: tokens of a batch stay below it; 0: no batching", 0, 2**20,
              "tokens", integer=True, source="FlowPrefill, Alg. 1; value: ours"),
    Parameter("margin", 0.0, "TTFT SLOs of time that batching leaves; 0.1 in the public code", 0, 1,
              source="FlowPrefill, Alg. 1; code"),
    Parameter("longest_batched_tokens", 2**20, "longer requests are not batched; 2048 in the public code",
              1, 2**20, "tokens", integer=True, log=True, source="FlowPrefill, Alg. 1; code"),
    Parameter("misfit", "pass-over", "a candidate that does not fit is passed over, or (code) ends the batch",
              choices=MISFITS, source="FlowPrefill, Alg. 1; code"),
    Parameter("boundary", "operator", "where a prefill can be suspended", choices=BOUNDARIES,
              source="FlowPrefill, section 5.1"),
    Parameter("chunk_tokens", 0, "tokens of a request in a task; 0: whole prompts", 0, 2**20, "tokens",
              integer=True, source="FlowPrefill, section 6.5"),
    Parameter("tbt_share", 0.9, "of the smallest TPOT SLO, for a slice of prefill and the decodes after it",
              0, 10, source="ours"),
    Parameter("least_slice_s", 0.005, "a slice is not shorter", 0.0001, 10, "s", log=True, source="ours"),
)  # fmt: skip


@kernel
def by_deadline(deadline_s, left_s, now_s, p):
    """(tier, key) by Eq. 3, sgn(slack) / deadline, highest first, sgn(0) = -1; left_s: what is still to run."""
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
    """What the estimate of a task leaves of it."""
    ran_s = task.executed_s + (now_s - engine.batch_start_s if runs else 0.0)
    return max(0.0, task.estimate_s - ran_s)


@kernel
def has_room(request, engine, limits):
    """Whether a waiting request finds the memory it needs in free blocks (docs/simulation.md, rules 4 and 5)."""
    # By what the free blocks hold: as many tokens fit as need no more blocks than there are (and no division).
    if request.blocks > 0:
        tokens = request.computed_tokens + min(left_of(request), limits.chunk_tokens)
        return tokens <= (engine.free_blocks + request.blocks) * engine.block_tokens
    free_blocks = engine.free_blocks - (limits.watermark_blocks if engine.holders > 0 else 0)
    return request.prompt_tokens + request.emitted_tokens <= free_blocks * engine.block_tokens


@kernel
def rank_tasks(context, p):
    """The ranks of tasks, suspended or running, by slot. Returns the slot of one that ranks first, or NOBODY, and
    whether another ranks with it."""
    task_ranks, engine, slot = SCRATCH.read(context).task_ranks, context.engine, 0
    to_come, first, tied = engine.suspended + (engine.running_task >= 0), NOBODY, False
    while to_come > 0:
        task, rank = context.state.tasks[slot], task_ranks[slot]
        if task.length > 0:
            left_s = task_left_s(task, slot == engine.running_task, engine, context.now_s)
            deadline_s = next_deadline_s(context.requests[task.leader])
            rank.tier, rank.key = by_deadline(deadline_s, left_s, context.now_s, p)
            if first == NOBODY or goes_before(rank.tier, rank.key, task_ranks[first].tier, task_ranks[first].key):
                first, tied = slot, False
            elif rank.tier == task_ranks[first].tier and rank.key == task_ranks[first].key:
                tied = True
            to_come -= 1
        slot += 1
    return first, tied


@kernel
def goes_before(tier, key, other_tier, other_key):
    return tier < other_tier or (tier == other_tier and key < other_key)


@inlined_kernel
def by_own_deadline(request, context, p):
    """(tier, key) of what waits and finds room."""
    deadline_s, left_s = next_deadline_s(request), 0.0
    if p.priority == S_EDF and context.now_s < deadline_s:  # else it is late whatever is left
        left_s = prefill_s(left_of(request), cached_of(request), context.estimator)
    return by_deadline(deadline_s, left_s, context.now_s, p)


@inlined_kernel
def rank_waiting(rank, request, context, limits, p):
    """The rank of what waits."""
    rank.tier, rank.key = by_own_deadline(request, context, p)
    rank.tier += NO_ROOM * (not has_room(request, context.engine, limits))  # no branch: nobody could guess it


@kernel
def rank_everybody(context, ranks, limits, p):
    """Alg. 2, lines 7-11: what waits, what is suspended and what runs, in one order; tasks have been ranked. Returns
    how many decodes there are, which begin `order`."""
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
def look_through(context, ranks, limits, p):
    """Rank who has been served and is in no task. Returns how many these are, which end `order`; how many of them are
    decodes with memory; and who ranks first of all who wait and find room (or NOBODY), and its rank.

    The last to arrive come first: most have the latest deadlines, so that who comes then need not be asked for room.
    """
    order, n = SCRATCH.read(context).order, context.queue.shape[0]
    served, running, first, tier, key = 0, 0, NOBODY, LEAVE_OUT, np.inf
    for position in range(n - 1, -1, -1):
        request = context.requests[context.queue[position]]
        alone = request.task < 0  # `&`: who is in a task comes as it happens, and no branch should depend on it
        if alone & ((request.blocks > 0) | (request.emitted_tokens > 0)):
            served += 1
            order[n - served] = position
            if is_decoding(request):
                ranks[position].tier, ranks[position].key = DECODES, request.arrival_s
                running += request.blocks > 0
                continue
            rank_waiting(ranks[position], request, context, limits, p)
        own_tier, own_key = by_own_deadline(request, context, p)
        if alone & (not goes_before(tier, key, own_tier, own_key)) and has_room(request, context.engine, limits):
            first, tier, key = position, own_tier, own_key
    return served, running, first, tier, key


@kernel
def first_of_all(slot, tied, first, tier, key, context):
    """Who ranks first of the tasks, where the one in `slot` does, and of those who wait, where `first` does, and its
    rank; of a task any member, unless it depends on its position."""
    task_ranks, requests, queue = SCRATCH.read(context).task_ranks, context.requests, context.queue
    if slot == NOBODY or goes_before(tier, key, task_ranks[slot].tier, task_ranks[slot].key):
        return first, tier, key
    tied = tied or not goes_before(task_ranks[slot].tier, task_ranks[slot].key, tier, key)
    tier, key = task_ranks[slot].tier, task_ranks[slot].key
    leader, position = context.state.tasks[slot].leader, 0
    while queue[position] != leader:
        position += 1
    if tied:
        for earlier in range(position):
            task = requests[queue[earlier]].task
            if earlier == first or (task >= 0 and task_ranks[task].tier == tier and task_ranks[task].key == key):
                return earlier, tier, key
    return position, tier, key


@kernel
def is_their_turn(context, ranks, limits, positions, p):
    """Whether the turn of the decodes among these positions has come, and their estimate, s. Else limits say how long a
    prefill may keep them waiting.

    Eq. of the page: a slice and a decode iteration take `tbt_share` of the smallest TPOT SLO together.
    """
    now_s, estimator = context.now_s, context.estimator
    memory, sums, tpot_s = context.state.engines[context.engine.index], estimator.scratch[1], np.inf
    batches.clear(sums)
    for position in positions:
        if ranks[position].tier == DECODES:
            request = context.requests[context.queue[position]]
            batches.add(sums, 1, cached_of(request), True)
            tpot_s = min(tpot_s, request.tpot_slo_s)
    if sums.decode_requests == 0.0:
        return False, 0.0
    decode_s = estimator.batch_s(sums, estimator.coefficients)
    next_s = memory[ENDED] + max(p.least_slice_s, p.tbt_share * tpot_s - decode_s)
    if memory[ENDED] == 0.0 or memory[STARTED] == now_s or now_s >= next_s:
        for position in positions:
            if ranks[position].tier == DECODES:
                ranks[position].tier = DUE
        return True, decode_s
    limits.slice_s = max(p.least_slice_s, next_s - now_s)
    return False, decode_s


@kernel
def note_decodes(context, decode_s):
    """Who ranks first is a decode: an idle engine runs them now."""
    if context.engine.running_task < 0:
        memory = context.state.engines[context.engine.index]
        memory[STARTED], memory[ENDED] = context.now_s, context.now_s + decode_s


@kernel
def time_for_others(head, now_s, p):
    """What Alg. 1 leaves the others of a batch, s."""
    return next_deadline_s(head) - now_s - p.margin * head.ttft_slo_s


@kernel
def may_be_joined(head, context, p):
    """Whether anybody can run with the request, for all that is known of it alone."""
    tokens = left_of(head)
    if tokens > p.longest_batched_tokens or tokens + 1 >= p.batch_token_budget:
        return False
    return prefill_s(tokens, cached_of(head), context.estimator) < time_for_others(head, context.now_s, p)


@kernel
def longest_that_fits(tokens, cached, remain_s, estimator, most):
    """How many tokens, `most` at most, can be added to so many in the time that remains: more never take less."""
    if most <= 0 or prefill_s(tokens + most, cached, estimator) < remain_s:
        return most
    fits, too_many = 0, most
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if prefill_s(tokens + middle, cached, estimator) < remain_s:
            fits = middle
        else:
            too_many = middle
    return fits


@kernel
def longest_candidate(tokens, cached, remain_s, context, p):
    """Who is longer cannot join these tokens, whatever else does. (Where a misfit ends the batch, it does that.)"""
    if p.misfit == STOP:
        return p.longest_batched_tokens
    most = min(p.longest_batched_tokens, p.batch_token_budget - tokens - 1)
    return longest_that_fits(tokens, cached, remain_s, context.estimator, most)


@kernel
def choose_batch(first, waiting, context, ranks):
    """Alg. 1: leave in those that run with the request at `first`, leave out the others of order[:waiting]."""
    p, order, estimator = P.read(context), SCRATCH.read(context).order, context.estimator
    requests, queue, budget = context.requests, context.queue, p.batch_token_budget
    head, window = requests[queue[first]], FIRST_WINDOW
    tokens, cached, more = left_of(head), cached_of(head), may_be_joined(head, context, p)
    remain_s = time_for_others(head, context.now_s, p)
    while waiting > 0:
        # Who is too long by now, whatever comes before it, need not be sorted.
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
    """Rank who may join the request at `first`, leave out the others that wait, and tasks; who has been served has been
    ranked. Returns how many may, which begin `order`."""
    order, engine, candidates = SCRATCH.read(context).order, context.engine, 0
    head = context.requests[context.queue[first]]
    remain_s = time_for_others(head, context.now_s, p)
    longest = longest_candidate(left_of(head), cached_of(head), remain_s, context, p)
    for position in range(context.queue.shape[0]):
        rank, request = ranks[position], context.requests[context.queue[position]]
        if (request.task < 0) & ((request.blocks > 0) | (request.emitted_tokens > 0)):
            if rank.tier == DECODES or position == first:
                continue
            joins = rank.tier < NO_ROOM and left_of(request) <= longest
        else:
            joins = (request.task < 0) & (left_of(request) <= longest) and has_room(request, engine, limits)
            rank.key = request.arrival_s
            if joins:
                rank.tier, rank.key = by_own_deadline(request, context, p)
        if joins and position != first:
            order[candidates] = position
            candidates += 1
        else:
            rank.tier = LEAVE_OUT
    return candidates


@kernel
def set_limits(limits, p):
    limits.preemptible = p.boundary
    limits.phase = PHASE_FIRST_DECIDES
    if p.chunk_tokens > 0:
        limits.chunk_tokens = p.chunk_tokens
    else:
        limits.whole_prompts = 1


@kernel
def list_with(first, positions, ranks, limits):
    """List these positions, in ascending order, and `first` if it is not among them; or NOBODY else."""
    k = 0
    for position in positions:
        if NOBODY < first < position:
            ranks[k].listed, first = first, NOBODY
            k += 1
        if position == first:
            first = NOBODY
        ranks[k].listed = position
        k += 1
    if first != NOBODY:
        ranks[k].listed = first
        k += 1
    limits.listed = k


@kernel
def rank_for_batch(context, ranks, limits, p):
    """Alg. 2, lines 7-11, and whose turn it is."""
    decodes = SCRATCH.read(context).order[: rank_everybody(context, ranks, limits, p)]
    due, decode_s = is_their_turn(context, ranks, limits, decodes, p)
    if due or ranks[first_ranked(ranks, context.queue.shape[0])].tier == DECODES:
        note_decodes(context, decode_s)


@scheduler
def rank_all(context, ranks, limits):
    p = P.read(context)
    set_limits(limits, p)
    rank_tasks(context, p)
    rank_for_batch(context, ranks, limits, p)


@scheduler
def leave_out_others(context, ranks, limits):
    """Alg. 2, lines 12-15, whoever has ranked. Asked while a task runs, all that counts is who is first."""
    requests, queue, engine, n = context.requests, context.queue, context.engine, context.queue.shape[0]
    order, first, waiting = SCRATCH.read(context).order, first_ranked(ranks, n), 0
    head = requests[queue[first]]
    if engine.running_task >= 0 or head.task >= 0 or is_decoding(head) or not has_room(head, engine, limits):
        return
    for position in range(n):
        request = requests[queue[position]]
        if position == first or request.task >= 0 or is_decoding(request):
            continue
        if has_room(request, engine, limits):
            order[waiting] = position
            waiting += 1
        else:
            ranks[position].tier = LEAVE_OUT
    choose_batch(first, waiting, context, ranks)


@scheduler
def flow_prefill(context, ranks, limits):
    """What both do, as far as it matters.

    If a task is first it goes on, and if a request that waits and finds room is, it runs: in which order others come
    does not matter, unless they may join it. Decodes come before what finds no room. If one has memory, a batch of
    decodes runs, or gives memory up: nobody in a task and no newcomer gets or loses anything.
    """
    p, s, n = P.read(context), SCRATCH.read(context), context.queue.shape[0]
    requests, queue = context.requests, context.queue
    set_limits(limits, p)
    slot, tied = rank_tasks(context, p)
    found, running, first, tier, key = look_through(context, ranks, limits, p)
    first, tier, key = first_of_all(slot, tied, first, tier, key, context)
    served = s.order[n - found : n]
    due, decode_s = is_their_turn(context, ranks, limits, served, p)
    if due or first == NOBODY:
        if running == 0:
            rank_for_batch(context, ranks, limits, p)
        else:
            note_decodes(context, decode_s)
            list_with(NOBODY, served, ranks, limits)
        return
    if context.engine.running_task >= 0 or requests[queue[first]].task >= 0:
        served = served[:0]
    elif may_be_joined(requests[queue[first]], context, p):
        candidates = rank_candidates(first, context, ranks, limits, p)
        ranks[first].tier, ranks[first].key = tier, key
        choose_batch(first, candidates, context, ranks)
        return
    for position in served:
        if ranks[position].tier != DECODES:
            ranks[position].tier = LEAVE_OUT
    ranks[first].tier, ranks[first].key = tier, key
    list_with(first, served, ranks, limits)


register(
    Policy(
        "flow-prefill",
        "scheduler",
        "Prompts by deadline, those that would be late last, in batches that are suspended for what comes first.",
        "FlowPrefill, section 5, Algorithms 1 and 2",
        flow_prefill,
        halves=(rank_all, leave_out_others),
        state=StateFields(engine=("decodes_started_s", "decodes_ended_s"), tasks=True, repeatable=True),
        parameters=P,
        scratch=SCRATCH,
    )
)  # fmt: skip
