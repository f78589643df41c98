"""A family of rankings that know every answer's true length, and can move single requests: for searches, not to serve.

Behind its parameters the scheduler gets three numbers for each request of the workload, as `Policy.weights`: its true
output length, by how much it goes earlier, and the time before which it is not served. So a search changes numbers
only, and compiles nothing. It is not registered: no policy may know what it knows.
"""

import numpy as np

from servegym.baselines.schedulers.expected_gain import tokens_in_time
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.policies.policy import Fact, Parameter, Parameters, Policy
from servegym.simulator.records.batches import EMPTY_BATCH
from servegym.simulator.records.requests import is_decoding, next_deadline_s
from servegym.simulator.records.signatures import scheduler, victims
from servegym.simulator.records.types import EVICT_FOR_ALL, LEAVE_OUT

NEVER_S = 1e300  # as the time before which a request is not served: drop it
LONGEST_S = 1e6  # the largest slack, so that worth stays finite
LEAST_WORK_S = 1e-9  # avoids a division by 0 for work that takes no time
OF_REQUEST = 3  # numbers
TOKENS, EARLIER, NOT_BEFORE = range(OF_REQUEST)
URGENT, BY_DEADLINE, NO_GAIN = range(3)  # tiers

P = Parameters(
    Parameter("batch", 0.9, "least latency budget of a batch, in smallest TPOT SLOs", 0.3, 3, log=True),
    Parameter("pace", 1.0, "time between tokens that is expected, in such budgets", 0.25, 1.6, log=True),
    Parameter("gamma", 2.0, "above it more requests count as urgent, and go by worth", 0.1, 1000, log=True),
    Parameter("cost", 1.0, "exponent of the work in gain / work^x", 0, 2),
    Parameter("token_s", 1e-4, "work that a later token is counted as", 1e-7, 1e-1, "s", log=True),
    Parameter("share", 0.0, "exponent of the share of the tokens left that will be in time", 0, 6),
    Parameter("least_share", 0.0, "that share, up to which a request is worthless", 0, 0.95),
    Parameter("first", 1.0, "factor of the first token's gain", 0.1, 10, log=True),
    Parameter("held", 1.0, "factor of the worth of what holds KV memory", 1, 1000, log=True),
    Parameter("decoding", 1.0, "factor of the worth of decodes", 0.1, 1000, log=True),
    Parameter("patience_s", 1000.0, "slack by which worth falls to 1/e", 0.05, 1000, "s", log=True),
    Parameter("size", 0.0, "exponent of the tokens left in worth / tokens^x", -1, 2),
    Parameter("slo_s", Fact("min_tpot_slo_s"), "the smallest TPOT SLO", 0, np.inf, "s"),
)  # fmt: skip
COUNT = len(P)


@kernel
def log_worth(request, exec_s, slack_s, tokens, p):
    """Logarithm of the present worth of a request with `tokens` left; -inf: worth nothing."""
    in_time = tokens_in_time(slack_s, request.token_interval_s - p.pace * p.batch * p.slo_s, tokens)
    if in_time <= p.least_share * tokens:
        return -np.inf
    gain = request.decode_token_gain * in_time
    if request.num_output_tokens == 0 and slack_s > 0.0:
        gain += p.first * request.first_token_gain - request.decode_token_gain
    if gain <= 0.0:
        return -np.inf
    worth = np.log(gain) - p.cost * np.log(max(exec_s + p.token_s * tokens, LEAST_WORK_S))
    worth += p.share * np.log(in_time / tokens) - p.size * np.log(tokens)
    if request.blocks > 0:
        worth += np.log(p.held)
    if is_decoding(request):
        worth += np.log(p.decoding)
    return worth - min(max(slack_s, 0.0), LONGEST_S) / p.patience_s


@scheduler
def foresight(context, ranks, limits):
    p, now_s, estimator = P.read(context), context.now_s, context.estimator
    requests, queue, numbers = context.requests, context.queue, context.parameters
    constant_s = estimator.batch_s(EMPTY_BATCH[0], estimator.coefficients)
    estimator.exec_s(requests, queue, estimator.coefficients, ranks)
    total_s, budget_s, worthy = 0.0, np.inf, 0
    for position in range(queue.shape[0]):
        r, rank = queue[position], ranks[position]
        request, at = requests[r], COUNT + OF_REQUEST * r
        remain_s, tokens = next_deadline_s(request) - now_s, numbers[at + TOKENS] - request.num_output_tokens
        worth = -np.inf
        if now_s >= numbers[at + NOT_BEFORE]:
            worth = log_worth(request, rank.exec_s, remain_s - rank.exec_s - constant_s, max(tokens, 1.0), p)
        rank.key = -worth
        if worth > -np.inf:
            worthy += 1
            total_s += rank.exec_s
            budget_s = min(budget_s, remain_s)
    limits.time_budget_s = budget_s = max(budget_s if worthy > 0 else 0.0, p.batch * p.slo_s)
    limits.evict_for = EVICT_FOR_ALL
    # Urgent is what the work in the queue could make late: ProServe's phi_a (Eq. 8).
    share = budget_s / (budget_s - constant_s) if budget_s > constant_s else np.inf
    bound_s = p.gamma * share * total_s if total_s > 0.0 else 0.0
    for position in range(queue.shape[0]):
        r, rank = queue[position], ranks[position]
        remain_s, earlier = next_deadline_s(requests[r]) - now_s, numbers[COUNT + OF_REQUEST * r + EARLIER]
        if rank.key == np.inf:  # served only if no other request can be
            rank.tier, rank.key = NO_GAIN if worthy == 0 else LEAVE_OUT, remain_s
        elif remain_s * np.exp(-earlier) < bound_s:
            rank.tier, rank.key = URGENT, rank.key - earlier
        else:
            rank.tier, rank.key = BY_DEADLINE, remain_s * np.exp(-earlier)


@victims
def hopeless_first(context, ranks, limits):
    """Rank victims: left-out requests give up memory to newcomers and decodes, those worth something to decodes only.

    Otherwise each newcomer could take memory from running requests and lose it to the next, without end.
    """
    for position in range(context.queue.shape[0]):
        rank = ranks[position]
        holds = context.requests[context.queue[position]].blocks > 0
        rank.victim_tier = 2 if rank.tier == LEAVE_OUT else 0 if holds else 1
        rank.victim_key = rank.key


FORESIGHT = Policy(
    "foresight",
    "scheduler",
    "By gain that is sure to come per work, with true lengths; single requests can be moved.",
    "ours; bound and budget as ProServe, Algorithm 1",
    foresight,
    hopeless_first,
    P,
)
