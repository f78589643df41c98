"""Silos: each class of requests has the engines of a pool to itself."""

import numpy as np

from servegym.baselines.routers.ties import FIELDS, MEASURE, send_to_least
from servegym.simulator.compilation import kernel
from servegym.simulator.policies import Fact, Parameter, Policy, StateFields, register
from servegym.simulator.routing import takes
from servegym.simulator.signatures import router

BOUNDS = 3  # one fewer than a cluster may have pools


@kernel
def class_of(request, bounds):
    """How many of the bounds lie below what the request asks for: its TPOT SLO, or its TTLT SLO if it has one."""
    asked_s = request.tpot_slo_s if np.isinf(request.ttlt_slo_s) else request.ttlt_slo_s
    below = 0
    for k in range(BOUNDS):
        below += bounds[k] < asked_s
    return below


@kernel
def write_pools(views, request, state):
    """Write for each engine that takes the request the place of its pool among theirs; returns how many there are."""
    pools, latest = 0, -1
    for e in range(views.shape[0]):
        if takes(views[e], request):
            if views[e].kind != latest:
                pools, latest = pools + 1, views[e].kind
            state[e, MEASURE] = pools - 1
    return pools


@router
def silo(now_s, r, requests, known, state, parameters, estimates, plan, order, route):
    views = known.views
    request = requests[r]
    chosen = min(class_of(request, parameters), write_pools(views, request, state) - 1)
    for e in range(views.shape[0]):  # within the pool in turn: who was sent a request longest ago
        state[e, MEASURE] = 0.0 if state[e, MEASURE] == chosen else 1.0
    send_to_least(views, request, state, route)


def bound(number: int, default: float | Fact, source: str) -> Parameter:
    return Parameter(
        f"bound_{number}_s", default, f"largest TPOT SLO (or TTLT SLO) of the class of pool {number}", 0, 1e9, "s",
        source=source,
    )  # fmt: skip


register(
    Policy(
        "silo",
        "router",
        "Own engines per class: the tightest SLOs have the first pool, the next the second; within a pool in turn.",
        "QoServe, section 4 (Sarathi-Silo)",
        silo,
        state=StateFields(engine=FIELDS),
        parameters=(
            bound(1, Fact("min_tpot_slo_s"), "ours: the strictest class alone"),
            bound(2, 600.0, "QoServe, Table 3"),
            bound(3, 1800.0, "QoServe, Table 3"),
        ),
    )
)
