"""PolyServe's scaler by hand, and its three policies together."""

import dataclasses

import numpy as np
import pytest

from servegym.baselines.registry import router, scaler, scheduler
from servegym.latency_models.profile import load_profile
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.types import MOVED, POOL
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.workloads import build_workload
from tests.baselines.polyserve_cases import decoding, engine, request, scaled
from tests.simulator.whole_runs import finished

OPEN, CLOSED = 0, 1
TIGHT, LOOSE = decoding(1, 20, 5, tpot_s=3.0), decoding(1, 20, 5, tpot_s=6.0)


@pytest.mark.nojit
def test_only_the_last_engine_goes():
    engines = [engine(1, LOOSE * 2), engine(1), engine(1), engine(0, TIGHT)]
    assert scaled(*engines) == [(1, OPEN), (1, OPEN), (POOL, OPEN), (0, OPEN)]  # one a tier and check


@pytest.mark.nojit
def test_without_own_requests_it_is_pending():
    assert scaled(engine(0, TIGHT * 2), engine(0, LOOSE)) == [(0, OPEN), (0, CLOSED)]
    assert scaled(engine(0, TIGHT * 2), engine(0, record=LOOSE)) == [(0, OPEN), (0, CLOSED)]
    assert scaled(engine(0, TIGHT * 3), engine(0, LOOSE + TIGHT)) == [(0, OPEN), (0, OPEN)]
    assert scaled(engine(0, TIGHT), engine(0, LOOSE * 2)) == [(0, OPEN), (0, OPEN)]  # it is not the last
    assert scaled(engine(0, LOOSE), waiting=(1, 0)) == [(0, OPEN)]  # its tier needs it


@pytest.mark.nojit
def test_pending_engines():
    loose = engine(0, LOOSE * 2, closed=1)
    assert scaled(loose) == [(0, CLOSED)]
    assert scaled(loose, waiting=(0, 1)) == [(1, OPEN)]
    assert scaled(loose, waiting=(1, 0)) == [(0, OPEN)]
    assert scaled(loose, waiting=(1, 1)) == [(1, OPEN)]
    assert scaled(engine(0, closed=1), waiting=(1, 1)) == [(POOL, OPEN)]
    # Two tiers on it: it may join the first of them only.
    assert scaled(engine(0, LOOSE + TIGHT, closed=1), waiting=(0, 1)) == [(0, CLOSED)]


@pytest.mark.nojit
def test_an_empty_engine_stays_where_requests_wait_for_it():
    assert scaled(engine(0), waiting=(1, 0)) == [(0, OPEN)]
    assert scaled(engine(0), waiting=(0, 1)) == [(POOL, OPEN)]  # of the other tier
    assert scaled(engine(1), waiting=(0, 0, 1)) == [(1, OPEN)]  # best effort counts as of the last tier
    assert scaled(engine(0), waiting=(0, 0, 1)) == [(POOL, OPEN)]
    prefill, decode = engine(0, role="prefill"), engine(0, role="decode")
    assert scaled(prefill, decode, waiting=(0, 1)) == [(0, OPEN), (POOL, OPEN)]
    assert scaled(prefill, decode, waiting=(1, 0)) == [(0, OPEN), (POOL, OPEN)]  # nothing is computed of it
    assert scaled(prefill, decode, waiting=(0, 0)) == [(POOL, OPEN), (POOL, OPEN)]


@pytest.mark.nojit
def test_roles_apart():
    engines = [engine(0, role="prefill"), engine(1, record=[request(9)], role="prefill"), engine(1, role="decode")]
    assert scaled(*engines) == [(POOL, OPEN), (1, OPEN), (POOL, OPEN)]


def served(load_per_s: float, deployment: Deployment, count: int = 400, with_scaler: bool = True) -> Simulation:
    profile = load_profile("h200-llama3-8b")
    workload = build_workload(
        "uniform-512-512", requests=count, rate_per_s=load_per_s, slo=f"polyserve:idle_tpot_s={profile.idle_tpot_s!r}",
        seed=11,
    )  # fmt: skip
    scenario = Scenario(
        workload, Cluster((deployment,)), scheduler("polyserve"), router=router("polyserve"),
        scaler=scaler("polyserve:interval_s=0.25") if with_scaler else None,
    )  # fmt: skip
    return finished(scenario)


def test_few_engines_serve_a_light_load_and_return():
    deployment = load_profile("h200-llama3-8b").deployment(8)
    simulation = served(20.0, deployment)
    result = simulation.result()
    lines = simulation.arrays.timeline[: simulation.arrays.status[0].timeline_used]
    moved = lines[lines["kind"] == MOVED]
    assert set(moved["engine"]) <= {0, 1, 2, 3}  # one a tier at most
    assert (moved["tokens"] == POOL).any()
    assert result.summary["slo_attainment"] == 1.0
    without = served(20.0, deployment, with_scaler=False)
    assert result.summary["cost_engine_s"] < 0.5 * without.result().summary["cost_engine_s"]


def test_every_request_is_served_where_nothing_is_in_time():
    # Engines ten times as slow as any TPOT wants.
    slow = load_profile("a100-llama3-70b-tp4").deployment(2)
    simulation = served(50.0, dataclasses.replace(slow, total_blocks=400), count=60)
    assert np.isfinite(simulation.arrays.outcomes["finish_s"]).all()
