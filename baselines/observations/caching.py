"""Observation of a request and the engines it could be sent to, as in routing.py, with what engines have cached.

Queued prompts count without what was cached when they were sent. Each engine also shows its speed, its part of the
request's session, and the number that the base router compares.
"""

import numpy as np

from servegym.baselines.observations.fields import Field, Layout
from servegym.baselines.observations.routing import (
    ARRIVAL_FIELDS,
    CHOSEN,
    KV_AFTER,
    ROUTED_FIELDS,
    SLOT,
    SPARE,
    WHOLE,
    write_routing,
)
from servegym.baselines.observations.scales import LARGEST, TOKENS_BITS, log_share, share, squash
from servegym.policy import REFUSE, ROLE_PREFILL, batches, kernel, takes

CACHING_WHOLE_FIELDS = (
    *ARRIVAL_FIELDS,
    Field("later_turn", 0, 1, "1: its session has had a request; 0: its first turn, or no session"),
    Field("uncached", 0, 1, "fewest tokens that an engine that takes it would have to prefill: log2(1 + n) / 20"),
    Field("best_spare", -1, 1, "largest `spare` of an engine that takes it; below 0: it will be late everywhere"),
)
LATER_TURN, UNCACHED, BEST_SPARE = range(WHOLE, WHOLE + 3)
CACHING_WHOLE = len(CACHING_WHOLE_FIELDS)

CACHING_FIELDS = (
    *ROUTED_FIELDS,
    Field("cached", 0, 1, "tokens of its prompt that the engine is believed to have cached: log2(1 + n) / 20"),
    Field("uncached_work", 0, 1, "tokens of queued prompts that were not cached when they were sent: log2(1 + n) / 20"),
    Field("last", 0, 1, "1: the last request of its session was sent there"),
    Field("displaced", 0, 1, "share of KV blocks that it and the queued prompts need beyond what is cached of them: "
          "once memory is full, so much of what is cached for others is dropped"),
    Field("prefill_rate", 0, 1, "x tokens/s in a prefill of 2,048 tokens: x / (10,000 + x)"),
    Field("pace", 0, 1, "estimated time t of an iteration in which this request and all that were sent there decode: t "
          "/ (TPOT SLO + t); 0: the engine prefills only"),
    Field("starting", 0, 1, "1: the engine is off or starting up"),
    Field("draining", 0, 1, "1: the engine is up and takes no requests, but still has some"),
    Field("base_gap", 0, 1, "how far what the base router compares (such as a cost) is above the least, x, in its own "
          "unit: x / (1 + x); 0: it is the least, or nothing is compared; 1: the engine does not take the request"),
)  # fmt: skip
CACHED, UNCACHED_WORK, LAST, DISPLACED, PREFILL_RATE, PACE, STARTING, DRAINING, BASE_GAP = range(
    SLOT, len(CACHING_FIELDS)
)
CACHING_SLOT = len(CACHING_FIELDS)
RATE_TOKENS, RATE_UNIT = 2048, 10_000.0  # of `prefill_rate`


def caching_layout(slots: int) -> Layout:
    """Return the layout of `observe_caching`: float32[16 + 31 slots]."""
    return Layout("request", CACHING_WHOLE_FIELDS, "engine", CACHING_FIELDS, slots)


@kernel
def observe_caching(context, r, chosen, slots, measure, out):
    """Write `caching_layout(slots)` of request r into out, float32.

    context, chosen: as for `observe_routing`. measure: the number of its state per engine that the base compares; below
    0: none.
    """
    write_caching(context, r, chosen, slots, measure, CACHING_WHOLE, out)


