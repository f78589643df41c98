"""Silos: each class of requests has a pool of its own."""

import numpy as np

from servegym.baselines.routers.ties import FIELDS, MEASURE, send_to_least
from servegym.policy import Fact, Parameter, Parameters, Policy, StateFields, kernel, register, router, takes


def bound(number: int, default: float | Fact, source: str) -> Parameter:
    return Parameter(
        f"bound_{number}_s", default, f"largest TPOT SLO (or TTLT SLO) of the class of pool {number}", 0, 1e9, "s",
        source=source,
    )  # fmt: skip


P = Parameters(
    bound(1, Fact("min_tpot_slo_s"), "ours: the strictest class alone"),
    bound(2, 600.0, "QoServe, Table 3"),
    bound(3, 1800.0, "QoServe, Table 3"),
)


@kernel
def class_of(record, p):
    """Return the class of a request: the number of bounds below its TPOT SLO, or below its TTLT SLO if it has one."""
    asked_s = record.tpot_slo_s if np.isinf(record.ttlt_slo_s) else record.ttlt_slo_s
    return int(p.bound_1_s < asked_s) + int(p.bound_2_s < asked_s) + int(p.bound_3_s < asked_s)


@kernel
def write_pools(snapshots, record, state):
    """Write the index of its pool to MEASURE of each engine that takes the request; return the number of pools."""
    pools, latest = 0, -1
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], record):
            if snapshots[e].pool != latest:
                pools, latest = pools + 1, snapshots[e].pool
            state[e, MEASURE] = pools - 1
    return pools


@router
def silo(context, request, route):
    snapshots, state, record = context.known.snapshots, context.state, context.requests[request]
    chosen = min(class_of(record, P.read(context)), write_pools(snapshots, record, state) - 1)
    for e in range(snapshots.shape[0]):  # ties: the engine that was sent a request longest ago
        state[e, MEASURE] = 0.0 if state[e, MEASURE] == chosen else 1.0
    send_to_least(context, request, route)


register(
    Policy(
        "silo",
        "router",
        "Separate engines per class: the tightest SLOs use the first pool, the next the second; round robin in a pool.",
        "QoServe, section 4 (Sarathi-Silo)",
        silo,
        state=StateFields(engine=FIELDS),
        parameters=P,
    )
)
