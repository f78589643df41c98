"""Forecasts of PolyServe's router for an engine: peak KV, iteration time, end of a prompt (sections 4.5 to 4.7)."""

from typing import Any, NamedTuple

import numpy as np

from servegym.baselines.remaining_time import prefill_alone_s
from servegym.policy import ROLE_PREFILL, TIERS, Scratch, batches, kernel, sort

# State per engine. seen: 1 + its snapshot's version when the next three were computed. peak_tokens: largest future KV.
# longer_tokens: the same with one more request that has no tokens yet and stays the longest. decoding_s: time of an
# iteration in which all decode with the largest KV. clear_s: forecast end of the prefills sent there, at s_per_token,
# made when the last one was sent. least_tokens: tokens of them that cannot be computed yet. Then, for each tier and
# best effort, the latest forecast with its inputs: the router is asked again and again about the first request of each
# held queue, while few engines have changed. Engine 0 also has the latest question of each tier: its number and its
# inputs.
PLACES = TIERS + 1  # a place for each tier, and one for best effort
ASKED_FIELDS = ("number", "tokens", "to_come", "budget", "reserve")
FORESEEN_FIELDS = ("at", "number", "tpot_s", "own_s", "own_s_per_token")
FIELDS = (
    "seen", "peak_tokens", "longer_tokens", "decoding_s", "clear_s", "s_per_token", "least_tokens",
    *(f"asked_{name}_{tier}" for tier in range(PLACES) for name in ASKED_FIELDS),
    *(f"foreseen_{name}_{tier}" for tier in range(PLACES) for name in FORESEEN_FIELDS),
)  # fmt: skip
SEEN, PEAK, LONGER, DECODING_S, CLEAR_S, S_PER_TOKEN, LEAST, OF_ENGINE = range(8)
BEST_EFFORT = TIERS
FORESEEN_BEGIN = OF_ENGINE + len(ASKED_FIELDS) * PLACES
ASKED_NUMBER, ASKED_TOKENS, ASKED_TO_COME, ASKED_BUDGET, ASKED_RESERVE = range(len(ASKED_FIELDS))
AT, NUMBER, TPOT_S, OWN_S, OWN_S_PER_TOKEN = range(len(FORESEEN_FIELDS))

SCRATCH = Scratch(indices=("order",), ranks=("ranks",))  # for the requests of an engine


class Assumed(NamedTuple):
    """The assumptions of a forecast."""

    output_tokens: Any  # mean output length
    max_num_batched_tokens: Any
    memory_reserve: Any  # share of KV memory left free
    margin: Any  # share of a tier's TPOT SLO left free for errors of the estimator


@kernel
def iteration_limit_s(tiers, tier, assumed):
    """Return the longest estimated iteration that a tier allows, s."""
    return (1.0 - assumed.margin) * tiers[tier].tpot_slo_s


@kernel
def tokens_of(record):
    """Return the context of a request: prompt tokens plus output tokens so far."""
    return record.prompt_tokens + record.num_output_tokens


@kernel
def to_come(record, assumed):
    """Return the tokens that the request will still emit if its output has the mean length; past that, one."""
    return max(1, assumed.output_tokens - record.num_output_tokens)


@kernel
def number_of(context, record, place, assumed):
    """Return the number, from 1, of the question at a place, which grows if the request or the assumptions differ."""
    begin = OF_ENGINE + len(ASKED_FIELDS) * place
    asked = context.state[0, begin : begin + len(ASKED_FIELDS)]
    tokens, left = tokens_of(record), to_come(record, assumed)
    same = asked[ASKED_TOKENS] == tokens and asked[ASKED_TO_COME] == left
    same = same and asked[ASKED_BUDGET] == assumed.max_num_batched_tokens
    if not same or asked[ASKED_RESERVE] != assumed.memory_reserve:
        asked[ASKED_NUMBER] += 1.0
        asked[ASKED_TOKENS], asked[ASKED_TO_COME] = tokens, left
        asked[ASKED_BUDGET], asked[ASKED_RESERVE] = assumed.max_num_batched_tokens, assumed.memory_reserve
    return asked[ASKED_NUMBER]


@kernel
def foreseen_at(place):
    """Return the index of the FORESEEN_FIELDS of a place in the state of an engine."""
    return FORESEEN_BEGIN + len(FORESEEN_FIELDS) * place


@kernel
def nth(context, e, k):
    """Return the k-th request of an engine, roughly in order of finishing.

    Those with a token come first, in the order in which the router heard of them, then those without, in the order
    sent.
    """
    known, decodes = context.known, context.known.snapshots[e].decodes
    return context.requests[known.decoding[e, k] if k < decodes else known.prefilling[e, k - decodes]]


@kernel
def look_at(context, e, assumed):
    """Update the forecasts of engine e, if its snapshot has changed.

    All requests emit a token per iteration, and leave after `to_come` tokens. KV grows until one leaves, so the peak is
    just before a request leaves: the sum of (context - 1) over the requests still there, plus their number x
    iterations. It is computed from the last request to leave back to the first.
    """
    snapshot, state = context.known.snapshots[e], context.state
    if state[e, SEEN] == snapshot.version + 1:
        return
    state[e, SEEN] = snapshot.version + 1
    n = snapshot.decodes + snapshot.prefills
    peak, longer, tokens, later = 0, 0, 0, assumed.output_tokens
    in_order = True
    for k in range(n - 1, -1, -1):
        record = nth(context, e, k)
        iterations = to_come(record, assumed)
        if iterations > later:
            in_order = False
            break
        later = iterations
        tokens += tokens_of(record) - 1
        peak = max(peak, tokens + (n - k) * iterations)
        longer = max(longer, tokens + (n - k + 1) * iterations)
    if not in_order:
        peak, longer = sorted_peaks(context, e, n, assumed)
    state[e, PEAK], state[e, LONGER] = peak, longer
    state[e, DECODING_S] = decoding_s(context, e, n, peak)
    longest, budget = 0, assumed.max_num_batched_tokens
    for k in range(snapshot.prefills):
        longest = max(longest, tokens_of(context.requests[context.known.prefilling[e, k]]))
    # None of these has its first token, so at most the running batch and chunks of a longer prompt have been computed.
    state[e, LEAST] = max(0, snapshot.prefill_tokens - budget - (longest if longest > budget else 0))