@kernel
def write_caching(context, r, chosen, slots, measure, whole, out):
    """Write `observe_caching` into an observation with `whole` numbers of the request; others write the rest."""
    write_routing(context, r, chosen, 0, slots, (whole, CACHING_SLOT), True, out)
    known, request = context.known, context.requests[r]
    snapshots, tokens = known.snapshots, request.prompt_tokens + request.num_output_tokens
    shown, fewest, best = min(slots, snapshots.shape[0]), tokens, np.float32(-1.0)
    for e in range(shown):
        snapshot, at = snapshots[e], whole + e * CACHING_SLOT
        cached, uncached = int(out[at + CACHED]), uncached_queued(context, e)
        if takes(snapshot, request):
            fewest, best = min(fewest, tokens - cached), max(best, out[at + SPARE])
        out[at + CACHED], out[at + UNCACHED_WORK] = log_share(cached, TOKENS_BITS), log_share(uncached, TOKENS_BITS)
        out[at + LAST] = request.session_engine == e
        needed = (uncached + tokens - cached) / max(snapshot.block_tokens, 1)
        total = max(snapshot.total_blocks, 1)
        out[at + KV_AFTER] = min(1.0, max(-1.0, (snapshot.free_blocks - needed) / total))
        out[at + DISPLACED] = share(needed, total)
        out[at + PREFILL_RATE], out[at + PACE] = prefill_rate(context, e), pace(context, request, e)
        out[at + STARTING] = snapshot.off
        out[at + DRAINING] = snapshot.up == 1 and snapshot.closed == 1 and snapshot.requests > 0
        out[at + BASE_GAP] = 0.0
    out[LATER_TURN] = request.session_engine >= 0
    out[UNCACHED], out[BEST_SPARE] = log_share(fewest, TOKENS_BITS), best
    if measure >= 0:
        write_gaps(context, request, measure, slots, whole, out)


@kernel
def write_gaps(context, request, measure, slots, whole, out):
    """Write `base_gap` of each engine."""
    snapshots, least = context.known.snapshots, LARGEST
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], request):
            least = min(least, context.state[e, measure])
    for e in range(min(slots, snapshots.shape[0])):
        gap = max(0.0, context.state[e, measure] - least) if takes(snapshots[e], request) else np.inf
        out[whole + e * CACHING_SLOT + BASE_GAP] = squash(gap, 1.0)


@kernel
def write_refusing(chosen, whole, slot, place, out):
    """Write the slot of refusing behind those of engines: `chosen`, and `base_gap` where slots have it; the rest is 0.

    So a network that scores slots scores refusing too. chosen: what the base router named; REFUSE: it refuses the
    request. whole, slot: numbers of the request, and of a slot. place: index of this slot.
    """
    at = whole + place * slot
    out[at + CHOSEN] = chosen == REFUSE
    if slot > SLOT:
        out[at + BASE_GAP] = 0.0 if chosen == REFUSE else 1.0


@kernel
def uncached_queued(context, e):
    """Return the tokens of prompts queued at engine e that were not cached when they were sent."""
    tokens = 0
    for k in range(context.known.snapshots[e].prefills):
        queued = context.requests[context.known.prefilling[e, k]]
        tokens += queued.prompt_tokens + queued.num_output_tokens - queued.sent_cached_tokens
    return tokens


@kernel
def prefill_rate(context, e):
    """Return the field `prefill_rate` of engine e."""
    estimates, snapshot = context.estimates, context.known.snapshots[e]
    took_s = estimates.request_s[snapshot.pool](RATE_TOKENS, 0, False, estimates.coefficients[e])
    return squash(RATE_TOKENS, RATE_UNIT * max(took_s, 0.0))


@kernel
def pace(context, request, e):
    """Return the field `pace` of engine e."""
    estimates, snapshot = context.estimates, context.known.snapshots[e]
    if snapshot.role == ROLE_PREFILL:
        return 0.0
    batch, own = estimates.scratch[0], request.prompt_tokens + request.num_output_tokens
    tokens = snapshot.decode_tokens + snapshot.prefill_tokens + own
    batches.set_decodes(batch, snapshot.decodes + snapshot.prefills + 1, tokens)
    return squash(estimates.batch_s[snapshot.pool](batch, estimates.coefficients[e]), request.tpot_slo_s)
