"""QoServe (section 3, Algorithm 1): dynamic chunking, hybrid priority, eager relegation, selective preemption.

The steps are those of "Rule, exactly" in docs/systems/qoserve.md.
"""

import numpy as np

from servegym.baselines.schedulers.qoserve_relegation import (
    DECODES,
    IMPORTANCE,
    LOW_FIRST_BEHIND,
    MUST_RUN,
    OFF,
    RELEGATED,
    RELEGATED_ORDERS,
    RELEGATION,
    WAITING,
    Room,
    behind,
    expected_output_tokens,
    relegate,
    work_of,
)
from servegym.baselines.time_budgets import steps
from servegym.policy import (
    MISFIT_STOP,
    Parameter,
    Parameters,
    Policy,
    Scratch,
    StateFields,
    batches,
    cached_of,
    is_decoding,
    kernel,
    left_of,
    next_deadline_s,
    register,
    scheduler,
    tokens_of_decode,
)

DYNAMIC = ("paper", "code", "off")
PAPER, CODE, STATIC = range(3)
TTLT_SLACK = ("unbounded", "paced")
PACED = 1
SELECTIVE_PREEMPTION = ("on", "off")
SELECTIVE = 0
CODE_SIZES = (2552, 2048, 1024, 512, 256, 128)  # tokens of a batch
CODE_SAFETY, CODE_FREE_BLOCKS, CODE_SHORT_OF_MEMORY = 1.2, 1000, 512
SCRATCH = Scratch(indices=("positions",))  # of prefills that have begun; later those of `test_in_turn`

P = Parameters(
    Parameter("dynamic_chunking", "paper", "prefill tokens of a batch: as many as the decodes' slack allows (paper), "
              "the largest of a few sizes that it allows (code), or a fixed token budget (off)",
              choices=DYNAMIC, source="QoServe, section 3.6.1; its code"),
    Parameter("largest_chunk_tokens", 2500, "most prefill tokens in a batch", 1, 2**20, "tokens", integer=True,
              log=True, source="QoServe, section 4.1.4: throughput saturates"),
    Parameter("max_num_batched_tokens", 256, "most tokens in a batch under dynamic_chunking=off", 1, 2**20, "tokens",
              integer=True, log=True, source="QoServe, section 4"),
    Parameter("safety", 1.2, "safety factor: a batch may take the slack divided by it (dynamic_chunking=paper)", 1, 10,
              source="QoServe, section 3.6.1; value: its code"),
    Parameter("late_limit", 1.0, "a decode later than this many TBT SLOs gets a token per TBT SLO and does not catch "
              "up", 0, 1e9),
    Parameter("ttlt_slack", "unbounded", "slack of a decode with one deadline for its whole answer: none; or "
              "(paced) the time left divided by the tokens that may come", choices=TTLT_SLACK),
    Parameter("alpha_s_per_token", 0.008, "how much later a prefill ranks for each token of work; 0: by deadline alone",
              0, 10, "s/token", source="QoServe, section 3.6"),
    Parameter("low_load_alpha_s_per_token", 0.001, "alpha_s_per_token at low load", 0, 10, "s/token",
              source="QoServe, section 3.6"),
    Parameter("low_load_tokens", 0, "load is low while fewer prefill tokens than this wait; 0: never", 0, 2**40,
              "tokens", integer=True),
    Parameter("relegation", "paper", "which prefills are put behind all others as late: those due before the batch "
              "ends (paper); those without memory whose work takes too long at measured throughput (code); none (off)",
              choices=RELEGATION, source="QoServe, section 3.4; its code"),
    Parameter("importance", "low-first", "which prefills go behind when one is late: all less important ones and it "
              "(low-first), it unless there are such (spare), or it alone (ignore)", choices=IMPORTANCE,
              source="QoServe, section 3.4"),
    Parameter("relegated_order", "hybrid", "order of prefills put behind: by hybrid priority, or by importance first "
              "(low-first)", choices=RELEGATED_ORDERS, source="QoServe, Algorithm 1; low-first: its code"),
    Parameter("selective_preemption", "on", "on: a prefill that has begun is passed over only if it can still be in "
              "time", choices=SELECTIVE_PREEMPTION, source="QoServe, section 3.4"),
    Parameter("max_num_seqs", 128, "most requests that may hold memory", 1, 2**20, "requests", integer=True,
              log=True, source="Sarathi-Serve"),
    Parameter("least_chunk_tokens", 0, "prefill tokens that run however short the slack (dynamic_chunking=paper)", 0,
              2**20, "tokens", integer=True),
    *steps(),
)  # fmt: skip


@kernel
def slack_of(request, now_s, p, groups):
    """Return the time until a decode would be late, s; inf: it does not limit the batch."""
    remain_s = next_deadline_s(request) - now_s
    if request.ttlt_slo_s < np.inf:
        if p.ttlt_slack != PACED or remain_s <= 0:
            return np.inf
        coming = expected_output_tokens(groups[request.application]) - request.num_output_tokens
        return remain_s / max(1.0, coming)
    if p.dynamic_chunking != CODE and remain_s < -p.late_limit * request.token_interval_s:
        return request.token_interval_s  # it will not catch up: it keeps its pace and does not delay others
    return remain_s


