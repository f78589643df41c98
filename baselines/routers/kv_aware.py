"""Dynamo's KV router: send a request where its cost is least: prompt blocks to compute, plus blocks in use.

Cached prompt blocks do not count. With a temperature the engine is drawn by a softmax of costs instead.

The steps are those of "Rule, exactly" in docs/systems/routers.md.
"""

import math

from servegym.baselines.routers.ties import (
    FIELDS,
    MEASURE,
    goes_first,
    is_below,
    send_to,
    send_to_least,
    subtract_finished,
)
from servegym.policy import (
    ENGINES_AHEAD,
    Parameter,
    Parameters,
    Policy,
    StateFields,
    ask_for_known,
    kernel,
    known_tokens,
    may_have,
    register,
    router,
    takes,
    uniform,
)

STREAM = 0x6B766177  # random stream of this router alone
LOW_WEIGHT = 1e-3  # below it, rounding hides the tokens in a cost
# State per engine, after the FIELDS of ties. uncached: tokens of queued prompts that were not cached when they were
# sent. of_tokens: all tokens of queued prompts when `uncached` was exact. own: uncached tokens of the request, valid in
# one decision; before that, the cached tokens that the engine needs (`tokens_to_beat`).
UNCACHED, OF_TOKENS, OWN = range(3, 6)
P = Parameters(
    Parameter("overlap_weight", 1.0, "cost of a block to be prefilled; a block in use costs 1", 0, 1e6,
              source="Dynamo, --kv-overlap-score-weight"),
    Parameter("temperature", 0.0, "0: takes the engine of least cost; above 0: draws one, by a softmax of the costs", 0,
              1e6, source="Dynamo, --router-temperature"),
    Parameter("seed", 0, "seed of the random numbers", 0, 2**31 - 1, integer=True),
)  # fmt: skip


@kernel
def least_and_most(context, request):
    """Return the least and the highest cost among the engines that take the request."""
    least, most = math.inf, -math.inf
    for e in range(context.known.snapshots.shape[0]):
        if takes(context.known.snapshots[e], context.requests[request]):
            least = min(least, context.state[e, MEASURE])
            most = max(most, context.state[e, MEASURE])
    return least, most


@kernel
def any_by_cost(context, request, temperature, drawn):
    """Return an engine drawn by the softmax of costs, scaled from 0 (least) to 1 (most). drawn: uniform in 0 to 1."""
    snapshots, state, record = context.known.snapshots, context.state, context.requests[request]
    least, most = least_and_most(context, request)
    total = 0.0
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], record):
            cost = (state[e, MEASURE] - least) / (most - least) if most > least else 0.0
            state[e, MEASURE] = math.exp(-cost / temperature)
            total += state[e, MEASURE]
    chosen, below = -1, 0.0
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], record) and (chosen < 0 or below < drawn * total):
            chosen = e
            below += state[e, MEASURE]
    return chosen


@kernel
def cost_up_to_prompt(context, request, overlap_weight):
    """Write a lower bound of the cost to MEASURE of each engine: the cost if all but one prompt token were cached.

    Returns the engine that takes the request at the least of them, the first of several; -1: none takes it.
    """
    record, decoding, nearest = context.requests[request], context.requests[request].computed_tokens > 0, -1
    for e in range(context.known.snapshots.shape[0]):
        snapshot, state = context.known.snapshots[e], context.state
        if takes(snapshot, record):
            if not decoding:
                subtract_finished(snapshot, state, e, UNCACHED, OF_TOKENS)
                state[e, OWN] = 1.0
            state[e, MEASURE] = cost(snapshot, record, overlap_weight, 0.0 if decoding else state[e, UNCACHED] + 1.0)
            if nearest < 0 or state[e, MEASURE] < state[nearest, MEASURE]:
                nearest = e
    return nearest


@kernel
def cost(snapshot, record, overlap_weight, to_prefill):
    """Return the cost in blocks. to_prefill: tokens to prefill."""
    in_use = snapshot.prefill_tokens + snapshot.decode_tokens + record.prompt_tokens + record.num_output_tokens
    return (overlap_weight * to_prefill + in_use) / snapshot.block_tokens


@kernel
def look_up(context, request, overlap_weight, e):
    """Look up the prompt's cached tokens at engine e, and write its OWN and MEASURE."""
    snapshot, state, record = context.known.snapshots[e], context.state, context.requests[request]
    known = known_tokens(context.known, record, request, e)
    state[e, OWN] = record.prompt_tokens + record.num_output_tokens - known
    state[e, MEASURE] = cost(snapshot, record, overlap_weight, state[e, UNCACHED] + state[e, OWN])


@kernel
def cost_with(context, request, overlap_weight, e, known):
    """Return the cost of engine e if it has the first `known` tokens of the prompt cached."""
    record, state = context.requests[request], context.state
    own = record.prompt_tokens + record.num_output_tokens - known
    return cost(context.known.snapshots[e], record, overlap_weight, state[e, UNCACHED] + own)


