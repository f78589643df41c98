"""FairBatching as ProServe compares with it (its section 5.1): a decode gives way to prompts until its time is near."""

import numpy as np

from servegym.baselines.schedulers.slide_batching import ETA
from servegym.simulator.batches import EMPTY_BATCH
from servegym.simulator.policies import Parameter, Policy, register
from servegym.simulator.requests import is_decoding, next_deadline_s
from servegym.simulator.signatures import scheduler

NEAR, PREFILL, OTHER = range(3)  # tiers


@scheduler
def fairbatching(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    near, eta = parameters[0], parameters[1]
    constant_s = estimator.batch_s(EMPTY_BATCH[0], estimator.coefficients)
    estimator.exec_s(requests, queue, estimator.coefficients, plan)
    least_remain = np.inf
    for place in range(queue.shape[0]):
        line = plan[place]
        line.key = next_deadline_s(requests[queue[place]])
        if line.key - now_s >= line.exec_s + constant_s:
            least_remain = min(least_remain, line.key - now_s)
    limits.time_budget_s = eta if least_remain == np.inf else max(least_remain, eta)
    near_s = near * limits.time_budget_s
    for place in range(queue.shape[0]):
        line = plan[place]
        if not is_decoding(requests[queue[place]]):
            line.tier = PREFILL
        else:
            line.tier = NEAR if line.key - now_s < near_s else OTHER


register(
    Policy(
        "fairbatching",
        "scheduler",
        "Decodes near their deadline, then prefills by deadline, then other decodes, within the smallest slack.",
        "FairBatching; ProServe, section 5.1",
        fairbatching,
        parameters=(
            Parameter("near", 2.0, "a decode is near its deadline below this many times the batch's time budget",
                      0, 1e6, "time budgets"),
            Parameter("eta", ETA, "least time budget of a batch", 0.005, 0.5, "s", log=True,
                      source="as slide-batching"),
        ),
    )
)  # fmt: skip
