"""Expected gain: urgent requests by expected gain per second of work, the others by deadline.

It is the rule of SlideBatching with another density. A request's expected gain is the gain of its tokens that will be
in time, if its output is as long as the mean of its application and batches are as short as the load allows. A request
that cannot catch up has none; such requests get the remaining time, fewest tokens left first.
"""

from typing import NamedTuple

import numpy as np

from servegym.baselines.time_budgets import DEADLINES, counted_deadline_s, steps
from servegym.policy import (
    EMPTY_BATCH,
    EVICT_FOR_ALL,
    LEAVE_OUT,
    NO_LIMIT,
    Fact,
    Parameter,
    Parameters,
    Policy,
    Scratch,
    StateFields,
    cached_of,
    is_decoding,
    kernel,
    left_of,
    mean_length,
    register,
    scheduler,
    victims,
)
from servegym.simulator.records.batches import add, clear, estimate_alone, largest_chunk

URGENT, NORMAL, NO_GAIN = range(3)  # tiers
HOPELESS = ("last", "leave-out")
ALWAYS = HOPELESS.index("leave-out")
ROUNDING = 1e-6  # tokens: rounding error of a running mean
BELOW = 1.0 - 1e-9  # keeps a lower bound valid despite rounding
LEAST_WORK_S = 1e-9  # avoids division by 0 for work that takes no time

P = Parameters(
    Parameter("gamma", 2.0, "factor of the load below which time to the deadline is urgent: larger: more are urgent",
              0.1, 10, log=True),
    Parameter("eta", Fact("min_tpot_slo_s", 0.9), "least time budget of a batch, however short the slack", 0.005, 0.5,
              "s", log=True),
    Parameter("output_tokens", 200.0, "expected tokens left of a request before any of its application has finished", 1,
              2**20, "tokens", log=True),
    Parameter("deadlines", "early-first-token", "from where the scheduler counts the deadlines after the first: the "
              "first deadline (slo), the first token if it came early, or the first token", choices=DEADLINES,
              source="ProServe, section 2, footnote 2"),
    Parameter("most_late", 0.75, "a request has no expected gain if this share of its remaining tokens would be late "
              "before it catches up", 0, 1),
    Parameter("hopeless", "last", "requests without expected gain: last, and left out only while another is urgent; or "
              "left out while another has some", choices=HOPELESS),
    Parameter("reserve", 0.05, "share of the time to the next deadline that a batch longer than eta leaves free, in "
              "case it takes longer than estimated", 0, 0.5),
    *steps(),
)  # fmt: skip
SCRATCH = Scratch("gain", indices=("worthy",))  # of requests with positive expected gain: gain and position


@kernel
def tokens_in_time(slack_s, gained_s, tokens, most_late=1.0):
    """Return how many of `tokens` are in time if their request runs from now on; 0 if `most_late` of them are late.

    slack_s: deadline of the next token minus its time, if it runs at once. gained_s: TPOT SLO minus time per token.
    Token k, from 0 on, is in time if slack_s + k gained_s > 0. most_late: a share, only for a request that catches up.
    """
    if gained_s > 0.0:
        if slack_s > 0.0:
            return tokens
        if -slack_s >= most_late * (tokens * gained_s):  # the share without a division
            return 0.0
        left = tokens - np.floor(-slack_s / gained_s) - 1.0
        return left if left > ROUNDING else 0.0
    if slack_s <= 0.0:
        return 0.0
    return tokens if gained_s == 0.0 else min(tokens, np.ceil(-slack_s / gained_s))


@kernel
def expected_gain_of(request, slack_s, pace_s, tokens, most_late=1.0):
    """Return the gain that a request will still earn if it runs from now on with a token every pace_s."""
    gain = request.decode_token_gain * tokens_in_time(slack_s, request.token_interval_s - pace_s, tokens, most_late)
    if request.num_output_tokens == 0 and slack_s > 0.0:
        gain += request.first_token_gain
    return gain


class Chunks(NamedTuple):
    """The chunks of prompts that do not fit a batch of eta.

    fits: tokens of a chunk. first_s: time of a chunk with nothing cached; least_s_per_token: the same per token, a
    lower bound, as cached tokens only add time. Both are 0 while all prompts so far fit.
    """

    fits: int | np.signedinteger
    first_s: float
    least_s_per_token: float


