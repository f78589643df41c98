"""Kubernetes' and Knative's autoscaler: it keeps the requests per engine at a target, and scales down with a delay.

The steps are those of "Rule, exactly" in docs/systems/target_utilisation.md. Each role is scaled on its own.
"""

import numpy as np

from servegym.baselines.resizing import engines_in_use, held_requests, is_in_use, resize, return_to_pool
from servegym.policy import (
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
WANTED_S = 0  # in the k-th row of a role's engines: the last time that more than k of them were wanted
P = Parameters(
    Parameter("interval_s", 15.0, "time between two checks", 1e-3, 3600, "s", log=True, source=f"{HPA}: sync period"),
    Parameter(
        "most_requests", 100.0, "most requests that an engine should have", 1, 2**20, log=True,
        source=f"{KNATIVE}: container-concurrency-target-default",
    ),
    Parameter(
        "utilisation", 0.7, "share of most_requests to aim at", 0.01, 1,
        source=f"{KNATIVE}: container-concurrency-target-percentage",
    ),
    Parameter("tolerance", 0.1, "nothing is changed while the load is within this share of the target", 0, 1,
              source=f"{HPA}: tolerance"),
    Parameter(
        "window_s", 300.0, "how long an engine stays after it was last wanted", 0, 86400, "s",
        source=f"{HPA}: downscale stabilisation",
    ),
    Parameter("least_engines", 0, "fewest engines in use, of each role", 0, 4096, integer=True,
              source=f"{KNATIVE}: min-scale"),
    Parameter("most_engines", 4096, "most engines in use, of each role", 1, 4096, integer=True),
)  # fmt: skip


@kernel
def requests_in_use(context, moves, role):
    """Return the number of requests on the engines of a role that are in use."""
    snapshots, total = context.known.snapshots, 0
    for e in range(snapshots.shape[0]):
        if snapshots[e].role == role and is_in_use(snapshots[e], moves[e]):
            total += snapshots[e].requests
    return total


@kernel
def wanted(context, moves, role, current):
    """Return the number of engines of a role for its requests."""
    p = P.read(context)
    total = held_requests(context) + requests_in_use(context, moves, role)
    if role == ROLE_DECODE:
        total += requests_in_use(context, moves, ROLE_PREFILL)
    ratio = total / (p.most_requests * p.utilisation)
    count = current if abs(ratio - current) <= p.tolerance * current else int(np.ceil(ratio))
    return min(max(count, p.least_engines), p.most_engines)


@kernel
def wanted_lately(context, role, count):
    """Return the most engines of a role that were wanted within the window. count: wanted now."""
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


@scaler
def target_utilisation(context, moves):
    for role in range(3):
        count = wanted(context, moves, role, engines_in_use(context, moves, role))
        resize(context, moves, role, count, wanted_lately(context, role, count))
    return_to_pool(context, moves)


register(
    Policy(
        "target-utilisation",
        "scaler",
        "As many engines as bring the requests of each to a target; fewer only after a window in which fewer sufficed.",
        f"{HPA}; {KNATIVE}",
        target_utilisation,
        parameters=P,
        state=StateFields(engine=("wanted_s",)),
    )
)
