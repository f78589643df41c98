"""Expected gain: urgent requests by expected gain per second of work, the others by deadline.

The rule of SlideBatching with another density. A request's expected gain is what it will still earn in time at the pace
that there is room for, if its answer is as long as others were. A request that cannot catch up within its answer has
none; such requests get the room that is left, fewest tokens left first.
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
BELOW = 1.0 - 1e-9  # factor that keeps a lower bound below its value despite rounding
LEAST_WORK_S = 1e-9  # avoids division by 0 for work that takes no time

P = Parameters(
    Parameter("gamma", 2.0, "factor on the load that requests are held against: the larger, the more count as urgent",
              0.1, 10, log=True),
    Parameter("eta", Fact("min_tpot_slo_s", 0.9), "least time budget of a batch, however short the slack", 0.005, 0.5,
              "s", log=True),
    Parameter("output_tokens", 200.0, "tokens that a request is expected to have left, before any of its application "
              "has finished", 1, 2**20, "tokens", log=True),
    Parameter("deadlines", "early-first-token", "from where the scheduler counts the deadlines after the first: the "
              "first deadline (slo), the first token if it came early, or the first token", choices=DEADLINES,
              source="ProServe, section 2, footnote 2"),
    Parameter("most_late", 0.75, "a request is worth nothing if this share of its tokens left would be late before it "
              "catches up", 0, 1),
    Parameter("hopeless", "last", "requests worth nothing: last, and left out only while another is urgent; or left "
              "out while any is worth something", choices=HOPELESS),
    Parameter("reserve", 0.05, "share of the time to the next deadline that a batch longer than eta leaves free, in "
              "case it takes longer than estimated", 0, 0.5),
    *steps(),
)  # fmt: skip
SCRATCH = Scratch("gain", indices=("worthy",))  # of requests with positive expected gain: gain and position


@kernel
def tokens_in_time(slack_s, gained_s, tokens, most_late=1.0):
    """Number of `tokens` in time if their request runs from now on; 0 if a share `most_late` of them or more is late.

    slack_s: from the next token, run at once, to its deadline. gained_s: what each token gains on its deadline; below 0
    it loses. Token k, from 0 on, is in time iff slack + k gained > 0. `most_late` applies only to a request that
    catches up.
    """
    if gained_s > 0.0:
        if slack_s > 0.0:
            return tokens
        if -slack_s >= most_late * (tokens * gained_s):  # most that are late: no division
            return 0.0
        left = tokens - np.floor(-slack_s / gained_s) - 1.0
        return left if left > ROUNDING else 0.0
    if slack_s <= 0.0:
        return 0.0
    return tokens if gained_s == 0.0 else min(tokens, np.ceil(-slack_s / gained_s))


@kernel
def expected_gain_of(request, slack_s, pace_s, tokens, most_late=1.0):
    """Gain that a request will still earn if it runs from now on with a token every pace_s; 0 if it is too late."""
    gain = request.decode_token_gain * tokens_in_time(slack_s, request.token_interval_s - pace_s, tokens, most_late)
    if request.num_output_tokens == 0 and slack_s > 0.0:
        gain += request.first_token_gain
    return gain


class Chunks(NamedTuple):
    """The chunks of prompts that do not fit a batch of eta. fits: tokens of a chunk. first_s: time of a chunk with
    nothing cached before it; least_s_per_token: the same per token, a lower bound, since cached tokens make no chunk
    shorter. Both are 0 while every prompt seen fits.
    """

    fits: int | np.signedinteger
    first_s: float
    least_s_per_token: float


NOTHING_KNOWN = Chunks(0, 0.0, 0.0)


@kernel
def chunks_of(left, eta_s, estimator):
    """`Chunks` for prompts with `left` tokens. If they do not fit, scratch[1] becomes a batch of one chunk."""
    fits = largest_chunk(EMPTY_BATCH[0], estimator.scratch[1], left, 0, False, eta_s, estimator)
    if fits == left:
        return Chunks(left, 0.0, 0.0)
    if fits == 0:
        return Chunks(NO_LIMIT, 0.0, 0.0)  # nor does any chunk: none is cut
    first_s = estimate_alone(estimator.scratch[1], fits, 0, False, estimator)
    return Chunks(fits, first_s, first_s / fits * BELOW)


@kernel
def chunk_s(cached, estimator):
    """Estimated time of the chunk in scratch[1] with `cached` tokens before it."""
    chunk = estimator.scratch[1]
    chunk.prefill_tokens_cached = chunk.prefill_tokens * cached
    chunk.prefill_cached_tokens = float(cached)
    return estimator.batch_s(chunk, estimator.coefficients)


@kernel
def may_be_cut(left, rank, chunks, constant_s):
    """Whether a prompt does not fit and could take less time in chunks; `&` avoids branches on the length."""
    return (left > chunks.fits) & (left * chunks.least_s_per_token - constant_s < rank.exec_s)


@kernel
def cut(request, rank, chunks, constant_s, eta_s, estimator):
    """exec_s of a prompt that may not fit a batch of eta: in chunks that do, if that takes less by the estimator.

    A chunk of c tokens takes the mean of the first and the last chunk's time, and n tokens take n / c chunks. Two
    estimates for each of thousands of prompts took most of a decision, hence `may_be_cut`: few take less in chunks.
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
    """Find requests with positive expected gain at that pace, in queue order: positions and gains; their keys: the time
    to their deadlines, s.

    exec_s becomes what it is in chunks. Returns the number of these requests, their work (what a batch of it all takes
    beyond the constant) and the time to their first deadline (inf: none), s.
    """
    estimator, chunks, worthy, least_s = context.estimator, NOTHING_KNOWN, 0, np.inf
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
    """Rank requests without expected gain by fewest tokens left: running keeps a request first, so that its work is not
    wasted on a change of order."""
    k = 0
    for position in range(context.queue.shape[0]):
        if k < worthy and s.worthy[k] == position:
            k += 1
        else:
            ranks[position].tier = tier
            ranks[position].key = left_of(context.requests[context.queue[position]])


