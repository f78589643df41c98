"""Observation of the tiers of a cluster, and of its engines slot by slot, for a learned scaler."""

from servegym.baselines.observations.fields import Field, Layout
from servegym.baselines.observations.scales import (
    COUNT_BITS,
    TOKENS_BITS,
    log_share,
    next_gain,
    share,
    span_of,
    squash,
    write_zeros,
)
from servegym.policy import POOL, ROLE_DECODE, ROLE_PREFILL, TIERS, batches, kernel, next_deadline_s, tier_of

TIER_FIELDS = (
    Field("there", 0, 1, "1: the cluster has this tier; if not, all its numbers are 0"),
    Field("tpot_slo", 0, 1, "TPOT SLO of x seconds: x / (0.1 + x)"),
    Field("waiting", 0, 1, "requests that wait for it at the router: log2(1 + n) / 12"),
    Field("engines", 0, 1, "share of the engines that is in it"),
    Field("open", 0, 1, "share of the engines that is in it, up and open"),
    Field("requests", 0, 1, "requests on its engines: log2(1 + n) / 12"),
)
TIER = len(TIER_FIELDS)
THERE, TIER_SLO, TIER_WAITING, TIER_ENGINES, TIER_OPEN, TIER_REQUESTS = range(TIER)

CLUSTER_FIELDS = (
    Field("in_pool", 0, 1, "share of the engines that is in the common pool"),
    Field("closed", 0, 1, "share of the engines that is closed"),
    Field("failed", 0, 1, "share of the engines that has failed"),
    Field("best_effort", 0, 1, "requests that wait at the router for no tier: log2(1 + n) / 12"),
    *(
        Field(f"tier_{t}_{field.name}", field.low, field.high, f"of tier {t}: {field.doc}")
        for t in range(TIERS)
        for field in TIER_FIELDS
    ),
)
IN_POOL, CLOSED, FAILED, BEST_EFFORT, OF_TIERS = range(5)
WHOLE = len(CLUSTER_FIELDS)

SCALED_FIELDS = (
    Field("there", 0, 1, "1: there is an engine in this slot"),
    Field("up", 0, 1, "1: it has not failed"),
    Field("closed", 0, 1, "1: it takes no requests"),
    Field("prefills_only", 0, 1, "1: it prefills only"),
    Field("decodes_only", 0, 1, "1: it decodes only"),
    Field("base_moves", 0, 1, "1: the base scaler changes its tier"),
    Field("base_closes", 0, 1, "1: the base scaler has it closed"),
    Field("prefills", 0, 1, "requests sent there that have emitted no token since: log2(1 + n) / 12"),
    Field("decodes", 0, 1, "requests there that decode, as far as is known: log2(1 + n) / 12"),
    Field("own", 0, 1, "share of its requests that belong to its own tier; 0: it is in the pool"),
    Field("last", 0, 1, "1: no open engine of its tier and role has fewer requests"),
    Field("iteration", 0, 1, "estimated time t of a batch of its decodes, in a tier: t / (TPOT SLO of the tier + t)"),
    Field("work", 0, 1, "estimated time t of the prefills sent there, s: t / (1 + t)"),
    Field("least_slack", -1, 1, "least time s to the deadline of one of these: s / (span + |s|); 1: there is none"),
    Field("late", 0, 1, "share of the gain of their next tokens that is late"),
    Field("free_kv", 0, 1, "share of KV blocks that is free, as reported"),
    Field("decode_context", 0, 1, "mean context of its decodes, as reported: log2(1 + tokens) / 20"),
    Field("in_pool", 0, 1, "1: it is in the common pool"),
    *(Field(f"in_tier_{t}", 0, 1, f"1: it is in tier {t}") for t in range(TIERS)),
    Field("base_to_pool", 0, 1, "1: the base scaler has it in the common pool"),
    *(Field(f"base_to_tier_{t}", 0, 1, f"1: the base scaler has it in tier {t}") for t in range(TIERS)),
)
(
    PRESENT, UP, IS_CLOSED, PREFILLS_ONLY, DECODES_ONLY, BASE_MOVES, BASE_CLOSES, PREFILLS, DECODES, OWN, LAST,
    ITERATION, WORK, LEAST_SLACK, LATE, FREE_KV, DECODE_CONTEXT, PLACE,
) = range(18)  # fmt: skip
BASE_PLACE = PLACE + 1 + TIERS
SLOT = len(SCALED_FIELDS)


def tiers_layout(slots: int) -> Layout:
    """Return the layout of `observe_tiers`: float32[52 + 35 slots]."""
    return Layout("cluster", CLUSTER_FIELDS, "engine", SCALED_FIELDS, slots)


@kernel
def observe_tiers(context, moves, slots, out):
    """Write `tiers_layout(slots)` into out, float32. Slot e is engine e.

    context: a ScalerContext. moves: the base scaler's decisions.
    """
    write_tiers(context, moves, slots, WHOLE, SLOT, out)