ALL_FIT = Chunks(0, 0.0, 0.0)


@kernel
def chunks_of(left, eta_s, estimator):
    """Return the `Chunks` of prompts of `left` tokens. If they do not fit, scratch[1] is set to a batch of a chunk."""
    fits = largest_chunk(EMPTY_BATCH[0], estimator.scratch[1], left, 0, False, eta_s, estimator)
    if fits == left:
        return Chunks(left, 0.0, 0.0)
    if fits == 0:
        return Chunks(NO_LIMIT, 0.0, 0.0)  # no chunk fits, so prompts are not cut
    first_s = estimate_alone(estimator.scratch[1], fits, 0, False, estimator)
    return Chunks(fits, first_s, first_s / fits * BELOW)


@kernel
def chunk_s(cached, estimator):
    """Return the estimated time of the chunk in scratch[1] with `cached` tokens before it, s."""
    chunk = estimator.scratch[1]
    chunk.prefill_tokens_cached = chunk.prefill_tokens * cached
    chunk.prefill_cached_tokens = float(cached)
    return estimator.batch_s(chunk, estimator.coefficients)


@kernel
def may_be_cut(left, rank, chunks, constant_s):
    """Return whether a prompt does not fit and may take less time in chunks; `&` avoids a branch."""
    return (left > chunks.fits) & (left * chunks.least_s_per_token - constant_s < rank.exec_s)


@kernel
def cut(request, rank, chunks, constant_s, eta_s, estimator):
    """Set exec_s of a prompt that does not fit a batch of eta to the time of its chunks, if that is less.

    n tokens take n / c chunks of c tokens, each with the mean time of the first and the last chunk. `may_be_cut` rules
    out most prompts first, as two estimates for each of thousands would take most of a decision.
    """
    left, cached = left_of(request), cached_of(request)
    if chunks.first_s == 0.0:
        chunks = chunks_of(left, eta_s, estimator)
    if may_be_cut(left, rank, chunks, constant_s):
        first_s = chunks.first_s if cached == 0 else chunk_s(cached, estimator)
        last_s = chunk_s(cached + left - chunks.fits, estimator)
        rank.exec_s = min(rank.exec_s, left / chunks.fits * (first_s + last_s) / 2.0 - constant_s)
    return chunks


@kernel
def write_gains(context, ranks, s, constant_s, pace_s, p):
    """Write positions and gains of requests with positive expected gain at pace_s, and their keys: time to deadline, s.

    exec_s is set to its value in chunks. Returns the number of these requests, their work (the time of a batch of all
    of it, without the constant part) and the time to their first deadline (inf: none), s.
    """
    estimator, chunks, worthy, least_s = context.estimator, ALL_FIT, 0, np.inf
    sums, groups = estimator.scratch[0], context.state.by_application
    tokens = mean_length(groups[0], p.output_tokens)
    clear(sums)
    for position in range(context.queue.shape[0]):
        request, rank = context.requests[context.queue[position]], ranks[position]
        unknown = (chunks.first_s == 0.0) & (left_of(request) > chunks.fits)
        if unknown | may_be_cut(left_of(request), rank, chunks, constant_s):
            chunks = cut(request, rank, chunks, constant_s, p.eta, estimator)
        if groups.shape[0] > 1:  # else the mean is the same for all, and the record's second cache line is not read
            tokens = mean_length(groups[request.application], p.output_tokens)
        remain_s = counted_deadline_s(request, p.deadlines) - context.now_s
        gain = expected_gain_of(request, remain_s - rank.exec_s - constant_s, pace_s, tokens, p.most_late)
        if gain > 0.0:
            rank.key, s.gain[worthy], s.worthy[worthy] = remain_s, gain, position
            worthy += 1
            add(sums, left_of(request), cached_of(request), is_decoding(request))
            least_s = min(least_s, remain_s)
    return worthy, estimator.batch_s(sums, estimator.coefficients) - constant_s, least_s


