"""Observation of a request and the engines it could be sent to, slot by slot, for a learned router.

Of requests it shows only what a router may read: what arrived with them, and their output tokens so far. The time
until an engine has done a prefill is estimated as in GoRouting (ProServe, Eq. 8): the prefills sent there, in batches
with its decodes, minus the time since the last change.
"""

import numpy as np

from servegym.baselines.observations.fields import Field, Layout
from servegym.baselines.observations.scales import (
    COUNT_BITS,
    LARGEST,
    TOKENS_BITS,
    log_known,
    log_share,
    next_gain,
    share,
    span_of,
    squash,
    write_zeros,
)
from servegym.policy import (
    POOL,
    ROLE_DECODE,
    ROLE_PREFILL,
    TIERS,
    batches,
    kernel,
    known_tokens,
    may_decode,
    next_deadline_s,
    takes,
    tier_of,
)

ARRIVAL_FIELDS = (
    Field("decode", 0, 1, "1: a decode engine is chosen for it, before its prefill; 0: the engine to send it to now"),
    Field("context", 0, 1, "prompt and output tokens so far: log2(1 + n) / 20"),
    Field("again", 0, 1, "1: it has emitted tokens"),
    Field("first_slo", 0, 1, "seconds x from its arrival to its first deadline: x / (1 + x)"),
    Field("tpot_slo", 0, 1, "TPOT SLO of x seconds: x / (0.1 + x)"),
    Field("ttlt", 0, 1, "1: it has one deadline for all its tokens"),
    Field("slack", -1, 1, "time s to its next deadline: s / (span + |s|)"),
    Field("gain", 0, 1, "gain x of its next token, m the mean of queued requests' next tokens: x / (m + x)"),
    Field("priority", 0, 1, "priority p: p / (1 + p); 0: the most important"),
    Field("predicted", 0, 1, "1: there is a prediction of its length"),
    Field("output_left", 0, 1, "predicted tokens to come: log2(1 + n) / 20; 0: no prediction"),
    Field("takers", 0, 1, "share of the engines in slots that take it"),
    Field("held", 0, 1, "requests that wait at the router: log2(1 + n) / 12"),
)
(
    DECODE, CONTEXT, AGAIN, FIRST_SLO, TPOT_SLO, TTLT, REQUEST_SLACK, GAIN, PRIORITY, PREDICTED, OUTPUT_LEFT, TAKERS,
    HELD,
) = range(len(ARRIVAL_FIELDS))  # fmt: skip
WHOLE = len(ARRIVAL_FIELDS)
MOST_OF_A_BATCH = 0.9  # cap on the share of a batch that its constant part and decodes fill

ROUTED_FIELDS = (
    Field("takes", 0, 1, "1: it may be sent there now; if `decode` is 1: the engine could decode it"),
    Field("chosen", 0, 1, "1: the base router named this engine"),
    Field("open", 0, 1, "1: the engine is up and takes requests"),
    Field("prefills_only", 0, 1, "1: it prefills only"),
    Field("decodes_only", 0, 1, "1: it decodes only"),
    Field("in_pool", 0, 1, "1: it is in the common pool, of no tier"),
    Field("tier_gap", -1, 1, "(tier of the engine - tier of the request) / 8; 0: the engine is in the pool"),
    Field("prefills", 0, 1, "requests sent there that have emitted no token since: log2(1 + n) / 12"),
    Field("decodes", 0, 1, "requests there that decode, as far as is known: log2(1 + n) / 12"),
    Field("fewest", 0, 1, "(1 + fewest requests on an engine that takes it) / (1 + requests here)"),
    Field("iteration", 0, 1, "estimated time t of a batch of its decodes, this request too where it is to be decoded: "
          "t / (TPOT SLO + t)"),
    Field("busy", 0, 1, "time t until its iteration ends, as reported: t / (span + t)"),
    Field("exec", 0, 1, "estimated time t of its prefill there, or of an iteration if it decodes: t / (span + t)"),
    Field("work", 0, 1, "estimated time t until what was sent there before is prefilled: t / (span + t)"),
    Field("spare", -1, 1, "x: time to its deadline less work and exec: x / (span + |x|); above 0: in time even behind "
          "all queued prompts"),
    Field("spare_by_deadline", -1, 1, "the same, with only the work due before it; above 0: in time if prompts run by "
          "deadline"),
    Field("soonest", 0, 1, "(span + least work and exec of an engine that takes it) / (span + work and exec here)"),
    Field("made_late", 0, 1, "gain x of the queued first tokens that it would make late, g its own: x / (g + x)"),
    Field("late", 0, 1, "share of the gain of the queued first tokens that is late even without it"),
    Field("prefix", 0, 1, "share of its prompt that the engine is believed to have cached"),
    Field("free_kv", 0, 1, "share of KV blocks that is free, as reported"),
    Field("kv_after", -1, 1, "`free_kv` less the share that the prefills sent there and this request may take"),
)  # fmt: skip
(
    TAKES, CHOSEN, OPEN, PREFILLS_ONLY, DECODES_ONLY, IN_POOL, TIER_GAP, PREFILLS, DECODES, FEWEST, ITERATION, BUSY,
    EXEC, WORK, SPARE, SPARE_BY_DEADLINE, SOONEST, MADE_LATE, LATE, PREFIX, FREE_KV, KV_AFTER,
) = range(len(ROUTED_FIELDS))  # fmt: skip
SLOT = len(ROUTED_FIELDS)