@kernel
def write_tiers(context, moves, slots, whole, slot, out):
    """Write `observe_tiers` into an observation with `whole` and `slot` numbers, of which others write the rest."""
    requests, known, estimates = context.requests, context.known, context.estimates
    snapshots = known.snapshots
    write_zeros(out, 0, whole + slots * slot)
    observe_cluster(snapshots, known.tiers, out)
    at = whole
    for e in range(min(slots, snapshots.shape[0])):
        observe_place(snapshots[e], moves[e], out, at)
        observe_load(e, requests, known, estimates, out, at)
        observe_prefills(context.now_s, e, requests, known, estimates, out, at)
        at += slot


@kernel
def observe_cluster(snapshots, tiers, out):
    """Write the numbers of engines and of waiting requests by tier."""
    n, in_pool, closed, failed = snapshots.shape[0], 0, 0, 0
    for e in range(n):
        in_pool += snapshots[e].tier == POOL
        closed += snapshots[e].closed == 1
        failed += snapshots[e].up == 0
    out[IN_POOL], out[CLOSED], out[FAILED] = share(in_pool, n), share(closed, n), share(failed, n)
    last = tiers.shape[0] - 2
    out[BEST_EFFORT] = log_share(tiers[last].waiting, COUNT_BITS)
    for t in range(min(last, TIERS)):
        engines, is_open, queued, at = 0, 0, 0, OF_TIERS + t * TIER
        for e in range(n):
            if snapshots[e].tier == t:
                engines += 1
                is_open += snapshots[e].up == 1 and snapshots[e].closed == 0
                queued += snapshots[e].requests
        out[at + THERE] = 1.0
        out[at + TIER_SLO] = squash(tiers[t].tpot_slo_s, 0.1)
        out[at + TIER_WAITING] = log_share(tiers[t].waiting, COUNT_BITS)
        out[at + TIER_ENGINES], out[at + TIER_OPEN] = share(engines, n), share(is_open, n)
        out[at + TIER_REQUESTS] = log_share(queued, COUNT_BITS)


@kernel
def observe_place(snapshot, move, out, at):
    """Write an engine's tier and state, and the base scaler's decision for it."""
    out[at + PRESENT] = 1.0
    out[at + UP] = snapshot.up == 1
    out[at + IS_CLOSED] = snapshot.closed == 1
    out[at + PREFILLS_ONLY] = snapshot.role == ROLE_PREFILL
    out[at + DECODES_ONLY] = snapshot.role == ROLE_DECODE
    out[at + BASE_MOVES] = move.tier != snapshot.tier
    out[at + BASE_CLOSES] = move.closed != 0
    if -1 <= snapshot.tier < TIERS:
        out[at + PLACE + 1 + snapshot.tier] = 1.0
    if -1 <= move.tier < TIERS:
        out[at + BASE_PLACE + 1 + move.tier] = 1.0


@kernel
def observe_load(e, requests, known, estimates, out, at):
    """Write an engine's requests by tier, its memory, and the time of its decodes."""
    snapshot, tiers = known.snapshots[e], known.tiers
    out[at + PREFILLS] = log_share(snapshot.prefills, COUNT_BITS)
    out[at + DECODES] = log_share(snapshot.decodes, COUNT_BITS)
    out[at + FREE_KV] = share(snapshot.free_blocks, snapshot.total_blocks)
    if snapshot.decodes > 0:
        out[at + DECODE_CONTEXT] = log_share(snapshot.decode_tokens / snapshot.decodes, TOKENS_BITS)
    last = True
    for other in range(known.snapshots.shape[0]):
        one = known.snapshots[other]
        same = one.tier == snapshot.tier and one.role == snapshot.role and one.up == 1 and one.closed == 0
        last = last and not (same and one.requests < snapshot.requests)
    out[at + LAST] = last
    if snapshot.tier == POOL:
        return
    own = 0
    for k in range(snapshot.decodes):
        own += tier_of(requests[known.decoding[e, k]], tiers) == snapshot.tier
    for k in range(snapshot.prefills):
        own += tier_of(requests[known.prefilling[e, k]], tiers) == snapshot.tier
    out[at + OWN] = share(own, snapshot.decodes + snapshot.prefills)
    if snapshot.decodes > 0:
        batch = estimates.scratch[0]
        batches.set_decodes(batch, snapshot.decodes, snapshot.decode_tokens)
        iteration_s = estimates.batch_s[snapshot.pool](batch, estimates.coefficients[e])
        out[at + ITERATION] = squash(iteration_s, tiers[snapshot.tier].tpot_slo_s)


@kernel
def observe_prefills(now_s, e, requests, known, estimates, out, at):
    """Write the work of an engine's queued prompts, and when it is due."""
    snapshot, record = known.snapshots[e], known.prefilling[e]
    work_s, least, late, gain = 0.0, 1.0, 0.0, 0.0
    for k in range(snapshot.prefills):
        queued = requests[record[k]]
        slack_s = next_deadline_s(queued) - now_s
        tokens = queued.prompt_tokens + queued.num_output_tokens
        work_s += estimates.request_s[snapshot.pool](tokens, 0, False, estimates.coefficients[e])
        least = min(least, squash(slack_s, span_of(queued)))
        gain += next_gain(queued)
        late += next_gain(queued) if slack_s <= 0.0 else 0.0
    out[at + WORK], out[at + LEAST_SLACK], out[at + LATE] = squash(work_s, 1.0), least, share(late, gain)
