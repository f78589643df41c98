"""The time of day and the engines that the base wants, as a scaler sees them."""

import dataclasses

import numpy as np
import pytest

from servegym.baselines.registry import router, scaler, scheduler
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.statuses import AT_CHECKS, DECISION
from servegym.simulator.runs.simulation import Simulation
from tests.baselines.observations.seeing import of_day, of_tiers
from tests.simulator.forming import linear
from tests.simulator.scenes import requests

pytestmark = pytest.mark.nojit

WANTED = 6  # among the numbers of forecast's state; the next is the time of day


def cluster() -> Simulation:
    """Four engines, one tier; a request each second; a day of 8 s, checked each second."""
    model = linear(c_p=0.25, b_d=0.25)
    workload = requests(
        prompt_tokens=2, output_tokens=2, tpot_slo_s=1.0, ttft_slo_s=4.0, arrival_s=np.arange(0.5, 16.0)
    )
    pool = Deployment(model, model, 100, 4, block_tokens=1, watermark=0.0)
    policy = scaler("forecast:interval_s=1,day_s=8,bins=8,ahead_s=0,engine_rate=0.4,window_s=1,drain_s=1000,slack=0")
    return Simulation(
        Scenario(workload, Cluster((pool,), tiers=(1.0,)), scheduler("edf"), router=router("min-load"), scaler=policy)
    )


def test_engines_are_ranked_behind_those_that_are_open():
    simulation = cluster()
    moves = simulation.router_state.moves
    moves["tier"], moves["closed"] = [0, -1, 0, 0], [1, 1, 0, 0]
    simulation.router_state.scaler_state[0, WANTED] = 2.5
    got = of_day(simulation, 0.0, WANTED, 4)
    assert [got[f"engine[{e}].rank"] for e in range(4)] == [0.5, 0.75, 0.0, 0.25]
    assert [got[f"engine[{e}].need"] for e in range(4)] == pytest.approx([0.5 / 1.5, -0.5 / 1.5, 2.5 / 3.5, 1.5 / 2.5])
    shown = of_tiers(simulation, 0.0, 4)
    assert {name: got[name] for name in shown} == shown


def test_the_base_says_how_many_it_wants_and_when_it_is():
    simulation, seen = cluster(), []
    while simulation._advance(AT_CHECKS) == DECISION:
        now_s = float(simulation.arrays.status[0].now_s)
        got = of_day(simulation, now_s, WANTED, 4)
        angle = 2 * np.pi * (now_s % 8) / 8
        assert (got["cluster.day_sine"], got["cluster.day_cosine"]) == pytest.approx(
            (np.sin(angle), np.cos(angle)), abs=1e-6
        )
        seen.append(simulation.router_state.scaler_state[0, WANTED])
    assert len(seen) > 12
    assert seen[3] == pytest.approx((1 + 0.001) / 0.4, abs=0.01)  # one request a second, one waiting for 1,000 s


def test_a_base_that_says_nothing():
    simulation = cluster()
    simulation = Simulation(dataclasses.replace(simulation.scenario, scaler=scaler("polyserve")))
    got = of_day(simulation, 3.0, -1, 4)
    assert got["cluster.day_sine"] == got["cluster.day_cosine"] == 0
    assert [got[f"engine[{e}].need"] for e in range(4)] == [0] * 4