@kernel
def rank_some(context, ranks, limits):
    """Rank all requests, or only those with positive expected gain where the others are left out. Returns how many have
    positive gain, and whether the others are left out."""
    p, estimator, s, n = P.read(context), context.estimator, SCRATCH.read(context), context.queue.shape[0]
    constant_s = estimator.batch_s(EMPTY_BATCH[0], estimator.coefficients)
    estimator.exec_s(context.requests, context.queue, estimator.coefficients, ranks)
    worthy, work_s, least_s = write_gains(context, ranks, s, constant_s, p.eta, p)
    # A batch is as short as the work of requests with positive gain at any length allows: where there is room, what
    # is late catches up faster.
    if constant_s + work_s < p.eta:
        worthy, work_s, least_s = write_gains(context, ranks, s, constant_s, constant_s + work_s, p)
    limits.time_budget_s = budget_s = max((1.0 - p.reserve) * least_s if worthy > 0 else 0.0, p.eta)
    limits.evict_for, limits.step_tokens = EVICT_FOR_ALL, p.step_tokens
    # Urgent is what the work that is worth something could make late: ProServe's phi_a (Eq. 8).
    share = budget_s / (budget_s - constant_s) if constant_s < budget_s < np.inf else 1.0
    bound_s = np.inf if budget_s <= constant_s else p.gamma * (share * work_s)
    leaves_out = worthy > 0 and (p.hopeless == ALWAYS or least_s < bound_s)
    if worthy < n and not leaves_out:
        limits.time_budget_s = p.eta  # so that no newcomer waits longer for the hopeless
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
    """Filter after `rank_all`: does nothing, since that ranks with LEAVE_OUT already."""


@scheduler
def expected_gain(context, ranks, limits):
    """Rank, and list the ranked requests where those without expected gain are left out."""
    s, (worthy, leaves_out) = SCRATCH.read(context), rank_some(context, ranks, limits)
    if leaves_out:
        for k in range(worthy):
            ranks[k].listed = s.worthy[k]
        limits.listed = worthy


@victims
def hopeless_first(context, ranks, limits):
    """Rank victims: requests worth nothing give up memory to decodes and newcomers worth something, others to decodes.

    A newcomer that could take memory from one like it would lose it to the next, without end.
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
        "Urgent requests by the gain still expected of them per second of work, hopeless ones last.",
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
