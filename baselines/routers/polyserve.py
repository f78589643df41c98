"""PolyServe's router (sections 4.2 to 4.7): requests are binned into tiers by TPOT SLO.

A request goes to the fullest engine of its tier that still keeps it in time, so that the emptiest engine of the tier
can leave it; else to tighter tiers; else to a pending engine with requests of its tier; else to an engine of the pool.

The steps are those of "Rule, exactly" in docs/systems/polyserve.md.
"""

from typing import Any, NamedTuple

import numpy as np

from servegym.baselines.routers.polyserve_admission import (
    admits,
    admits_idle,
    asked_of,
    backlog_s,
    backlog_tokens,
    fits_beside,
    is_known_to_be_late,
)
from servegym.baselines.routers.polyserve_forecast import (
    BEST_EFFORT,
    CLEAR_S,
    DECODING_S,
    FIELDS,
    PEAK,
    S_PER_TOKEN,
    SCRATCH,
    Assumed,
    has_memory,
    iteration_limit_s,
    look_at,
    peak_with,
    prefill_time,
    tokens_of,
)
from servegym.baselines.scalers.polyserve import tightest_tier
from servegym.policy import (
    HOLD,
    POOL,
    ROLE_DECODE,
    ROLE_PREFILL,
    Parameter,
    Parameters,
    Policy,
    StateFields,
    kernel,
    register,
    router,
    takes,
    tier_of,
    would_take,
)

P = Parameters(
    Parameter("max_num_batched_tokens", 1024, "most tokens in a batch of the engines", 1, 2**20, "tokens", integer=True,
              log=True, source="PolyServe's worked example, section 4.7"),
    Parameter("output_tokens", 256, "expected output tokens before any request has finished", 1, 2**20, "tokens",
              integer=True, log=True),
    Parameter("memory_reserve", 0.05, "share of KV memory left free, as forecasts assume mean output lengths", 0, 0.9),
    Parameter("margin", 0.0, "share of a tier's TPOT SLO left free for errors of the estimator", 0, 0.9),
)  # fmt: skip


class Fleet(NamedTuple):
    """Facts about all engines, found in one pass at the start of a decision."""

    finished: Any  # finished requests over all engines
    finished_tokens: Any
    of_pool: Any  # whether an engine of the pool takes the request
    prefills: Any  # whether a prefill engine does
    pending: Any  # whether a pending engine would take it
    idle: Any  # the first idle engine that takes it; -1: none


@kernel
def fleet_of(snapshots, record):
    """Return the `Fleet` for a request."""
    finished, tokens = 0, 0
    of_pool, prefills, pending, idle = False, False, False, -1
    for e in range(snapshots.shape[0]):
        snapshot = snapshots[e]
        finished += snapshot.finished
        tokens += snapshot.finished_tokens
        pending |= would_take(snapshot, record)
        if takes(snapshot, record):
            of_pool |= snapshot.tier == POOL
            prefills |= snapshot.role == ROLE_PREFILL
            if idle < 0 and snapshot.requests == 0:
                idle = e
    return Fleet(finished, tokens, of_pool, prefills, pending, idle)


@kernel
def mean_output(fleet, at_first):
    """Return the mean output tokens of all finished requests, rounded up; at_first: if none has finished."""
    return at_first if fleet.finished == 0 else (fleet.finished_tokens + fleet.finished - 1) // fleet.finished


@kernel
def load_of(context, e):
    """Return the load of an engine, s; within a tier the highest load is tried first."""
    if context.known.snapshots[e].role == ROLE_PREFILL:
        return backlog_s(context, e)
    return context.state[e, DECODING_S]


@kernel
def fullest(context, request, loosest, in_time, asked, assumed):
    """Return the most loaded engine that admits the request, in the first tier that has one, from `loosest` to tighter.

    in_time False: by iteration time and memory alone. -1: none admits it.
    """
    e = fullest_of(context, request, loosest, loosest, in_time, asked, assumed)
    return fullest_of(context, request, 0, loosest - 1, in_time, asked, assumed) if e < 0 and loosest > 0 else e


