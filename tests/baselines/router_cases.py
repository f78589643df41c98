"""One routing decision from engines written by hand: what the cases worked on paper are stated in."""

from typing import Any

import numpy as np

from servegym.baselines.registry import router, scheduler
from servegym.latency_models.model import LatencyModel
from servegym.simulator.cluster import Cluster
from servegym.simulator.deployment import Deployment
from servegym.simulator.gains import Gain
from servegym.simulator.scenario import Scenario
from servegym.simulator.simulation import Simulation
from servegym.simulator.types import ENGINE_SNAPSHOT, HOLD, STAY
from tests.simulator.forming import linear
from tests.simulator.scenes import requests

A_TOKEN_A_SECOND = linear(c_p=1, b_d=1)  # no constant part, unless a case says so


def waits(prompt_tokens: int, **more: Any) -> dict:
    """A request without a token; deadlines are far off unless it says otherwise."""
    return {"prompt_tokens": prompt_tokens, "ttft_slo_s": 1000.0, "tpot_slo_s": 1000.0, "weight": 1.0, **more}


def engine(*record: dict, role: str = "both", model: LatencyModel = A_TOKEN_A_SECOND, **snapshot: Any) -> dict:
    """An engine as a router knows it: its queue record, and fields of its snapshot."""
    return {"record": record, "role": role, "model": model, "snapshot": snapshot}


def asked(text: str, request: dict, *engines: dict, now_s: float = 0.0, emitted: int = 0, sent: tuple = ()) -> int:
    """The engine that a router names. sent: when each engine was sent a request last, as numbers; 0: never."""
    rows = [*(row for one in engines for row in one["record"]), request]
    columns = {field: [row.get(field, 0.0) for row in rows] for field in (*waits(1), "arrival_s")}
    order = np.argsort(columns["arrival_s"], kind="stable")  # a workload is in order of arrival
    workload = requests(**{field: np.array(values)[order] for field, values in columns.items()})
    place = np.argsort(order)
    pools = [
        Deployment(one["model"], one["model"], 5000, block_tokens=1, watermark=0.0, role=one["role"])
        for one in engines
    ]  # fmt: skip
    # Of a cluster there are pools of both roles or of neither; these are never looked at.
    roles = {pool.role for pool in pools}
    if roles & {"prefill", "decode"}:
        missing = {"prefill", "decode"} - roles
        pools += [Deployment(A_TOKEN_A_SECOND, A_TOKEN_A_SECOND, 5000, block_tokens=1, role=role) for role in missing]
    scenario = Scenario(
        workload, Cluster(tuple(pools)), scheduler("edf"), Gain(first_weight=1.0), router=router(text)
    )  # fmt: skip
    simulation = Simulation(scenario)
    router_state, run, r = simulation.router_state, simulation.arrays, int(place[-1])
    run.requests[r].emitted_tokens = emitted
    run.requests[r].computed_tokens = request["prompt_tokens"] if emitted else 0  # its KV is on a prefill engine
    prefilling = np.zeros((len(pools), len(rows) + 1), "i4")
    nth = 0
    for e, one in enumerate(engines):
        for k, row in enumerate(one["record"]):
            prefilling[e, k] = place[nth]
            router_state.known.snapshots[e].prefills += 1
            router_state.known.snapshots[e].prefill_tokens += row["prompt_tokens"]
            router_state.known.snapshots[e].requests += 1
            nth += 1
        for field, value in one["snapshot"].items():
            assert field in ENGINE_SNAPSHOT.names
            router_state.known.snapshots[e][field] = value
    if sent:
        router_state.state[: len(sent), 0] = sent
    route = router_state.route[0]  # as `route_request` has it beforehand
    route.engine, route.decode_engine, route.tier, route.held_queue = HOLD, -1, STAY, 0
    policy = simulation.settings.router
    context = simulation.router_context(now_s)._replace(
        known=router_state.known._replace(prefilling=prefilling),
        scratch=np.zeros((policy.scratch.rows, len(rows) + 1)),
    )
    policy.function.entry(context, r, route)
    return int(router_state.route[0].engine)
