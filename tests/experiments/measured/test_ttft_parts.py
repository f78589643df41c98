"""The time to the first token in parts: simulated ones add up, those of a recorded run are read, and lines by hand."""

import numpy as np
import pandas as pd
import pytest

from experiments.measured.ttft_parts import Parts, cells, measured_parts, simulated_parts
from servegym.baselines.registry import scheduler
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from tests.experiments.measured.test_client_side import run_of
from tests.simulator.forming import linear

pytestmark = pytest.mark.nojit
A_SECOND = linear(c_p=1.0, t_c=1.0)  # a token, and a step


def served(**more):
    """Three requests of 4 tokens at 0, 1 and 1.5 s; there is memory for two."""
    columns = {"arrival_s": [0.0, 1.0, 1.5], "prompt_tokens": 4, "output_tokens": 3}
    policy = scheduler("vllm-v1").with_settings(max_num_seqs=2, watermark=0.0)
    pool = Deployment(A_SECOND, A_SECOND, 100, block_tokens=4, **more)
    return Simulation(Scenario(Workload.from_columns(columns), pool, policy), record_timeline=True).run()


def test_admission_waits_for_the_step_under_way_and_the_queue_for_room():
    result = served()  # steps: 0 to 5, 5 to 10 (the second), 10 to 11, 11 to 12, then the third alone from 11 on
    ttft_s = result.requests["ttft_s"].to_numpy()
    for chosen in (np.array([False, True, False]), np.array([False, False, True]), np.ones(3, bool)):
        assert simulated_parts(result, chosen, False).ttft_s == pytest.approx(ttft_s[chosen].mean())
    second, third = (simulated_parts(result, np.arange(3) == r, False, 0.25) for r in (1, 2))
    assert (second.client_s, second.admission_s, second.queue_s, second.prefill_s) == (0.25, 4.0, 0.0, 5.0)
    assert third.admission_s == 3.5 and third.queue_s > 0


def test_a_step_that_is_formed_ahead_makes_admission_longer():
    first, second = (simulated_parts(served(async_scheduling=one), np.arange(3) == 1, one) for one in (False, True))
    assert second.admission_s > first.admission_s and second.queue_s == 0.0


def test_what_a_run_has_recorded(tmp_path):
    run = run_of("m", [0.0, 1.0], [3, 3], [0.1, 0.1], [1.0, 1.0])
    rows = pd.DataFrame(
        {"arrival_s": [0.0, 1.0], "queued_s": [0.01, 1.03], "scheduled_s": [0.05, 1.05], "first_token_s": [0.2, 1.3]}
    )
    rows.drop(columns="scheduled_s").to_parquet(tmp_path / "requests_run.parquet")
    assert measured_parts(run, tmp_path) is None
    rows.to_parquet(tmp_path / "requests_run.parquet")
    parts = measured_parts(run, tmp_path)
    assert (parts.client_s, parts.queue_s, parts.prefill_s) == pytest.approx((0.02, 0.03, 0.2))
    assert parts.ttft_s == pytest.approx(0.25) and np.isnan(parts.admission_s)
    assert cells(Parts(0.02, np.nan, 0.03, 1.2)) == ["20.0", "", "30.0", "1,200.0", "1,250.0"]
