"""FairBatching as ProServe compares with it (section 5.1): a decode waits for prefills until its deadline is near."""

import numpy as np

from servegym.baselines.schedulers import AT_A_TIME
from servegym.baselines.schedulers.slide_batching import ETA
from servegym.policy import (
    EMPTY_BATCH,
    Parameter,
    Parameters,
    Policy,
    Scratch,
    is_decoding,
    next_deadline_s,
    register,
    scheduler,
)

NEAR, PREFILL, OTHER = range(3)  # tiers
SCRATCH = Scratch(indices=("order",))

P = Parameters(
    Parameter("near", 2.0, "a decode is near its deadline below this many times the batch's time budget",
              0, 1e6, "time budgets"),
    Parameter("eta", ETA, "least time budget of a batch, however short the slack", 0.005, 0.5, "s", log=True,
              source="as slide-batching"),
)  # fmt: skip


@scheduler
def fairbatching(context, ranks, limits):
    """Rank decodes near their deadline, then prefills, then other decodes.

    The least time left of a request that can be in time is the budget; only requests that may have it are estimated.
    """
    p, now_s, order, decodes = P.read(context), context.now_s, SCRATCH.read(context).order, 0
    requests, queue, estimator, n = context.requests, context.queue, context.estimator, context.queue.shape[0]
    constant_s = estimator.batch_s(EMPTY_BATCH[0], estimator.coefficients)
    least_remain = np.inf
    for begin in range(0, n, AT_A_TIME):
        end, may_be_least = min(n, begin + AT_A_TIME), False
        for position in range(begin, end):
            rank, request = ranks[position], requests[queue[position]]
            rank.tier, rank.key = PREFILL, next_deadline_s(request)
            order[decodes] = position
            decodes += is_decoding(request)
            remain_s = rank.key - now_s
            if constant_s <= remain_s < least_remain:
                may_be_least = True
        if may_be_least:
            some = ranks[begin:end]
            estimator.exec_s(requests, queue[begin:end], estimator.coefficients, some)
            for i in range(end - begin):
                remain_s = some[i].key - now_s
                if remain_s >= some[i].exec_s + constant_s:
                    least_remain = min(least_remain, remain_s)
    limits.time_budget_s = p.eta if least_remain == np.inf else max(least_remain, p.eta)
    near_s = p.near * limits.time_budget_s
    for position in order[:decodes]:
        ranks[position].tier = NEAR if ranks[position].key - now_s < near_s else OTHER


register(
    Policy(
        "fairbatching",
        "scheduler",
        "Decodes near their deadline, then prefills by deadline, then other decodes, within the smallest slack.",
        "FairBatching; ProServe, section 5.1",
        fairbatching,
        parameters=P,
        scratch=SCRATCH,
    )
)  # fmt: skip
