"""Expected gain: urgent requests by the gain still to be expected of them per second of work, the others by deadline.

The rule of SlideBatching with another density. A request that is late is worth what it will still earn in time, and one
that has to catch up for longer than its answer is likely to last is worth next to nothing.
"""

import numpy as np

from servegym.baselines.deadlines import DEADLINES, counted_deadline_s
from servegym.simulator.batches import EMPTY_BATCH
from servegym.simulator.compilation import kernel
from servegym.simulator.policies import Fact, Parameter, Parameters, Policy, StateFields, register
from servegym.simulator.signatures import scheduler

LEAST_WORK_S = 1e-9  # so that work that takes no time is no division by 0

P = Parameters(
    Parameter("gamma", 2.0, "aggressiveness: above 1 more requests count as urgent", 0.1, 10, log=True),
    Parameter("eta", Fact("min_tpot_slo_s", 0.9), "least latency budget of a batch", 0.005, 0.5, "s", log=True),
    Parameter("output_tokens", 200.0, "tokens that a request is expected to have left, before any of its application "
              "has finished", 1, 2**20, "tokens", log=True),
    Parameter("deadlines", "early-first-token", "what later deadlines count from, for the scheduler alone",
              choices=DEADLINES, source="ProServe, section 2, footnote 2"),
)  # fmt: skip


@kernel
def tokens_in_time(slack_s, gained_s, tokens):
    """Tokens of a request that are expected in time, if it runs from now on.

    slack_s: from its next token, run at once, to the deadline of that. gained_s: what each token gains on its deadline;
    below 0 it loses. How many tokens are left is not known: more than k with the chance exp(-k / tokens). A request
    that is late is in time again, and one that loses time is late, after k = -slack / gained tokens.
    """
    if gained_s > 0.0:
        return tokens if slack_s >= 0.0 else tokens * np.exp(slack_s / (gained_s * tokens))
    if slack_s <= 0.0:
        return 0.0
    return tokens if gained_s == 0.0 else tokens * (1.0 - np.exp(slack_s / (gained_s * tokens)))


@kernel
def expected_gain_of(request, slack_s, eta_s, tokens):
    """What a request will still earn, if it runs from now on: it has a token in each batch, every eta."""
    gain = request.decode_token_gain * tokens_in_time(slack_s, request.token_interval_s - eta_s, tokens)
    if request.emitted_tokens == 0 and slack_s >= 0.0:
        gain += request.first_token_gain
    return gain


@scheduler
def expected_gain(context, ranks, limits):
    p, now_s, estimator = P.read(context), context.now_s, context.estimator
    requests, queue, groups = context.requests, context.queue, context.state.by_application
    constant_s = estimator.batch_s(EMPTY_BATCH[0], estimator.coefficients)
    estimator.exec_s(requests, queue, estimator.coefficients, ranks)
    total_s, budget_s = 0.0, np.inf
    for position in range(queue.shape[0]):
        rank = ranks[position]
        rank.tier, rank.key = 1, counted_deadline_s(requests[queue[position]], p.deadlines) - now_s
        total_s += rank.exec_s
        budget_s = min(budget_s, rank.key)
    limits.time_budget_s = budget_s = max(budget_s, p.eta)
    # Urgent is what the work in the queue could make late: ProServe's phi_a (Eq. 8).
    share = budget_s / (budget_s - constant_s) if constant_s < budget_s < np.inf else 1.0
    bound_s = np.inf if budget_s <= constant_s else p.gamma * (share * total_s)
    for position in range(queue.shape[0]):
        request, rank = requests[queue[position]], ranks[position]
        if rank.key < bound_s:
            group = groups[request.application]
            tokens = group.mean_output_tokens if group.finished > 0 else p.output_tokens
            gain = expected_gain_of(request, rank.key - rank.exec_s - constant_s, p.eta, tokens)
            rank.tier, rank.key = 0, -gain / max(rank.exec_s, LEAST_WORK_S)


register(
    Policy(
        "expected-gain",
        "scheduler",
        "Urgent requests by the gain still expected of them per second of work, the others by deadline.",
        "ours; bound and budget as ProServe, Algorithm 1",
        expected_gain,
        urgent_tier=0,
        parameters=P,
        state=StateFields(by_application=True),
    )
)
