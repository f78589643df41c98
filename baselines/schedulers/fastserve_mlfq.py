"""FastServe's multi-level feedback queue with skip-join: short work first, without output lengths.

The rule, step by step, is in docs/systems/fastserve.md.
"""

import numpy as np

from servegym.baselines.schedulers import AT_A_TIME, write_all
from servegym.policy import (
    EVICT_FOR_ALL,
    Parameter,
    Parameters,
    Policy,
    Scratch,
    StateFields,
    batches,
    blocks_for,
    cached_of,
    is_decoding,
    kernel,
    left_of,
    register,
    scheduler,
    victims,
)

ALL_ADMITTED = -1  # in place of a number of waiting requests: all may be admitted
LAST_LEVEL = 62  # 10 ms x 2^62 is longer than any run
KNOWN, LEVEL, USED_S, ENTERED_S, WAITING_SINCE_S, PROGRESS = range(6)  # of state.requests
REQUEST_FIELDS = ("known", "level", "used_s", "entered_s", "waiting_since_s", "progress")
BUSY_THEN_S = 0  # of state.engines
FEW = 8  # waiting requests to consider: more than are admitted at a time
UNKNOWN, CHANGING, SETTLED = range(3)  # values of KNOWN; SETTLED: in the top level until it first runs
SCRATCH = Scratch(indices=("first", "some"))

P = Parameters(
    Parameter("quantum_s", 0.01, "time a request may run in the top level; doubles level by level",
              0.0001, 10, "s", log=True, source="ours"),
    Parameter("promote_after_s", 3.0, "waiting time after which a request goes to the top", 0.001, 1e6, "s",
              log=True, source="ours"),
    Parameter("max_num_batched_tokens", 8192, "most tokens in a batch; a longer prompt runs alone", 1, 2**20, "tokens",
              integer=True, log=True, source="as vllm-fcfs"),
    Parameter("batch_size", 256, "most requests in a batch", 1, 2**20, "requests",
              integer=True, log=True, source="as vllm-fcfs"),
)  # fmt: skip


@kernel
def first_level(request, quantum_s, estimator):
    """Return the first level whose quantum covers the request's remaining work as a batch of its own (skip-join)."""
    scratch = estimator.scratch[0]
    time_s = batches.estimate_alone(scratch, left_of(request), cached_of(request), is_decoding(request), estimator)
    level = 0
    while quantum_s * float(1 << level) < time_s and level < LAST_LEVEL:
        level += 1
    return level


@kernel
def enter(own, level, now_s):
    """Put the request at the end of a level, with a full quantum."""
    own[LEVEL] = level
    own[USED_S] = 0.0
    own[ENTERED_S] = now_s


@kernel
def is_plain(engine):
    """Return whether a waiting request needs the blocks of its whole context, and a decode one token of the budget."""
    if engine.host_blocks > 0 or engine.speculation.k > 0:
        return False
    return engine.cache.on == 0 and engine.ahead.on == 0 and engine.kv_groups.on == 0


@kernel
def update(request, own, ran_s, now_s, p, estimator):
    """Update the request's level by the time since the last decision, ran_s of which it may have run."""
    progress = float(cached_of(request) + request.num_output_tokens)
    if own[KNOWN] == UNKNOWN:
        enter(own, first_level(request, p.quantum_s, estimator), request.arrival_s)
        own[WAITING_SINCE_S] = request.arrival_s
    else:
        if progress > own[PROGRESS]:  # it was in the last iteration
            own[USED_S] += ran_s
            own[WAITING_SINCE_S] = now_s
        if own[USED_S] > 0.0 and own[USED_S] >= p.quantum_s * float(1 << int(own[LEVEL])):
            enter(own, min(own[LEVEL] + 1.0, float(LAST_LEVEL)), now_s)
        elif own[LEVEL] > 0.0 and now_s - own[WAITING_SINCE_S] >= p.promote_after_s:
            enter(own, 0.0, now_s)
    own[KNOWN] = SETTLED if progress == 0.0 and own[LEVEL] == 0.0 and own[USED_S] == 0.0 else CHANGING
    own[PROGRESS] = progress


@kernel
def write_eligible(some, requests, queue, state, entered_s):
    """Write the positions of requests that are not settled, have run, or entered their level before entered_s.

    Of a short queue all positions are written. Returns their number.
    The conditions are unpredictable, so there are no branches; unsigned indices need no check for negative ones.
    """
    if queue.shape[0] < AT_A_TIME:
        return write_all(some, queue.shape[0])
    found = 0
    for i in range(queue.shape[0]):
        request, own = requests[np.uint32(queue[i])], state[np.uint32(queue[i])]
        has_run = (request.blocks | request.computed_tokens | request.offloaded_tokens | request.num_output_tokens) > 0
        some[found] = i
        found += has_run | (own[KNOWN] != SETTLED) | (own[ENTERED_S] < entered_s)
    return found


@kernel
def rank_by_level(rank, own):
    """Rank a request by level, then by when it entered the level."""
    rank.tier = int(own[LEVEL])
    rank.key = own[ENTERED_S]