@kernel
def tokens_to_beat(context, request, overlap_weight, e, best):
    """Return how many cached prompt tokens engine e needs to come before engine `best` by cost."""
    snapshots, record, least = context.known.snapshots, context.requests[request], context.state[best, MEASURE]
    if overlap_weight < LOW_WEIGHT or least == math.inf:
        return 0
    snapshot, wins_tie = snapshots[e], goes_first(snapshots, context.state, e, best)
    most_to_prefill = (least - cost(snapshot, record, overlap_weight, 0.0)) * snapshot.block_tokens / overlap_weight
    context_tokens = record.prompt_tokens + record.num_output_tokens
    own = context.state[e, UNCACHED] + context_tokens
    tokens = int(max(0.0, min(float(context_tokens), math.ceil(own - most_to_prefill) - 2.0)))
    while tokens < context_tokens:  # exact: with the costs that will be compared
        one = cost_with(context, request, overlap_weight, e, tokens)
        if one < least or (wins_tie and one == least):
            break
        tokens += 1
    return tokens


@kernel
def better(context, request, overlap_weight, e, best, tokens):
    """Return the better of engine e, which is looked up only if it may be, and `best` (-1: none yet).

    tokens: cached tokens that it needs (`tokens_to_beat`); 0: it is looked up in any case. A look-up visits a hundred
    chunks. Engine e is ruled out without one if it lacks the one chunk that it would need; it gets a cost between the
    least and its own.
    """
    snapshots, state = context.known.snapshots, context.state
    if not takes(snapshots[e], context.requests[request]):
        return best
    if not may_have(context.known, request, e, tokens):
        state[e, MEASURE] = cost_with(context, request, overlap_weight, e, tokens - 1)
        return best
    look_up(context, request, overlap_weight, e)
    return e if best < 0 or is_below(snapshots, state, e, best, MEASURE) else best


@kernel
def look_up_near(context, request, overlap_weight, nearest, all_of_them):
    """Look up the prompt at each engine that may have the least cost (or at all of them). Returns the one that has it.

    First comes the engine to which the session was sent last, which may have most of the prompt, then the one with the
    least cost if all were cached: after them few others may be better, as most cost more even with all chunks cached.
    """
    n, state, record = context.known.snapshots.shape[0], context.state, context.requests[request]
    if nearest < 0:
        return -1
    last = record.session_engine if 0 <= record.session_engine < n else nearest
    best = better(context, request, overlap_weight, last, -1, 0)
    if nearest != last:
        tokens = 0 if best < 0 or all_of_them else tokens_to_beat(context, request, overlap_weight, nearest, best)
        best = better(context, request, overlap_weight, nearest, best, tokens)
    since = ENGINES_AHEAD  # from this engine on, OWN is what it needs to come before `best`
    for e in range(n):
        ahead = e + ENGINES_AHEAD  # prefetch for its look-up
        if ahead < n and ahead not in (last, nearest) and state[ahead, MEASURE] <= state[best, MEASURE]:
            state[ahead, OWN] = tokens_to_beat(context, request, overlap_weight, ahead, best)
            ask_for_known(context.known, request, ahead, int(state[ahead, OWN]))
        if e in (last, nearest) or not (all_of_them or state[e, MEASURE] <= state[best, MEASURE]):
            continue
        tokens = 0
        if not all_of_them:
            tokens = int(state[e, OWN]) if e >= since else tokens_to_beat(context, request, overlap_weight, e, best)
        found = better(context, request, overlap_weight, e, best, tokens)
        if found != best:
            best, since = found, ahead + 1
    return best


@router
def kv_aware(context, request, route):
    p, state, record = P.read(context), context.state, context.requests[request]
    decoding = record.computed_tokens > 0
    nearest = cost_up_to_prompt(context, request, p.overlap_weight)
    least = -1 if decoding else look_up_near(context, request, p.overlap_weight, nearest, p.temperature > 0.0)
    if p.temperature > 0.0:
        send_to(any_by_cost(context, request, p.temperature, uniform(p.seed, STREAM, request)), state, route)
    elif decoding:
        send_to_least(context, request, route)
    else:
        send_to(least, state, route)
    if not decoding:
        state[route.engine, UNCACHED] += state[route.engine, OWN]
        state[route.engine, OF_TOKENS] += record.prompt_tokens + record.num_output_tokens


register(
    Policy(
        "kv-aware",
        "router",
        "The engine with the least cost: uncached blocks to prefill, and blocks in use.",
        "NVIDIA Dynamo, KV router",
        kv_aware,
        state=StateFields(engine=(*FIELDS, "uncached", "of_tokens", "own")),
        parameters=P,
    )
)
