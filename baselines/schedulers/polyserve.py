"""PolyServe's batches (sections 2.4, 4.2 and 4.7): decodes, then prefills by deadline, in chunks within the TPOT SLO.

A prefill engine runs the rest of a prompt of less than two chunks in one batch.
"""

import numpy as np

from servegym.baselines.remaining_time import prefill_alone_s
from servegym.policy import (
    MISFIT_STOP,
    ROLE_PREFILL,
    Parameter,
    Parameters,
    Policy,
    cached_of,
    is_decoding,
    kernel,
    left_of,
    next_deadline_s,
    ranks_before,
    register,
    scheduler,
    tokens_of_decode,
)

DECODES, IN_TIME, LATE = range(3)

P = Parameters(
    Parameter("max_num_batched_tokens", 1024, "most tokens in a batch", 1, 2**20, "tokens", integer=True, log=True,
              source="PolyServe's worked example, section 4.7"),
    Parameter("margin", 0.0, "share of the TPOT SLO left free for errors of the estimator", 0, 0.9),
)  # fmt: skip


@kernel
def phase_of(request, now_s, budget, estimator):
    """Return the tier of a request; a prefill that cannot be in time is LATE (best effort)."""
    if is_decoding(request):
        return DECODES
    if now_s >= next_deadline_s(request):  # no estimate, which takes most of the time under overload
        return LATE
    alone_s = prefill_alone_s(
        left_of(request), cached_of(request), budget, estimator.scratch[0], estimator.batch_s, estimator.coefficients
    )  # fmt: skip
    return IN_TIME if now_s + alone_s < next_deadline_s(request) else LATE


@scheduler
def polyserve(context, ranks, limits):
    p, now_s = P.read(context), context.now_s
    budget = p.max_num_batched_tokens
    requests, queue = context.requests, context.queue
    decodes, tpot_s, first = 0, np.inf, -1
    for position in range(queue.shape[0]):
        request, rank = requests[queue[position]], ranks[position]
        rank.tier = phase_of(request, now_s, budget, context.estimator)
        rank.key = next_deadline_s(request)
        if rank.tier == DECODES:
            decodes += 1
            if now_s < rank.key:
                tpot_s = min(tpot_s, request.tpot_slo_s)
            rank.key = request.arrival_s
        elif first < 0 or ranks_before(ranks, position, first):
            first = position
    limits.max_num_batched_tokens = max(budget, decodes * tokens_of_decode(context.engine))
    limits.time_budget_s = (1.0 - p.margin) * tpot_s
    limits.untimed_decodes = 1
    limits.misfit = MISFIT_STOP
    if context.engine.role == ROLE_PREFILL and first >= 0 and left_of(requests[queue[first]]) < 2 * budget:
        limits.max_num_batched_tokens = max(budget, left_of(requests[queue[first]]))


register(
    Policy(
        "polyserve",
        "scheduler",
        "Decodes first, then prefills by deadline, in chunks that keep an iteration within the tightest TPOT; a "
        "prefill engine ends a prompt in one piece.",
        "PolyServe, section 4.7",
        polyserve,
        parameters=P,
    )
)  # fmt: skip