@kernel
def fullest_of(context, request, tightest, loosest, in_time, asked, assumed):
    """Do as `fullest` for tiers `tightest` to `loosest`. Prefill engines serve all tiers, so they count as its own."""
    known, record = context.known, context.requests[request]
    best, best_tier, best_load = -1, tightest, -np.inf
    own = tier_of(record, known.tiers)
    for e in range(known.snapshots.shape[0]):
        snapshot = known.snapshots[e]
        if not takes(snapshot, record):
            continue
        at = own if snapshot.role == ROLE_PREFILL and snapshot.tier != POOL else snapshot.tier
        if not best_tier <= at <= loosest:
            continue
        tpot_s = iteration_limit_s(known.tiers, at, assumed)
        if in_time and is_known_to_be_late(context.state[e], snapshot, asked, tpot_s, context.now_s):
            continue
        load = load_of(context, e)
        if at == best_tier and load <= best_load:
            continue
        if in_time:
            admitted = admits(context, request, e, asked, tpot_s, assumed)
        elif snapshot.role == ROLE_PREFILL:
            admitted = snapshot.prefills == 0
        else:
            admitted = fits_beside(context, e, record, asked, tpot_s, assumed)
        if admitted:
            best, best_tier, best_load = e, at, load
    return best


@kernel
def fullest_pending(context, request, asked, assumed):
    """Return the most loaded pending engine that has and admits requests of the request's tier; -1: none."""
    known, record = context.known, context.requests[request]
    best, best_load = -1, -np.inf
    own = tier_of(record, known.tiers)
    tpot_s = iteration_limit_s(known.tiers, own, assumed)
    for e in range(known.snapshots.shape[0]):
        if not would_take(known.snapshots[e], record) or tightest_tier(context, e) != own:
            continue
        load = load_of(context, e)
        if load > best_load and admits(context, request, e, asked, tpot_s, assumed):
            best, best_load = e, load
    return best


@kernel
def emptiest_of_pool(record, snapshots):
    """Return the engine of the pool with the fewest requests; -1: none."""
    best = -1
    for e in range(snapshots.shape[0]):
        if snapshots[e].tier != POOL or not takes(snapshots[e], record):
            continue
        if best < 0 or snapshots[e].requests < snapshots[best].requests:
            best = e
    return best


@kernel
def can_be_in_time(context, record, assumed):
    """Return whether a request could be in time on an idle engine of its tier. Equal engines are tried once."""
    known = context.known
    tpot_s = iteration_limit_s(known.tiers, tier_of(record, known.tiers), assumed)
    pool = -1
    for e in range(known.snapshots.shape[0]):
        snapshot = known.snapshots[e]
        if snapshot.pool == pool or not takes(snapshot, record):
            continue
        pool = snapshot.pool
        if admits_idle(context, record, e, tpot_s, assumed):
            return True
    return False


@kernel
def first_of_pool(context, record, assumed):
    """Return the first engine of the pool with room for a request that cannot be in time; -1: none."""
    snapshots = context.known.snapshots
    for e in range(snapshots.shape[0]):
        if snapshots[e].tier == POOL and takes(snapshots[e], record):
            room = has_memory(snapshots[e], peak_with(context, e, record, assumed), assumed)
            if snapshots[e].prefills == 0 if snapshots[e].role == ROLE_PREFILL else room:
                return e
    return -1


@kernel
def engine_for_best_effort(context, request, fleet, assumed):
    """Return an engine for a request that cannot be in time; -1: none.

    It is one of the pool, else one that has iteration time and memory for it, from the loosest tier on, else an idle
    one.
    """
    record = context.requests[request]
    e = first_of_pool(context, record, assumed) if fleet.of_pool else -1
    if e < 0:
        asked = asked_of(context, record, BEST_EFFORT, assumed)
        e = fullest(context, request, context.known.tiers.shape[0] - 3, False, asked, assumed)
    return fleet.idle if e < 0 else e