@kernel
def code_tokens(sums, scratch, decode_tokens, slack_s, free_blocks, estimator):
    """Return the tokens of a batch by the public code: the largest of a few sizes within the slack, with a margin."""
    for size in CODE_SIZES:
        if size > CODE_SHORT_OF_MEMORY and free_blocks < CODE_FREE_BLOCKS:
            continue
        if slack_s > 0 and CODE_SAFETY * time_with(sums, scratch, size - decode_tokens, estimator) <= slack_s:
            return size
    return CODE_SIZES[-1]


@kernel
def time_with(sums, scratch, prefill_tokens, estimator):
    """Return the estimated time of the batch with `prefill_tokens` more (if above 0), with nothing cached, s."""
    if prefill_tokens <= 0:
        return estimator.batch_s(sums, estimator.coefficients)
    return batches.estimate_with(sums, scratch, prefill_tokens, 0, False, estimator)


@kernel
def must_run(request, now_s, iteration_s, scratch, estimator):
    """Return whether a prefill that has begun can still be in time, but not if it waits for one iteration."""
    need_s = batches.estimate_alone(scratch, left_of(request), cached_of(request), False, estimator)
    deadline_s = next_deadline_s(request)
    return now_s + need_s < deadline_s <= now_s + iteration_s + need_s


@kernel
def waiting_tokens(requests, queue, marks):
    """Return the tokens left of all prefills that are not relegated."""
    tokens = 0
    for position in range(queue.shape[0]):
        if not is_decoding(requests[queue[position]]) and marks[queue[position], 0] != RELEGATED:
            tokens += left_of(requests[queue[position]])
    return tokens


@scheduler
def qoserve(context, ranks, limits):
    p, positions, now_s = P.read(context), SCRATCH.read(context).positions, context.now_s
    requests, queue, estimator = context.requests, context.queue, context.estimator
    marks, groups = context.state.requests, context.state.by_application
    sums, scratch = estimator.scratch[0], estimator.scratch[1]
    alpha, low_first = p.alpha_s_per_token, p.relegated_order == LOW_FIRST_BEHIND
    if p.low_load_tokens > 0 and waiting_tokens(requests, queue, marks) < p.low_load_tokens:
        alpha = p.low_load_alpha_s_per_token
    # 1, 2 and 4: all decodes and the smallest slack among them (Eq. 2), the others by hybrid priority (Eq. 4 and 5).
    batches.clear(sums)
    decodes, slack_s, begun = 0, np.inf, 0
    for position in range(queue.shape[0]):
        r, rank = queue[position], ranks[position]
        request = requests[r]
        if is_decoding(request):
            rank.tier = DECODES
            rank.key = request.arrival_s
            decodes += 1
            batches.add(sums, 1, cached_of(request), True)
            slack_s = min(slack_s, slack_of(request, now_s, p, groups))
        else:
            rank.key = request.first_deadline_s + alpha * work_of(request, groups)
            if marks[r, 0] == RELEGATED:
                rank.tier = behind(request, low_first)
            else:
                rank.tier = WAITING
                if request.blocks > 0:
                    positions[begun] = position
                    begun += 1
    # 3: prefill tokens within the slack.
    decode_tokens, budget_s = decodes * tokens_of_decode(context.engine), np.inf
    limits.max_num_seqs = p.max_num_seqs
    if p.dynamic_chunking == PAPER:
        budget_s = slack_s / p.safety
        limits.time_budget_s, limits.step_tokens = budget_s, p.step_tokens
        limits.untimed_decodes = 1
        limits.untimed_prefill_tokens = p.least_chunk_tokens
        limits.misfit = MISFIT_STOP
        limits.max_num_batched_tokens = decode_tokens + p.largest_chunk_tokens
    elif p.dynamic_chunking == CODE:
        free_blocks = context.engine.free_blocks
        tokens = code_tokens(sums, scratch, decode_tokens, slack_s, free_blocks, estimator)
        limits.max_num_batched_tokens = max(decode_tokens, tokens)
    else:
        limits.max_num_batched_tokens = p.max_num_batched_tokens
    room = max(0, limits.max_num_batched_tokens - decode_tokens)
    # Selective preemption: prefills that have begun and cannot wait for an iteration go first.
    if p.selective_preemption == SELECTIVE and begun > 0:
        iteration_s = time_with(sums, scratch, room, estimator)
        least_s = time_with(sums, scratch, min(room, p.least_chunk_tokens), estimator)
        iteration_s = min(iteration_s, max(budget_s, least_s))
        for i in range(begun):
            if must_run(requests[queue[positions[i]]], now_s, iteration_s, scratch, estimator):
                ranks[positions[i]].tier = MUST_RUN
    # 5: eager relegation.
    if p.relegation != OFF:
        relegate(context, p, ranks, positions, Room(room, budget_s))


register(
    Policy(
        "qoserve",
        "scheduler",
        "All decodes, then as much prefill as their slack allows, by deadline and work left; prefills that would be "
        "late go behind all others.",
        "QoServe, Algorithm 1",
        qoserve,
        state=StateFields(request=("relegation",), by_application=True),
        parameters=P,
        scratch=SCRATCH,
    )
)  # fmt: skip
