"""Fleets that engines fail in, with routers and scalers by hand."""

from typing import Any

from servegym.baselines.registry import router, scheduler
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.fleet.routing import nth_taker
from servegym.simulator.inputs.cluster import Cluster, Link
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Parameter, Policy
from servegym.simulator.records.signatures import router as router_function
from servegym.simulator.records.signatures import scaler as scaler_function
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.replay import replay
from tests.simulator.test_cluster_transfers import LINK

INCIDENTS = ("failed", "returned", "drained", "recalled", "held", "moved")


def fail(time_s: float, engine: int = 0) -> Incident:
    return Incident(time_s, engine, "fail")


def back(time_s: float, engine: int = 0) -> Incident:
    return Incident(time_s, engine, "return")


def drain(time_s: float, engine: int = 0) -> Incident:
    return Incident(time_s, engine, "drain")


def run(workload, *pools: Deployment, link: Link = LINK, routing: Policy | str | None = None, delay_s: float = 0.0,
        all_served: bool = True, tiers: tuple[float, ...] | None = None, **more: Any) -> Simulation:  # fmt: skip
    policy = router(routing) if isinstance(routing, str) else routing
    cluster = Cluster(pools, link, delay_s, tiers=tiers)
    scenario = Scenario(workload, cluster, scheduler("vllm-v1"), Gain(first_weight=1.0), router=policy, **more)
    simulation = Simulation(scenario, record_timeline=True)
    simulation.run()
    assert all(replay(simulation).finished) == all_served
    return simulation


def at_engines(simulation: Simulation, *fields: str) -> list[tuple]:
    """Fields of each engine, or of its totals."""
    own = simulation.arrays.engines.dtype.names or ()
    return [
        tuple(int(engine[field] if field in own else engine["totals"][field]) for field in fields)
        for engine in simulation.arrays.engines
    ]


@router_function
def first(context, request, route):
    requests, known = context.requests, context.known
    route.engine = nth_taker(0, known.snapshots, requests[request])


@scaler_function
def to_tier(context, moves):
    now_s, parameters = context.now_s, context.parameters
    moves[0].tier = int(parameters[1])
    moves[1].closed = now_s < parameters[2]


def made_up(function: Any, kind: str = "router", *parameters: Parameter, **more: Any) -> Policy:
    return Policy(function.py_func.__name__, kind, "", "", function, parameters=parameters, **more)


FIRST = made_up(first)


def scaler(tier: int, opens_s: float = 0.0, interval_s: float = 2.0) -> Policy:
    names = {"interval_s": interval_s, "tier": tier, "opens_s": opens_s}
    return made_up(to_tier, "scaler", *(Parameter(name, value, "") for name, value in names.items()))