def routing_layout(slots: int) -> Layout:
    """Return the layout of `observe_routing`: float32[13 + 22 slots]."""
    return Layout("request", ARRIVAL_FIELDS, "engine", ROUTED_FIELDS, slots)


@kernel
def observe_routing(context, r, chosen, decode, slots, out):
    """Write `routing_layout(slots)` of request r into out, float32. Slot e is engine e.

    context: a RouterContext. chosen: the engine that the base router named; below 0: none. decode: what `takes` marks;
    1: open decode engines, which could decode the request after its prefill; 0: the engines that take it now.
    """
    write_routing(context, r, chosen, decode, slots, (WHOLE, SLOT), False, out)


@kernel
def write_routing(context, r, chosen, decode, slots, sizes, counts_cached, out):
    """Write `observe_routing` into an observation that may have further numbers after those of `routing_layout`.

    sizes: numbers of the request, and of a slot. counts_cached: queued prompts count without what was cached when they
    were sent, and out[SLOT] of each slot gets the cached tokens of the request there: a look-up takes long.
    """
    now_s, known, estimates = context.now_s, context.known, context.estimates
    snapshots, request, (whole, slot) = known.snapshots, context.requests[r], sizes
    shown = min(slots, snapshots.shape[0])
    span_s, slack_s = span_of(request), next_deadline_s(request) - now_s
    takers, fewest, soonest_s, gain, prefills = 0, np.inf, np.inf, 0.0, 0
    at = whole
    for e in range(shown):
        snapshot = snapshots[e]
        is_open = snapshot.up == 1 and snapshot.closed == 0
        taken = is_open and snapshot.role == ROLE_DECODE if decode == 1 else takes(snapshot, request)
        out[at + TAKES], out[at + CHOSEN], out[at + OPEN] = taken, e == chosen, is_open
        observe_snapshot(now_s, request, snapshot, known.tiers, span_s, out, at)
        batch_s = iteration_s(request, snapshot, estimates, e)
        done_s, of_record = observe_record(context, r, e, batch_s, span_s, counts_cached, out, at)
        gain += of_record
        prefills += snapshot.prefills
        out[at + ITERATION] = squash(batch_s, request.tpot_slo_s)
        # Raw values, which are divided once the best of all engines are known.
        out[at + FEWEST], out[at + SOONEST] = snapshot.requests, min(done_s, LARGEST)
        if taken:
            takers += 1
            fewest, soonest_s = min(fewest, float(snapshot.requests)), min(soonest_s, out[at + SOONEST])
        at += slot
    for e in range(shown):
        at = whole + e * slot
        out[at + FEWEST] = share(1.0 + fewest, 1.0 + out[at + FEWEST]) if takers > 0 else 0.0
        out[at + SOONEST] = share(span_s + soonest_s, span_s + out[at + SOONEST]) if takers > 0 else 0.0
    write_zeros(out, whole + shown * slot, (slots - shown) * slot)
    observe_arrival(request, known.tiers, span_s, slack_s, out)
    out[DECODE] = decode
    out[TAKERS] = share(takers, shown)
    out[GAIN] = squash(next_gain(request) * max(prefills, 1), gain) if prefills > 0 else 0.5


@kernel
def observe_arrival(request, tiers, span_s, slack_s, out):
    """Write the fields of the request that do not depend on engines."""
    held = 0
    for held_queue in range(tiers.shape[0] - 1):
        held += tiers[held_queue].waiting
    predicted = request.predicted_output_tokens > 0.0
    priority = max(float(request.priority), 0.0)
    out[CONTEXT] = log_share(request.prompt_tokens + request.num_output_tokens, TOKENS_BITS)
    out[AGAIN] = request.num_output_tokens > 0
    out[FIRST_SLO] = squash(request.first_deadline_s - request.arrival_s, 1.0)
    out[TPOT_SLO] = squash(request.tpot_slo_s, 0.1)
    out[TTLT] = request.ttlt_slo_s < np.inf
    out[REQUEST_SLACK] = squash(slack_s, span_s)
    out[PRIORITY] = squash(priority, 1.0)
    out[PREDICTED] = predicted
    out[OUTPUT_LEFT] = log_known(request.predicted_output_tokens - request.num_output_tokens) if predicted else 0.0
    out[HELD] = log_share(held, COUNT_BITS)


