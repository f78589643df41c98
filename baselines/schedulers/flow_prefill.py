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
SCRATCH = Scratch(indices=("order",))

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
def rank_by_deadline(rank, deadline_s, left_s, now_s, p):
    """Rank by Eq. 3, sgn(slack) / deadline with the highest first and sgn(0) = -1; left_s: what is still to run."""
    slack_s = np.inf
    if p.priority == S_EDF:
        slack_s = deadline_s - now_s - left_s
    elif p.priority == D_EDF:
        slack_s = deadline_s - now_s
    rank.tier = IN_TIME if slack_s > 0.0 else LATE
    rank.key = deadline_s if slack_s > 0.0 or p.late_order == LATE_BY_DEADLINE else -deadline_s


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


@inlined_kernel
def rank_prefill(rank, request, context, limits, p):
    """The rank of what does not decode: by its task's deadline, or by its own and whether it finds room."""
    now_s, engine = context.now_s, context.engine
    if request.task >= 0:
        task = context.state.tasks[request.task]
        left_s = task_left_s(task, request.task == engine.running_task, engine, now_s)
        rank_by_deadline(rank, next_deadline_s(context.requests[task.leader]), left_s, now_s, p)
        return
    deadline_s, left_s = next_deadline_s(request), 0.0
    if p.priority == S_EDF and now_s < deadline_s:  # else it is late whatever is left
        left_s = prefill_s(left_of(request), cached_of(request), context.estimator)
    rank_by_deadline(rank, deadline_s, left_s, now_s, p)
    rank.tier += NO_ROOM * (not has_room(request, engine, limits))  # no branch: nobody could guess it


@kernel
def rank_everybody(context, ranks, limits, p):
    """Alg. 2, lines 7-11: what waits, what is suspended and what runs, in one order."""
    for position in range(context.queue.shape[0]):
        rank, request = ranks[position], context.requests[context.queue[position]]
        if request.task < 0 and is_decoding(request):
            rank.tier, rank.key = DECODES, request.arrival_s
        else:
            rank_prefill(rank, request, context, limits, p)


@kernel
def find_decodes(context, ranks, order):
    """Leave everybody out. Returns how many decodes there are, which begin `order`, and how many who wait with memory
    or with tokens out, which end it."""
    n, decodes, others = context.queue.shape[0], 0, 0
    for position in range(n):
        rank, request = ranks[position], context.requests[context.queue[position]]
        rank.tier, rank.key = LEAVE_OUT, request.arrival_s
        if request.task < 0 and (request.blocks > 0 or request.emitted_tokens > 0):
            if is_decoding(request):
                order[decodes] = position
                decodes += 1
            else:
                others += 1
                order[n - others] = position
    return decodes, others


@kernel
def is_their_turn(context, limits, decodes, p):
    """Whether the turn of the decodes at these positions has come, and their estimate, s. Else limits say how long a
    prefill may keep them waiting.

    Eq. of the page: a slice and a decode iteration take `tbt_share` of the smallest TPOT SLO together.
    """
    now_s, estimator = context.now_s, context.estimator
    memory, sums, tpot_s = context.state.engines[context.engine.index], estimator.scratch[1], np.inf
    if decodes.shape[0] == 0:
        return False, 0.0
    batches.clear(sums)
    for position in decodes:
        request = context.requests[context.queue[position]]
        batches.add(sums, 1, cached_of(request), True)
        tpot_s = min(tpot_s, request.tpot_slo_s)
    decode_s = estimator.batch_s(sums, estimator.coefficients)
    next_s = memory[ENDED] + max(p.least_slice_s, p.tbt_share * tpot_s - decode_s)
    if memory[ENDED] == 0.0 or memory[STARTED] == now_s or now_s >= next_s:
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
def choose_batch(first, context, ranks, limits):
    """Alg. 1: leave in those that run with the request at `first`, leave out the others that wait."""
    p, order, estimator = P.read(context), SCRATCH.read(context).order, context.estimator
    requests, queue, budget = context.requests, context.queue, p.batch_token_budget
    head, waiting, window = requests[queue[first]], 0, FIRST_WINDOW
    tokens, cached = left_of(head), cached_of(head)
    remain_s = next_deadline_s(head) - context.now_s - p.margin * head.ttft_slo_s
    more = tokens <= p.longest_batched_tokens and tokens + 1 < budget
    more = more and prefill_s(tokens, cached, estimator) < remain_s
    for position in range(queue.shape[0]):
        request = requests[queue[position]]
        if position != first and request.task < 0 and not is_decoding(request):
            order[waiting] = position
            waiting += 1
    while waiting > 0:
        # Who is too long by now, whatever comes before it, need not be sorted.
        longest = p.longest_batched_tokens
        if p.misfit != STOP:
            longest = min(longest, budget - tokens - 1)
        candidates = 0
        for i in range(waiting):
            request = requests[queue[order[i]]]
            if more and left_of(request) <= longest and has_room(request, context.engine, limits):
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
def set_limits(limits, p):
    limits.preemptible = p.boundary
    limits.phase = PHASE_FIRST_DECIDES
    if p.chunk_tokens > 0:
        limits.chunk_tokens = p.chunk_tokens
    else:
        limits.whole_prompts = 1


@kernel
def leave_out_behind(first, context, ranks, limits):
    """Alg. 2, lines 12-15. Asked while a task runs, all that counts is who is first."""
    engine, request = context.engine, context.requests[context.queue[first]]
    if engine.running_task < 0 and request.task < 0 and not is_decoding(request) and has_room(request, engine, limits):
        choose_batch(first, context, ranks, limits)


@kernel
def rank_for_batch(context, ranks, limits, everybody):
    """Alg. 2, lines 7-11, and the limits. Returns the position of who is first; NOBODY if the decodes' turn has come.

    Where it has, and the first decode has memory, a batch of decodes runs, or gives memory up: nobody in a task and no
    newcomer gets or loses anything. So their rank does not matter, and unless everybody is asked for they are left out.
    """
    p, order, n = P.read(context), SCRATCH.read(context).order, context.queue.shape[0]
    set_limits(limits, p)
    decodes, others = find_decodes(context, ranks, order)
    due, decode_s = is_their_turn(context, limits, order[:decodes], p)
    if due and not everybody and context.requests[context.queue[order[0]]].blocks > 0:
        for position in order[n - others : n]:
            rank_prefill(ranks[position], context.requests[context.queue[position]], context, limits, p)
    else:
        rank_everybody(context, ranks, limits, p)
    if due:
        for position in order[:decodes]:
            ranks[position].tier = DUE
        note_decodes(context, decode_s)
        return NOBODY
    first = first_ranked(ranks, n)
    if ranks[first].tier == DECODES:
        note_decodes(context, decode_s)
    return first


@scheduler
def rank_all(context, ranks, limits):
    rank_for_batch(context, ranks, limits, True)


@scheduler
def leave_out_others(context, ranks, limits):
    """What is not in the batch, whoever has ranked."""
    leave_out_behind(first_ranked(ranks, context.queue.shape[0]), context, ranks, limits)


@scheduler
def flow_prefill(context, ranks, limits):
    first = rank_for_batch(context, ranks, limits, False)
    if first != NOBODY:
        leave_out_behind(first, context, ranks, limits)


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
