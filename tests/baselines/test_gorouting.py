"""GoRouting against min-load: ProServe's example of over-balancing (Fig. 8), worked on paper."""

import numpy as np
import pytest

from servegym.baselines.registry import router, scheduler
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear
from tests.simulator.scenes import requests

A_SECOND_A_TOKEN = linear(c_p=1, b_d=1)  # t_c = 0: EXEC is the sum of the prompts, less the time since the last change


def served(routing: str) -> Result:
    """Requests 0 to 2 load A (engine 0) with 6 + 4 s of prefill and B (engine 1) with 3 s; then R1 and R2 come."""
    workload = requests(
        arrival_s=np.array([0.0, 0.0, 0.0, 1.0, 3.5]),
        prompt_tokens=np.array([6, 3, 4, 4, 10]),
        ttft_slo_s=np.array([15.0, 9.0, 15.0, 17.0, 12.0]),  # deadlines 15, 9, 15, 18, 15.5
        output_tokens=np.ones(5, "i4"),
    )
    engines = Deployment(A_SECOND_A_TOKEN, A_SECOND_A_TOKEN, 1000, 2, block_tokens=1, watermark=0.0)
    one_at_a_time = scheduler("edf:batch_size=1")
    scenario = Scenario(
        workload, Cluster((engines,)), one_at_a_time, Gain(first_weight=1.0), router=router(routing)
    )  # fmt: skip
    return Simulation(scenario).run()


def where(result: Result) -> list[int]:
    return result.arrays.requests["engine"].tolist()


def test_min_load_balances_and_leaves_no_room_for_the_long_request():
    # Requests 0, 1, 2: A, B and, as both have one, the one that was sent a request longest ago: A. At 1 B has fewer, so
    # R1 goes there; at 3.5 request 1 is done and B has fewer still: R2. B: request 1 to 3, R1 to 7, R2 to 17: too late
    # for 15.5. On A it would have been too late too: requests 0 and 2, which are due before it, take until 10.
    result = served("min-load")
    assert where(result) == [0, 1, 0, 1, 1]
    assert result.arrays.outcomes["finish_s"].tolist() == [6, 3, 10, 7, 17]
    assert result.arrays.outcomes["gain"].tolist() == [1, 1, 1, 1, 0]


def test_gorouting_keeps_the_less_loaded_engine_for_the_long_request():
    # Request 0: both idle, the first. Request 1 on A: 6 + 3 = 9, not before its 9, no gain; on B 3: B. Request 2
    # gains 1 on both (10 on A, 7 on B, before 15, 15 and 9); EXEC(Q) 6 and 3, neither below 0.1 x 15, and with it
    # neither above 0.8 x 15: the fuller one, A. R1 at 1: on A 10 + 4 - 1 = 13, so at 14, before 15 and 18; on B 3 + 4
    # - 1 = 6, so at 7, before 9: both gain 1. EXEC(Q) 9 and 2, not below 1.7; with it 13 and 6, not above 13.6: the
    # fuller one, A. R2 at 3.5: on A 14 + 10 - 2.5: all there would be late. B is empty since 3: 10 - 0.5, at 13,
    # before 15.5: B. A: request 0 to 6, 2 to 10, R1 to 14 (due at 18). B: request 1 to 3, R2 from 3.5 to 13.5. All
    # are in time.
    result = served("gorouting")
    assert where(result) == [0, 1, 0, 0, 1]
    assert result.arrays.outcomes["finish_s"].tolist() == [6, 3, 10, 14, 13.5]
    assert result.arrays.outcomes["gain"].tolist() == [1, 1, 1, 1, 1]


@pytest.mark.parametrize(("settings", "engine"), [("", 0), (":lambda=0.7", 1), (":mu=0.15", 1)])
def test_thresholds_say_how_full_and_how_idle(settings: str, engine: int):
    # R1 again: above 0.7 x 17 = 11.9 A (13) is too full, B is left; below 0.15 x 17 = 2.55 B (2) counts as idle.
    # Requests 0 to 2 go as before: 10 is not above 0.7 x 15 = 10.5, and 3 is not below 0.15 x 15 = 2.25.
    assert where(served(f"gorouting{settings}"))[:4] == [0, 1, 0, engine]