@kernel
def rank_worthy(ranks, s, worthy, bound_s):
    """Rank requests with positive expected gain: urgent ones by gain per second of work, the others by deadline."""
    for k in range(worthy):
        rank = ranks[s.worthy[k]]
        rank.tier = NORMAL
        if rank.key < bound_s:
            rank.tier, rank.key = URGENT, -s.gain[k] / max(rank.exec_s, LEAST_WORK_S)


@kernel
def rank_hopeless(context, ranks, s, worthy, tier):
    """Rank requests without expected gain by fewest tokens left, so that one that runs stays first until it is done."""
    k = 0
    for position in range(context.queue.shape[0]):
        if k < worthy and s.worthy[k] == position:
            k += 1
        else:
            ranks[position].tier = tier
            ranks[position].key = left_of(context.requests[context.queue[position]])


@kernel
def rank_some(context, ranks, limits):
    """Rank all requests, or only those with positive expected gain if the others are left out.

    Returns the number with positive expected gain, and whether the others are left out.
    """
    p, estimator, s, n = P.read(context), context.estimator, SCRATCH.read(context), context.queue.shape[0]
    constant_s = estimator.batch_s(EMPTY_BATCH[0], estimator.coefficients)
    estimator.exec_s(context.requests, context.queue, estimator.coefficients, ranks)
    worthy, work_s, least_s = write_gains(context, ranks, s, constant_s, p.eta, p)
    # If all work with positive gain fits a batch shorter than eta, batches are as short as that, and late requests
    # catch up faster.
    if constant_s + work_s < p.eta:
        worthy, work_s, least_s = write_gains(context, ranks, s, constant_s, constant_s + work_s, p)
    limits.time_budget_s = budget_s = max((1.0 - p.reserve) * least_s if worthy > 0 else 0.0, p.eta)
    limits.evict_for, limits.step_tokens = EVICT_FOR_ALL, p.step_tokens
    # Urgent: due before all work with positive gain would be done, ProServe's phi_a (Eq. 8).
    share = budget_s / (budget_s - constant_s) if constant_s < budget_s < np.inf else 1.0
    bound_s = np.inf if budget_s <= constant_s else p.gamma * (share * work_s)
    leaves_out = worthy > 0 and (p.hopeless == ALWAYS or least_s < bound_s)
    if worthy < n and not leaves_out:
        limits.time_budget_s = p.eta  # so that new arrivals do not wait longer for hopeless requests
    rank_worthy(ranks, s, worthy, bound_s)
    if not leaves_out:
        rank_hopeless(context, ranks, s, worthy, NO_GAIN)
    return worthy, leaves_out


@scheduler
def rank_all(context, ranks, limits):
    worthy, leaves_out = rank_some(context, ranks, limits)
    if leaves_out:
        rank_hopeless(context, ranks, SCRATCH.read(context), worthy, LEAVE_OUT)


@scheduler
def nothing_more(context, ranks, limits):
    """Do nothing: the filter after `rank_all`, which already ranks with LEAVE_OUT."""


@scheduler
def expected_gain(context, ranks, limits):
    """Rank, and list the ranked requests if the others are left out."""
    s, (worthy, leaves_out) = SCRATCH.read(context), rank_some(context, ranks, limits)
    if leaves_out:
        for k in range(worthy):
            ranks[k].listed = s.worthy[k]
        limits.listed = worthy


@victims
def hopeless_first(context, ranks, limits):
    """Rank victims: hopeless requests are evicted for decodes and for waiting requests with gain, others for decodes.

    If waiting requests could evict others with gain, they would evict each other without end.
    """
    for position in range(context.queue.shape[0]):
        rank = ranks[position]
        request = context.requests[context.queue[position]]
        rank.victim_tier = 2 * (rank.tier >= NO_GAIN) + (request.blocks == 0)
        not_listed = rank.tier >= LEAVE_OUT and rank.key == 0.0
        rank.victim_key = left_of(request) if not_listed else rank.key


register(
    Policy(
        "expected-gain",
        "scheduler",
        "Urgent requests by expected gain per second of work, hopeless ones last.",
        "ours; bound and budget as ProServe, Algorithm 1",
        expected_gain,
        hopeless_first,
        rank_then_filter=(rank_all, nothing_more),
        urgent_tier=URGENT,
        parameters=P,
        state=StateFields(by_application=True),
        scratch=SCRATCH,
    )
)
