"""The steps of a device's batch times, and what policies are told of them."""

import numpy as np
import pytest

import servegym
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.profile import load_profile
from servegym.simulator.inputs.device_steps import step_tokens
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation


def stairs(size: int, rise: float) -> LatencyModel:
    """20 ms, and `rise` of that more past each multiple of `size`."""
    edges = np.arange(size, 1025, size)
    knots = np.sort(np.concatenate([[1.0], edges, edges + 1.0]))
    base_s = 0.02 * (1 + rise * np.floor((knots - 1) / size))
    values = dict.fromkeys(("a_p", "b_p", "f_p", "a_d", "f_d", "t_c"), 0.0)
    return LatencyModel.from_values("piecewise", {**values, "knots_tokens": knots.tolist(), "base_s": base_s.tolist()})


@pytest.mark.parametrize(("size", "rise", "found"), [(64, 0.2, 64), (128, 0.2, 128), (256, 0.2, 256), (128, 0.01, 0)])
def test_the_size_of_steps_is_found_from_times(size, rise, found):
    assert step_tokens(stairs(size, rise)) == found


def test_a_line_has_no_steps():
    values = dict.fromkeys(("a_p", "b_p", "a_d", "b_d"), 0.0)
    assert step_tokens(LatencyModel.from_values("linear", {**values, "c_p": 1e-4, "t_c": 0.01})) == 0


@pytest.mark.parametrize("name", ["slide-batching", "expected-gain", "qoserve"])
def test_steps_are_those_of_the_device_where_they_are_asked_for(name):
    workload = servegym.build_workload("azure-conv", requests=2, rate_per_s=1.0)
    for device, steps in (("a100-llama3-8b", 128), ("ascend910b-qwen3-8b", 0)):
        for word, expected in (("ignore", 0), ("device", steps)):
            policy = servegym.scheduler(name).with_settings(steps=word)
            scenario = Scenario(workload, load_profile(device).deployment(), policy)
            assert scenario.scheduler.values(scenario.fact)["step_tokens"] == expected


@pytest.mark.parametrize("name", ["slide-batching", "expected-gain", "qoserve"])
def test_batches_end_at_the_steps_of_the_device(name):
    workload = servegym.build_workload("azure-conv", requests=150, rate_per_s=10.0)
    shares = []
    for word in ("ignore", "device"):
        policy = servegym.scheduler(name).with_settings(steps=word)
        scenario = Scenario(workload, load_profile("a100-llama3-8b").deployment(), policy)
        events = Simulation(scenario, record_timeline=True).run().timeline
        number = (events["kind"] == "batch_start").cumsum()
        tokens = events[events["kind"] == "scheduled"].groupby(number)["tokens"].sum()
        shares.append((tokens[tokens >= 128] % 128 == 0).mean())
    assert shares[0] < 0.1 and shares[1] > 0.5


def test_the_token_budget_of_a_profile_is_that_of_sarathi():
    workload = servegym.build_workload("azure-conv", requests=50, rate_per_s=1.0)
    profile = load_profile("a100-llama3-8b")
    scenario = Scenario(workload, profile.deployment(), servegym.scheduler("sarathi-fcfs"))
    cached_tokens = float(workload.table["prompt_tokens"].mean()) / 2
    budget = profile.profiled_token_budget(float(workload.table["tpot_slo_s"].min()), cached_tokens)
    assert budget == scenario.scheduler.values(scenario.fact)["max_num_batched_tokens"]
    assert budget < profile.profiled_token_budget(0.1, cached_tokens)


@pytest.mark.parametrize("name", ["edf", "sjf"])
def test_a_profiled_budget_is_that_of_sarathi(name):
    workload = servegym.build_workload("azure-conv", requests=50, rate_per_s=1.0)
    deployment = load_profile("a100-llama3-8b").deployment()
    budgets = []
    for policy in (servegym.scheduler("sarathi-fcfs"), servegym.scheduler(name).with_settings(budget="profiled")):
        scenario = Scenario(workload, deployment, policy)
        budgets.append(scenario.scheduler.values(scenario.fact)["max_num_batched_tokens"])
    assert budgets[0] == budgets[1] != servegym.scheduler(name).chosen()["max_num_batched_tokens"]
