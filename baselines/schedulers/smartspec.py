"""Schedulers for speculative decoding: a fixed number of drafts, or the best (SmartSpec; docs/systems/smartspec.md)."""

import numpy as np

from servegym.baselines.schedulers.sarathi import LIMITS, P
from servegym.policy import (
    Parameter,
    Parameters,
    Policy,
    StateFields,
    batches,
    cached_of,
    is_decoding,
    kernel,
    register,
    scheduler,
    score,
)

FIXED = Parameters(
    *P, Parameter("most_drafts", 4, "most tokens drafted for a decode in a batch", 0, 16, "tokens", integer=True,
                  source="ours")
)  # fmt: skip
SMART = Parameters(
    *P,
    Parameter("acceptance", 0.7, "assumed probability that a draft is accepted, before any was tried", 0,
              1, source="SmartSpec"),
    Parameter("memory", 256, "tries of drafts after which these make up half of the estimated acceptance", 1, 2**20,
              "tries", log=True, source="ours; SmartSpec has a moving average"),
)  # fmt: skip
DRAFTED, ACCEPTED, DRAFTS, ACCEPTANCE, KNOWN = range(5)
STATE = ("drafted", "accepted", "drafts", "acceptance", "known")
HALVINGS = 40


@score(FIXED, limits=LIMITS | {"most_drafts": "most_drafts"}, decodes="first")
def fixed_drafts(request, engine, now_s, estimates, p):
    return request.arrival_s


@scheduler
def smartspec(context, ranks, limits):
    p, engine, mine = SMART.read(context), context.engine, context.state.engines[context.engine.index]
    requests, queue = context.requests, context.queue
    for position in range(queue.shape[0]):
        request = requests[queue[position]]
        ranks[position].tier, ranks[position].key = not is_decoding(request), request.arrival_s
    limits.max_num_batched_tokens, limits.max_num_seqs = p.max_num_batched_tokens, p.max_num_seqs
    if engine.speculation.k == 0:
        return
    learn(engine.totals, mine, p.acceptance, p.memory)
    mine[DRAFTS] = best_drafts(context, mine[ACCEPTANCE])
    limits.most_drafts = int(mine[DRAFTS])


@kernel
def learn(totals, mine, prior, memory):
    """Update the acceptance statistics with the drafts since the last call."""
    if mine[KNOWN] == 0.0:
        mine[KNOWN], mine[ACCEPTANCE] = 1.0, prior
    drafted, accepted = totals.drafted_tokens - mine[DRAFTED], totals.accepted_tokens - mine[ACCEPTED]
    mine[DRAFTED], mine[ACCEPTED] = totals.drafted_tokens, totals.accepted_tokens
    if drafted > 0.0 and mine[DRAFTS] > 0.0:
        tries = drafted / mine[DRAFTS]
        mine[ACCEPTANCE] += (
            tries / (tries + memory) * (acceptance_of(accepted / tries, mine[DRAFTS]) - mine[ACCEPTANCE])
        )


@kernel
def acceptance_of(mean_accepted, drafts):
    """Return the a with a + a^2 + ... + a^drafts = mean_accepted."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if tokens_out(middle, drafts) - 1.0 < mean_accepted:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


@kernel
def tokens_out(acceptance, drafts):
    """Return the mean tokens that a decode emits: 1 + a + a^2 + ... + a^drafts."""
    tokens, next_one = 1.0, 1.0
    for _ in range(int(drafts)):
        next_one *= acceptance
        tokens += next_one
    return tokens


@kernel
def best_drafts(context, acceptance):
    """Return the number of drafts, 0 to k, with which decodes emit most tokens per second; ties: the fewest."""
    requests, queue, estimator, k = context.requests, context.queue, context.estimator, context.engine.speculation.k
    batch = estimator.scratch[0]
    batches.clear(batch)
    for position in range(queue.shape[0]):
        request = requests[queue[position]]
        if is_decoding(request) and request.blocks > 0:
            batches.add(batch, 1, cached_of(request), True)
    decodes, cached = batch.decode_requests, batch.decode_cached_tokens
    best, most = 0, -np.inf
    if decodes == 0.0:
        return best
    drafts = batch.drafts
    drafts.known = 1.0
    for each in range(k + 1):
        drafts.requests, drafts.longest = decodes if each > 0 else 0.0, float(each)
        drafts.tokens, drafts.tokens_squared = each * decodes, each * each * decodes
        drafts.tokens_cached = each * (cached + decodes)
        per_s = tokens_out(acceptance, each) / estimator.batch_s(batch, estimator.coefficients)
        if per_s > most:
            best, most = each, per_s
    return best


register(
    Policy(
        "fixed-drafts",
        "scheduler",
        "As sarathi-fcfs, with a limit on the drafts of a decode.",
        "vLLM's num_speculative_tokens",
        fixed_drafts,
        parameters=FIXED,
    )
)
register(
    Policy(
        "smartspec",
        "scheduler",
        "As sarathi-fcfs, with the number of drafts that emits most tokens a second.",
        "SmartSpec, section 4",
        smartspec,
        parameters=SMART,
        state=StateFields(engine=STATE, repeatable=True),
    )
)
