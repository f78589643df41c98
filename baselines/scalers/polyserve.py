"""PolyServe's scaler (sections 4.3 and 4.4): the last engine of a tier returns to the pool when it is empty.

An engine without a request of its own tier is pending, and may join the tier of the requests that it has. If engines
take time to start, one at a time is started for each tier in which requests wait.

The steps are those of "Rule, exactly" in docs/systems/polyserve.md.
"""

from servegym.policy import (
    POOL,
    ROLE_DECODE,
    ROLE_PREFILL,
    Parameter,
    Parameters,
    Policy,
    kernel,
    register,
    scaler,
    tier_of,
)


@kernel
def tightest_tier(context, e):
    """Return the tightest tier among the requests on engine e."""
    requests, known = context.requests, context.known
    snapshot, tightest = known.snapshots[e], known.tiers.shape[0]
    for k in range(snapshot.decodes):
        tightest = min(tightest, tier_of(requests[known.decoding[e, k]], known.tiers))
    for k in range(snapshot.prefills):
        tightest = min(tightest, tier_of(requests[known.prefilling[e, k]], known.tiers))
    return tightest


@kernel
def own_requests(context, e):
    """Return the number of requests of its own tier on engine e."""
    requests, known = context.requests, context.known
    snapshot, own = known.snapshots[e], 0
    for k in range(snapshot.decodes):
        own += tier_of(requests[known.decoding[e, k]], known.tiers) == snapshot.tier
    for k in range(snapshot.prefills):
        own += tier_of(requests[known.prefilling[e, k]], known.tiers) == snapshot.tier
    return own


@kernel
def last_of(tier, role, snapshots, moves):
    """Return the open engine of a tier and role with the fewest requests; ties: the highest index; -1: none.

    A starting engine does not count, as it would return to the pool before it had served.
    Prefill engines have no tiers: all in use count as tier 0.
    """
    last = -1
    for e in range(snapshots.shape[0]):
        snapshot = snapshots[e]
        if snapshot.role != role or snapshot.tier == POOL or moves[e].closed == 1 or snapshot.off == 1:
            continue
        of_tier = (0 if role == ROLE_PREFILL else snapshot.tier) == tier
        if of_tier and (last < 0 or snapshot.requests <= snapshots[last].requests):
            last = e
    return last


@kernel
def tier_of_queue(queue, tiers):
    """Return the tier that serves a held queue; the last tier serves best effort."""
    return min(queue, tiers.shape[0] - 3)


@kernel
def is_awaited(context, e):
    """Return whether held requests need engine e, which is empty; a prefill engine may have their KV."""
    snapshot, tiers, requests = context.known.snapshots[e], context.known.tiers, context.requests
    for queue in range(tiers.shape[0] - 1):
        if tiers[queue].waiting == 0:
            continue
        if snapshot.role == ROLE_PREFILL:
            return True
        decodes = requests[tiers[queue].first].computed_tokens > 0
        if tier_of_queue(queue, tiers) == snapshot.tier and decodes == (snapshot.role == ROLE_DECODE):
            return True
    return False


@kernel
def next_to_start(context, moves, tier, decodes):
    """Return the first engine that is off and could serve a tier's held requests; -1: none, or one is starting."""
    snapshots, found = context.known.snapshots, -1
    for e in range(snapshots.shape[0]):
        if snapshots[e].off == 0 or snapshots[e].up == 0 or (snapshots[e].role == ROLE_DECODE) != decodes:
            continue
        if moves[e].tier != POOL and (moves[e].tier == tier or snapshots[e].role == ROLE_PREFILL):
            return -1
        if found < 0 and moves[e].tier == POOL and snapshots[e].tier == POOL:
            found = e
    return found


@kernel
def start_for_waiting(context, moves):
    """Start an engine for each tier in which requests wait."""
    tiers = context.known.tiers
    for queue in range(tiers.shape[0] - 1):
        if tiers[queue].waiting > 0:
            tier = tier_of_queue(queue, tiers)
            e = next_to_start(context, moves, tier, context.requests[tiers[queue].first].computed_tokens > 0)
            if e >= 0:
                moves[e].tier, moves[e].closed = tier, 0


@scaler
def polyserve(context, moves):
    snapshots, tiers = context.known.snapshots, context.known.tiers
    for e in range(snapshots.shape[0]):  # the pending ones
        if moves[e].closed == 0:
            continue
        if snapshots[e].requests == 0:
            moves[e].tier, moves[e].closed = POOL, 0
            continue
        other = tightest_tier(context, e)
        if tiers[other].waiting > 0:
            moves[e].tier, moves[e].closed = other, 0
        elif tiers[snapshots[e].tier].waiting > 0:
            moves[e].closed = 0
    for tier in range(tiers.shape[0] - 2):
        for role in range(3):
            e = last_of(tier, role, snapshots, moves)
            if e < 0 or moves[e].tier != snapshots[e].tier:
                continue
            if snapshots[e].requests == 0:
                if not is_awaited(context, e):
                    moves[e].tier = POOL
            elif role != ROLE_PREFILL and tiers[tier].waiting == 0 and own_requests(context, e) == 0:
                moves[e].closed = 1
    start_for_waiting(context, moves)


register(
    Policy(
        "polyserve",
        "scaler",
        "A tier's last engine returns to the pool when it is empty; without requests of its own tier it takes no more, "
        "and may join the tier of its requests.",
        "PolyServe, sections 4.3 and 4.4",
        polyserve,
        parameters=Parameters(Parameter("interval_s", 1.0, "time between two checks", 1e-3, 3600, "s", log=True)),
    )
)