@kernel
def observe_snapshot(now_s, request, snapshot, tiers, span_s, out, at):
    """Write the fields of an engine that do not depend on its queued prompts."""
    in_pool = snapshot.tier == POOL
    out[at + PREFILLS_ONLY] = snapshot.role == ROLE_PREFILL
    out[at + DECODES_ONLY] = snapshot.role == ROLE_DECODE
    out[at + IN_POOL] = in_pool
    gap = 0.0 if in_pool else (snapshot.tier - tier_of(request, tiers)) / TIERS
    out[at + TIER_GAP] = min(1.0, max(-1.0, gap))
    out[at + PREFILLS] = log_share(snapshot.prefills, COUNT_BITS)
    out[at + DECODES] = log_share(snapshot.decodes, COUNT_BITS)
    out[at + BUSY] = squash(max(0.0, snapshot.busy_until_s - now_s), span_s)
    out[at + FREE_KV] = share(snapshot.free_blocks, snapshot.total_blocks)
    tokens = snapshot.prefill_tokens + request.prompt_tokens + request.num_output_tokens
    taken = tokens / max(snapshot.block_tokens, 1)
    out[at + KV_AFTER] = min(1.0, max(-1.0, (snapshot.free_blocks - taken) / max(snapshot.total_blocks, 1)))


@kernel
def iteration_s(request, snapshot, estimates, e):
    """Return the estimated time of a batch of the engine's decodes, s, with the request on a decode engine."""
    batch, decodes, context = estimates.scratch[0], snapshot.decodes, snapshot.decode_tokens
    if snapshot.role == ROLE_DECODE:
        decodes += 1
        context += request.prompt_tokens + request.num_output_tokens
    batches.clear(batch)
    batch.decode_requests, batch.decode_cached_tokens = decodes, context
    if decodes > 0:
        batch.longest_decode_cached = batch.decode_cached_tokens / decodes
    return estimates.batch_s[snapshot.pool](batch, estimates.coefficients[e])


@kernel
def observe_record(context, r, e, batch_s, span_s, counts_cached, out, at):
    """Write the fields of an engine's queued prompts (its record) and of the request after them.

    Returns the time until the request would be done, s, and the gain of the record's next tokens. On a decode engine,
    which has no record, the request is done with the iteration after the running one.
    """
    now_s, requests, known, estimates = context.now_s, context.requests, context.known, context.estimates
    snapshot, request, record = known.snapshots[e], requests[r], known.prefilling[e]
    tokens, cached = request.prompt_tokens + request.num_output_tokens, 0
    if snapshot.publishes == 1 or snapshot.index_sets > 0:  # else nothing is cached, and the call is slow
        cached = known_tokens(known, request, r, e)
    exec_s, work_s, before_s, gain = 0.0, 0.0, 0.0, 0.0
    if snapshot.role != ROLE_DECODE:
        exec_s = estimates.request_s[snapshot.pool](tokens - cached, cached, False, estimates.coefficients[e])
    slack_s = next_deadline_s(request) - now_s
    deadline_s = now_s + slack_s
    for k in range(snapshot.prefills):
        queued = requests[record[k]]
        queued_tokens = queued.prompt_tokens + queued.num_output_tokens
        there = queued.sent_cached_tokens if counts_cached else 0
        queued_s = estimates.request_s[snapshot.pool](queued_tokens - there, there, False, estimates.coefficients[e])
        work_s += queued_s
        before_s += queued_s if next_deadline_s(queued) <= deadline_s else 0.0
        gain += next_gain(queued)
    stretch = 1.0 / (1.0 - min(batch_s / request.tpot_slo_s, MOST_OF_A_BATCH))
    since_s = now_s - snapshot.changed_s
    work_s, before_s = max(0.0, stretch * work_s - since_s), max(0.0, stretch * before_s - since_s)
    own_s = stretch * exec_s
    if snapshot.role == ROLE_DECODE:
        work_s = before_s = max(0.0, snapshot.busy_until_s - now_s)
        own_s = batch_s
    made_late, late = 0.0, 0.0
    for k in range(snapshot.prefills):
        queued = requests[record[k]]
        remain_s = next_deadline_s(queued) - now_s
        if remain_s <= work_s:
            late += next_gain(queued)
        elif remain_s <= work_s + own_s:
            made_late += next_gain(queued)
    out[at + EXEC], out[at + WORK] = squash(own_s, span_s), squash(work_s, span_s)
    out[at + SPARE] = squash(slack_s - work_s - own_s, span_s)
    out[at + SPARE_BY_DEADLINE] = squash(slack_s - before_s - own_s, span_s)
    out[at + MADE_LATE], out[at + LATE] = squash(made_late, next_gain(request)), share(late, gain)
    out[at + PREFIX] = share(cached, tokens)
    if counts_cached:
        out[at + SLOT] = cached  # exact up to 2^24 tokens, the longest prompt
    return work_s + own_s, gain


@kernel
def observe_disaggregated(context, r, chosen, chosen_decode, slots, out):
    """Write `routing_layout(slots)` of request r, before its prefill, into out, float32.

    It is as `observe_routing`, except that for decode engines `takes` is whether the engine is open, and `chosen`
    whether the base router named it as decode engine. chosen_decode: -1: the router decides after the prefill.
    """
    known = context.known
    observe_routing(context, r, chosen, 0, slots, out)
    for e in range(min(slots, known.snapshots.shape[0])):
        if known.snapshots[e].role == ROLE_DECODE:
            at = WHOLE + e * SLOT
            out[at + TAKES] = may_decode(known.snapshots[e])
            out[at + CHOSEN] = e == chosen_decode
