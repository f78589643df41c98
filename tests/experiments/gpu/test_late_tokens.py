"""Tokens of a batch come out late if a batch above the largest CUDA graph follows, and its times stay as simulated."""

import numpy as np
import pytest

from experiments.gpu.late_tokens import LARGEST_GRAPH, LAUNCH_S, shown_s, with_late_tokens
from servegym.baselines.registry import scheduler
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear


def test_by_hand():
    start_s, end_s = np.array([0.0, 0.010, 0.020, 0.120]), np.array([0.010, 0.020, 0.120, 0.130])
    large = LARGEST_GRAPH + 1
    late_s = [0.010, 0.010 + LAUNCH_S, 0.120, 0.130]
    assert shown_s(start_s, end_s, np.array([1, 1, large, 1])).tolist() == pytest.approx(late_s)
    assert shown_s(start_s, end_s, np.array([1, 1, LARGEST_GRAPH, 1])).tolist() == end_s.tolist()
    apart_s = start_s + np.array([0.0, 0.0, 0.005, 0.005])  # the engine waited: nothing was being computed
    assert shown_s(apart_s, end_s, np.array([1, 1, large, 1])).tolist() == end_s.tolist()


def test_a_run_whose_decodes_wait_for_a_prompt():
    workload = Workload.from_columns(
        {"arrival_s": np.array([0.0, 0.1]), "prompt_tokens": np.array([8, 1000]), "output_tokens": np.array([30, 2])}
    )
    model = linear(c_p=2**-12, b_d=2**-8)
    scenario = Scenario(workload, Deployment(model, model, 500, 1), scheduler("vllm-v1"))
    result = Simulation(scenario, record_timeline=True).run()
    late = with_late_tokens(result)
    assert (late.requests["output_tokens"] == result.requests["output_tokens"]).all()
    added_s = late.requests["ttft_s"].to_numpy() - result.requests["ttft_s"].to_numpy()
    assert added_s.tolist() == pytest.approx([0.0, 0.0])
    longest_s, late_longest_s = (run.requests["longest_tbt_s"][0] for run in (result, late))
    assert longest_s > 0.2  # the prompt is computed in one batch with a decode
    assert late_longest_s == pytest.approx(longest_s - (LAUNCH_S - 2**-8))


def test_a_run_without_its_timeline():
    workload = Workload.from_columns({"arrival_s": [0.0], "prompt_tokens": [8], "output_tokens": [2]})
    model = linear(b_d=2**-8)
    result = Simulation(Scenario(workload, Deployment(model, model, 500, 1), scheduler("vllm-v1"))).run()
    with pytest.raises(ValueError, match="record_timeline"):
        with_late_tokens(result)