@kernel
def sorted_peaks(context, e, n, assumed):
    """Return the peaks of `look_at` if requests do not leave in the order of `nth`."""
    s = SCRATCH.read(context)
    for k in range(n):
        s.order[k] = k
        s.ranks[k].tier = 0
        s.ranks[k].key = to_come(nth(context, e, k), assumed)
    sort(s.order, s.ranks, n)
    peak, longer, tokens = 0, 0, 0
    for i in range(n - 1, -1, -1):
        record = nth(context, e, s.order[i])
        iterations = to_come(record, assumed)
        tokens += tokens_of(record) - 1
        peak = max(peak, tokens + (n - i) * iterations)
        longer = max(longer, tokens + (n - i + 1) * iterations)
    return peak, longer


@kernel
def decoding_s(context, e, n, tokens):
    """Return the estimated time of an iteration of n decodes with `tokens` cached tokens in all, s."""
    estimates = context.estimates
    batch = estimates.scratch[0]
    batches.set_decodes(batch, n, tokens)
    return estimates.batch_s[context.known.snapshots[e].pool](batch, estimates.coefficients[e])


@kernel
def peak_with(context, e, record, assumed):
    """Return the largest future KV of engine e if the request joins it, in tokens."""
    alone = tokens_of(record) - 1 + to_come(record, assumed)
    return int(max(context.state[e, LONGER] + tokens_of(record) - 1, alone))


@kernel
def has_memory(snapshot, tokens, assumed):
    """Return whether `tokens` of KV, with one more request, leave the memory reserve; an empty engine takes any."""
    blocks = tokens / snapshot.block_tokens + snapshot.requests + 1  # + 1 for the last block of each
    return snapshot.requests == 0 or blocks <= (1.0 - assumed.memory_reserve) * snapshot.total_blocks


@kernel
def fits(context, e, record, tpot_s, assumed):
    """Return whether the request fits memory of engine e, and iterations of all decodes tpot_s (section 4.5)."""
    snapshot = context.known.snapshots[e]
    peak = peak_with(context, e, record, assumed)
    return has_memory(snapshot, peak, assumed) and decoding_s(context, e, snapshot.requests + 1, peak) < tpot_s


@kernel
def chunk_s(context, e, chunk, tokens):
    """Return the estimated time of an iteration of the last chunk of a prefill, beside the decodes in scratch[0], s."""
    estimates = context.estimates
    batch, computed, cached = estimates.scratch[0], float(chunk), float(max(0, tokens - chunk))
    batch.prefill_requests = 1.0
    batch.prefill_tokens = batch.longest_prefill_tokens = computed
    batch.prefill_tokens_squared = computed * computed
    batch.prefill_tokens_cached = computed * cached
    batch.prefill_cached_tokens = cached
    return estimates.batch_s[context.known.snapshots[e].pool](batch, estimates.coefficients[e])


@kernel
def largest_chunk(context, e, tokens, kept, most, tpot_s):
    """Return the largest chunk, at least `kept`, with which all iterations of the prefill stay below tpot_s."""
    if chunk_s(context, e, most, tokens) < tpot_s:
        return most
    too_much = most
    while too_much - kept > 1:
        middle = (kept + too_much) // 2
        if chunk_s(context, e, middle, tokens) < tpot_s:
            kept = middle
        else:
            too_much = middle
    return kept


@kernel
def prefill_time(context, e, tokens, decodes, decode_tokens, tpot_s, budget, within_s):
    """Return the time of a prefill from its turn on, s, and the time per token while others run too (section 4.7).

    inf: it cannot run. If it is certain to take longer than within_s: a lower bound, and inf.
    """
    snapshot, estimates = context.known.snapshots[e], context.estimates
    if snapshot.role == ROLE_PREFILL:  # dynamic chunking
        batch, batch_s, coefficients = estimates.scratch[0], estimates.batch_s[snapshot.pool], estimates.coefficients[e]
        alone_s = prefill_alone_s(tokens, 0, budget, batch, batch_s, coefficients)
        full = max(tokens, budget)
        return alone_s, prefill_alone_s(full, 0, budget, batch, batch_s, coefficients) / full
    batches.set_decodes(estimates.scratch[0], decodes, decode_tokens)
    most = budget - decodes
    if most < 1:
        return np.inf, np.inf
    least_s = chunk_s(context, e, 1, tokens)
    if least_s >= tpot_s:
        return np.inf, np.inf
    needed = 1
    if least_s > 0.0:  # with shorter chunks it takes longer than within_s
        needed = max(1, int(np.ceil(tokens * least_s / (max(0.0, within_s) + least_s))))
    if needed > most or (needed > 1 and chunk_s(context, e, needed, tokens) >= tpot_s):
        return within_s + least_s, np.inf
    chunk = largest_chunk(context, e, tokens, needed, most, tpot_s)
    iteration_s = chunk_s(context, e, chunk, tokens)
    s_per_token = iteration_s / chunk
    if chunk > tokens:
        iteration_s = chunk_s(context, e, tokens, tokens)
    return ((tokens + chunk - 1) // chunk) * iteration_s, s_per_token
