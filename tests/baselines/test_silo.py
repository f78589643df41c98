"""Own engines per class on paper: docs/systems/routers.md."""

import numpy as np
import pytest

from servegym.baselines.registry import router, scheduler
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.simulation import Simulation
from tests.baselines.router_cases import asked, engine, waits
from tests.simulator.forming import linear
from tests.simulator.scenes import requests

BOUNDS = "silo:bound_1_s=0.05,bound_2_s=0.1,bound_3_s=600"
INF = float("inf")


def wants(tpot_slo_s: float) -> dict:
    return waits(1, tpot_slo_s=tpot_slo_s)


def served(routing: str, *pool_sizes: int, roles: tuple[str, ...] = (), **columns: list[float]) -> list[int]:
    """The engine at which each request ends. One request a second; each takes half a second."""
    n = len(next(iter(columns.values())))
    workload = requests(
        arrival_s=np.arange(float(n)), prompt_tokens=np.ones(n, "i4"), output_tokens=np.ones(n, "i4"),
        **{name: np.array(values) for name, values in columns.items()},
    )  # fmt: skip
    model = linear(c_p=0.5, b_d=0.5)
    pools = [
        Deployment(model, model, 100, size, role=role)
        for size, role in zip(pool_sizes, roles or ("both",) * len(pool_sizes), strict=True)
    ]
    scenario = Scenario(workload, Cluster(tuple(pools)), scheduler("edf"), Gain(), router=router(routing))
    return Simulation(scenario).run().arrays.requests["engine"].tolist()


@pytest.mark.nojit
def test_the_tightest_have_the_first_pool():
    pools = [engine(pool=kind) for kind in range(3)]
    for tpot_slo_s, mine in {0.02: 0, 0.05: 0, 0.051: 1, 0.1: 1, 0.2: 2, 700.0: 2}.items():
        assert asked(BOUNDS, wants(tpot_slo_s), *pools) == mine
    assert asked(BOUNDS, wants(700.0), *pools, engine(pool=3)) == 3


@pytest.mark.nojit
def test_with_fewer_pools_than_classes_the_last_has_the_rest():
    pools = [engine(pool=0), engine(pool=1)]
    assert [asked(BOUNDS, wants(tpot_slo_s), *pools) for tpot_slo_s in (0.05, 0.1, 0.2)] == [0, 1, 1]
    assert asked(BOUNDS, wants(0.2), engine()) == 0


@pytest.mark.nojit
def test_within_a_pool_in_turn_whatever_the_load():
    pools = [engine(pool=0), engine(*[waits(9)] * 5, pool=1), engine(pool=1), engine(pool=2)]
    assert asked(BOUNDS, wants(0.1), *pools) == 1
    assert asked(BOUNDS, wants(0.1), *pools, sent=(1.0, 3.0, 2.0)) == 2
    assert asked(BOUNDS, wants(0.1), *pools, sent=(1.0, 2.0, 3.0)) == 1
    assert asked(BOUNDS, wants(0.05), *pools, sent=(9.0, 0.0, 0.0)) == 0


@pytest.mark.nojit
def test_pools_count_among_those_that_take_the_request():
    roles = [engine(role=role, pool=kind) for kind, role in enumerate(("decode", "prefill", "decode", "prefill"))]
    assert [asked(BOUNDS, wants(tpot_slo_s), *roles) for tpot_slo_s in (0.05, 0.1)] == [1, 3]
    assert [asked(BOUNDS, wants(tpot_slo_s), *roles, emitted=1) for tpot_slo_s in (0.05, 0.1, 0.2)] == [0, 2, 2]


def test_an_interactive_class_and_two_with_a_ttlt():
    # Default bounds: the smallest TPOT SLO, 600 s and 1800 s. Engines 0 and 1 are the first pool's, 2 and 3 the last's.
    ttlt_slo_s = [INF, 600, INF, 1800, 1800, INF, 600, 1800]
    assert served("silo", 2, 1, 2, ttlt_slo_s=ttlt_slo_s, tpot_slo_s=[0.05] * 8) == [0, 2, 1, 3, 4, 0, 2, 3]


def test_a_ttlt_is_looser_than_any_tpot_slo():
    # The TPOT SLO of a request with a TTLT says nothing.
    assert served("silo", 1, 1, ttlt_slo_s=[INF, 600, INF], tpot_slo_s=[0.05, 0.05, 0.1]) == [0, 1, 1]
