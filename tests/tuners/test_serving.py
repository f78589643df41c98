"""What a training counts a run as."""

import pytest

from servegym.baselines.registry import scheduler
from servegym.errors import StalledError
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.gains import Gain
from servegym.simulator.records.types import LATEST_S, POOL
from servegym.simulator.runs.simulation import Simulation
from servegym.tuners.objective import Objective
from servegym.tuners.serving import Outcome, outcome_of, tdg_ratio
from tests.simulator.fleets import FIRST, fail, scaler
from tests.simulator.scenes import requests
from tests.simulator.test_cluster_transfers import pool


def scenario(until_s: float) -> Scenario:
    """Engine 0 serves the first request and fails at 2.5 s; engine 1 is closed by the scaler at 2 s, for good."""
    workload = requests(arrival_s=[0.0, 3.0], prompt_tokens=1, output_tokens=1, ttft_slo_s=4.0)
    return Scenario(
        workload, Cluster((pool("both", 2),)), scheduler("vllm-v1"), Gain(), until_s,
        router=FIRST, scaler=scaler(POOL, until_s), incidents=(fail(2.5),),
    )  # fmt: skip


def test_a_run_brought_to_a_standstill_counts_as_if_nothing_had_been_served() -> None:
    stalled = scenario(until_s=1000.0)
    with pytest.raises(StalledError, match="has opened no engine that takes them"):
        Simulation(stalled).run()
    assert tdg_ratio(stalled) == 0.0
    assert outcome_of([stalled], 0) == Outcome(0.0, 0.0, LATEST_S, 2.0)
    asked = Objective(attainment=1.0, cost=0.5)
    assert asked.beside_gain(outcome_of([stalled], 0)._asdict()) == pytest.approx(-1.0)


def test_a_run_that_ends_counts_as_its_figures() -> None:
    ended = scenario(until_s=2.75)
    assert outcome_of([ended], 0) == Outcome(1.0, 1.0, 2.0, 0.0)  # both engines are in the pool, which costs nothing
    assert tdg_ratio(ended) == 1.0
