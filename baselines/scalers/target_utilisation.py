"""The usual autoscaler: it keeps the requests per engine at a target, and scales down only after a while.

The steps are those of "Rule, exactly" in docs/systems/target_utilisation.md. Each role is scaled on its own.
"""

import numpy as np

from servegym.policy import (
    POOL,
    ROLE_DECODE,
    ROLE_PREFILL,
    Parameter,
    Parameters,
    Policy,
    StateFields,
    kernel,
    register,
    scaler,
)

HPA, KNATIVE = "Kubernetes, Horizontal Pod Autoscaler", "Knative Serving, config-autoscaler"
WANTED_S = 0  # in row k of a role: the last time that more than k of its engines were wanted
P = Parameters(
    Parameter("interval_s", 15.0, "between two checks", 1e-3, 3600, "s", log=True, source=f"{HPA}: sync period"),
    Parameter(
        "most_requests", 100.0, "requests an engine is to have at most", 1, 2**20, log=True,
        source=f"{KNATIVE}: container-concurrency-target-default",
    ),
    Parameter(
        "utilisation", 0.7, "share of them to aim at", 0.01, 1,
        source=f"{KNATIVE}: container-concurrency-target-percentage",
    ),
    Parameter("tolerance", 0.1, "how far off the target nothing is done", 0, 1, source=f"{HPA}: tolerance"),
    Parameter(
        "window_s", 300.0, "for how long an engine that was wanted stays", 0, 86400, "s",
        source=f"{HPA}: downscale stabilisation",
    ),
    Parameter("least_engines", 0, "of a role, in use", 0, 4096, integer=True, source=f"{KNATIVE}: min-scale"),
    Parameter("most_engines", 4096, "of a role, in use", 1, 4096, integer=True),
)  # fmt: skip


@kernel
def is_in_use(snapshot, move):
    """In a tier, up and open; it may still be loading."""
    return snapshot.up == 1 and move.tier != POOL and move.closed == 0 and (snapshot.closed == 0 or snapshot.off == 1)


@kernel
def requests_in_use(context, moves, role):
    """Requests at the engines of a role that are in use."""
    snapshots, total = context.known.snapshots, 0
    for e in range(snapshots.shape[0]):
        if snapshots[e].role == role and is_in_use(snapshots[e], moves[e]):
            total += snapshots[e].requests
    return total


@kernel
def held_requests(context):
    tiers, total = context.known.tiers, 0
    for queue in range(tiers.shape[0] - 1):
        total += tiers[queue].waiting
    return total


@kernel
def wanted(context, moves, role, current):
    """Number of engines of a role that its requests call for."""
    p = P.read(context)
    total = held_requests(context) + requests_in_use(context, moves, role)
    if role == ROLE_DECODE:
        total += requests_in_use(context, moves, ROLE_PREFILL)
    ratio = total / (p.most_requests * p.utilisation)
    count = current if abs(ratio - current) <= p.tolerance * current else int(np.ceil(ratio))
    return min(max(count, p.least_engines), p.most_engines)


@kernel
def wanted_lately(context, role, count):
    """The most engines of a role that were wanted within the window. count: wanted now."""
    p, snapshots, most, k = P.read(context), context.known.snapshots, count, 0
    for e in range(snapshots.shape[0]):
        if snapshots[e].role != role:
            continue
        if k < count:
            context.state[e, WANTED_S] = context.now_s
        elif context.now_s - context.state[e, WANTED_S] <= p.window_s:
            most = k + 1
        k += 1
    return most


@kernel
def start_first(context, moves, role, from_pool):
    """Open the first engine of a role that is closed in its tier, or start the first of the pool. False: none."""
    snapshots = context.known.snapshots
    for e in range(snapshots.shape[0]):
        snapshot, in_pool = snapshots[e], moves[e].tier == POOL
        if snapshot.role != role or snapshot.up == 0 or in_pool != from_pool:
            continue
        if in_pool:
            moves[e].tier, moves[e].closed = 0, 0
            return True
        if moves[e].closed == 1 and (snapshot.pending == 1 or snapshot.off == 1):
            moves[e].closed = 0
            return True
    return False


@kernel
def close_least(context, moves, role):
    """Close the engine in use with the fewest requests; ties: the last."""
    snapshots, least = context.known.snapshots, -1
    for e in range(snapshots.shape[0]):
        if snapshots[e].role != role or not is_in_use(snapshots[e], moves[e]):
            continue
        if least < 0 or snapshots[e].requests <= snapshots[least].requests:
            least = e
    moves[least].closed = 1


@scaler
def target_utilisation(context, moves):
    snapshots = context.known.snapshots
    for role in range(3):
        current = 0
        for e in range(snapshots.shape[0]):
            current += snapshots[e].role == role and is_in_use(snapshots[e], moves[e])
        count = wanted(context, moves, role, current)
        lately = wanted_lately(context, role, count)
        for _ in range(current, count):
            if not start_first(context, moves, role, False) and not start_first(context, moves, role, True):
                break
        for _ in range(lately, current):
            close_least(context, moves, role)
    for e in range(snapshots.shape[0]):
        if moves[e].tier == POOL:
            moves[e].closed = 1
        elif moves[e].closed == 1 and snapshots[e].requests == 0:
            moves[e].tier = POOL


register(
    Policy(
        "target-utilisation",
        "scaler",
        "As many engines as bring the requests of each to a target; fewer only when fewer were wanted for a while.",
        f"{HPA}; {KNATIVE}",
        target_utilisation,
        parameters=P,
        state=StateFields(engine=("wanted_s",)),
    )
)