@kernel
def none_is_busy(now_s, snapshots):
    """Return whether all engines are idle, so that no event would come if the request were held."""
    for e in range(snapshots.shape[0]):  # noqa: SIM110 (kernels have no generators)
        if snapshots[e].busy_until_s > now_s:
            return False
    return True


@kernel
def with_fewest_requests(record, snapshots):
    """Return the engine with the fewest requests."""
    best = -1
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], record) and (best < 0 or snapshots[e].requests < snapshots[best].requests):
            best = e
    return best


@kernel
def keep_forecast(context, record, e, tpot_s, emptied, assumed):
    """Write the forecast end of the prefills sent to engine e, with this one. emptied: it gives back its requests."""
    snapshot, state = context.known.snapshots[e], context.state
    if snapshot.role == ROLE_DECODE:
        return
    if emptied:
        decodes, peak, left, start_s = 0, 0.0, 0.0, context.now_s
    else:
        decodes, peak = snapshot.requests, state[e, PEAK]
        left, start_s = backlog_tokens(context, e), max(context.now_s, snapshot.busy_until_s)
    _, s_per_token = prefill_time(
        context, e, tokens_of(record), decodes, peak, tpot_s, assumed.max_num_batched_tokens, np.inf
    )
    if s_per_token < np.inf:
        state[e, CLEAR_S] = start_s + (left + tokens_of(record)) * s_per_token
        state[e, S_PER_TOKEN] = s_per_token


@router
def polyserve(context, request, route):
    p, known, snapshots, record = P.read(context), context.known, context.known.snapshots, context.requests[request]
    fleet = fleet_of(snapshots, record)
    assumed = Assumed(mean_output(fleet, p.output_tokens), p.max_num_batched_tokens, p.memory_reserve, p.margin)
    own, best_effort = tier_of(record, known.tiers), known.tiers.shape[0] - 2
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], record) or would_take(snapshots[e], record):
            look_at(context, e, assumed)
    # Requests that wait for a prefill engine go behind those that wait for a decode engine, as the latter have KV on a
    # prefill engine. The router is asked again about both.
    route.held_queue = best_effort if fleet.prefills else own
    if not can_be_in_time(context, record, assumed):
        route.held_queue = best_effort
        route.engine = engine_for_best_effort(context, request, fleet, assumed)
    else:
        asked = asked_of(context, record, own, assumed)
        route.engine = fullest(context, request, own, True, asked, assumed)  # lazy promotion
        if route.engine == HOLD:  # the tier grows
            if fleet.pending:
                route.engine = fullest_pending(context, request, asked, assumed)
            if route.engine == HOLD and fleet.of_pool:
                route.engine = emptiest_of_pool(record, snapshots)
            if route.engine != HOLD:
                route.tier = own
    if route.engine == HOLD and none_is_busy(context.now_s, snapshots):
        route.engine = with_fewest_requests(record, snapshots)
    e = route.engine
    if e != HOLD:
        emptied = snapshots[e].tier == POOL and route.tier == own
        tier = snapshots[e].tier
        if route.tier == own or tier == POOL or snapshots[e].role == ROLE_PREFILL:
            tier = own
        keep_forecast(context, record, e, iteration_limit_s(known.tiers, tier, assumed), emptied, assumed)


register(
    Policy(
        "polyserve",
        "router",
        "The fullest engine of the request's TPOT tier that still keeps it in time; then tighter tiers, a pending one, "
        "the pool.",
        "PolyServe, section 4",
        polyserve,
        state=StateFields(engine=FIELDS),
        moves_engines=True,
        parameters=P,
        scratch=SCRATCH,
    )
)  # fmt: skip
