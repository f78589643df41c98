"""FairBatching as ProServe compares with it (its section 5.1): a decode gives way to prompts until its time is near."""

import numpy as np

from servegym.baselines.schedulers.slide_batching import ETA
from servegym.simulator.batches import EMPTY_BATCH
from servegym.simulator.policies import Parameter, Parameters, Policy, register
from servegym.simulator.requests import is_decoding, next_deadline_s
from servegym.simulator.signatures import scheduler

NEAR, PREFILL, OTHER = range(3)  # tiers

P = Parameters(
    Parameter("near", 2.0, "a decode is near its deadline below this many times the batch's time budget",
              0, 1e6, "time budgets"),
    Parameter("eta", ETA, "least time budget of a batch", 0.005, 0.5, "s", log=True,
              source="as slide-batching"),
)  # fmt: skip


@scheduler
def fairbatching(context, ranks, limits):
    p, now_s = P.read(context), context.now_s
    requests, queue, estimator = context.requests, context.queue, context.estimator
    constant_s = estimator.batch_s(EMPTY_BATCH[0], estimator.coefficients)
    estimator.exec_s(requests, queue, estimator.coefficients, ranks)
    least_remain = np.inf
    for position in range(queue.shape[0]):
        rank = ranks[position]
        rank.key = next_deadline_s(requests[queue[position]])
        if rank.key - now_s >= rank.exec_s + constant_s:
            least_remain = min(least_remain, rank.key - now_s)
    limits.time_budget_s = p.eta if least_remain == np.inf else max(least_remain, p.eta)
    near_s = p.near * limits.time_budget_s
    for position in range(queue.shape[0]):
        rank = ranks[position]
        if not is_decoding(requests[queue[position]]):
            rank.tier = PREFILL
        else:
            rank.tier = NEAR if rank.key - now_s < near_s else OTHER


register(
    Policy(
        "fairbatching",
        "scheduler",
        "Decodes near their deadline, then prefills by deadline, then other decodes, within the smallest slack.",
        "FairBatching; ProServe, section 5.1",
        fairbatching,
        parameters=P,
        estimates=True,
    )
)  # fmt: skip