@kernel
def insert_waiting(first, found, position, context):
    """Insert a position, greater than all so far, into the first waiting requests by level; return the new number."""
    own, i = context.state.requests[context.queue[position]], min(found, FEW - 1)
    while i > 0:
        before = context.state.requests[context.queue[first[i - 1]]]
        if before[LEVEL] < own[LEVEL] or (before[LEVEL] == own[LEVEL] and before[ENTERED_S] <= own[ENTERED_S]):
            break
        first[i] = first[i - 1]
        i -= 1
    first[i] = position
    return min(found + 1, FEW)


@kernel
def most_admitted(first, found, running, context, limits):
    """Return the most waiting requests that are admitted if all running ones are decodes; ALL_ADMITTED: all may be.

    A request without room in memory ends admission; one that exceeds the token budget is passed over.
    """
    engine, tokens = context.engine, running
    free_blocks = engine.free_blocks - min(limits.watermark_blocks, engine.total_blocks)
    for i in range(found):
        request = context.requests[context.queue[first[i]]]
        tokens += left_of(request)
        if tokens > limits.max_num_batched_tokens:
            break
        free_blocks -= blocks_for(request.prompt_tokens + request.num_output_tokens, engine.block_tokens)
        if free_blocks < 0:
            return i
    return ALL_ADMITTED


@kernel
def rank_running(running, context, ranks):
    """Rank the running requests, the first `running` listed ones. Returns whether all of them are decodes."""
    all_decode = running > 0
    for k in range(running):
        r = context.queue[ranks[k].listed]
        rank_by_level(ranks[ranks[k].listed], context.state.requests[r])
        all_decode = all_decode and is_decoding(context.requests[r])
    return all_decode


@kernel
def merge_into_list(first, admitted, running, context, ranks):
    """Merge the admitted requests into the ascending list of running ones, and rank them."""
    for i in range(admitted):
        position, k = first[i], running + i
        while k > 0 and ranks[k - 1].listed > position:
            ranks[k].listed = ranks[k - 1].listed
            k -= 1
        ranks[k].listed = position
        rank_by_level(ranks[position], context.state.requests[context.queue[position]])


@scheduler
def fastserve_mlfq(context, ranks, limits):
    """Rank requests by level.

    A batch has running requests and the first waiting ones up to one without room. If that one is known, later waiting
    requests need no rank, and settled requests need no update.
    """
    p, now_s, engine, state = P.read(context), context.now_s, context.engine, context.state
    s, found, running, level, entered_s = SCRATCH.read(context), 0, 0, LAST_LEVEL + 1.0, 0.0
    most_tokens, limits.max_num_batched_tokens = limits.max_num_batched_tokens, p.max_num_batched_tokens
    limits.sequence_budget = p.batch_size
    limits.whole_prompts = 1
    if engine.host_blocks > 0:
        limits.evict_for = EVICT_FOR_ALL  # swapping keeps the KV of victims
    ran_s = engine.busy_s - state.engines[engine.index, BUSY_THEN_S]
    state.engines[engine.index, BUSY_THEN_S] = engine.busy_s
    for begin in range(0, context.queue.shape[0], AT_A_TIME):
        queue = context.queue[begin : begin + AT_A_TIME]
        before_s = entered_s if level == 0.0 else np.inf
        for i in s.some[: write_eligible(s.some, context.requests, queue, state.requests, before_s)]:
            request, own = context.requests[queue[i]], state.requests[queue[i]]
            update(request, own, ran_s, now_s, p, context.estimator)
            ranks[running].listed = begin + i
            running += request.blocks > 0
            goes_before = own[LEVEL] < level or (own[LEVEL] == level and own[ENTERED_S] < entered_s)
            if goes_before and request.blocks == 0:
                found = insert_waiting(s.first, found, begin + i, context)
                if found == FEW:
                    last = state.requests[context.queue[s.first[FEW - 1]]]
                    level, entered_s = last[LEVEL], last[ENTERED_S]
    if is_plain(engine) and p.max_num_batched_tokens <= most_tokens:
        admitted = most_admitted(s.first, found, running, context, limits)
        if admitted != ALL_ADMITTED and rank_running(running, context, ranks):
            merge_into_list(s.first, admitted, running, context, ranks)
            limits.listed = running + admitted
            return
    for position in range(context.queue.shape[0]):
        rank_by_level(ranks[position], state.requests[context.queue[position]])


@victims
def fastserve_victims(context, ranks, limits):
    """Rank victims: the request that would run last is evicted first, and all its KV is saved to host memory."""
    for position in range(context.queue.shape[0]):
        rank = ranks[position]
        rank.victim_tier = rank.tier
        rank.victim_key = rank.key
        rank.keep_tokens = context.requests[context.queue[position]].computed_tokens


register(
    Policy(
        "fastserve-mlfq",
        "scheduler",
        "Multi-level feedback queue: a request starts where its prefill fits, sinks as it runs, rises when it starves.",
        "FastServe, as ProServe and the semantic paper describe it",
        fastserve_mlfq,
        fastserve_victims,
        parameters=P,
        state=StateFields(request=REQUEST_FIELDS, engine=("busy_then_s",)),
        scratch=SCRATCH,
    )
)  # fmt: skip
