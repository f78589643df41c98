"""The clairvoyant bound: never below what can be had, and no looser than it has to be where that is known."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.baselines.registry import router_names, scheduler, scheduler_names
from servegym.errors import ExperimentError
from servegym.evaluation.bounds.clairvoyant import tdg_upper_bound
from servegym.evaluation.bounds.program import Program, Solved
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.profile import load_profile
from servegym.simulator.features.disturbances import Disturbance
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.simulation import Simulation
from tests.evaluation.bounds.exhaustive import best_gain
from tests.seeds import drawn
from tests.strategies import cluster_scenarios, scenarios

BIN_S = st.sampled_from([None, 1 / 64, 0.1, 0.25, 1.0, 7.0])


def linear(**values: float) -> LatencyModel:
    return LatencyModel.from_values("linear", dict.fromkeys(("a_p", "b_p", "c_p", "a_d", "b_d", "t_c"), 0.0) | values)


def scene(device: LatencyModel, **columns: Any) -> Scenario:
    columns = {"arrival_s": [0.0], "prompt_tokens": 1, "output_tokens": 1} | columns
    workload = Workload.from_columns(columns)
    return Scenario(workload, deployment_of(device), scheduler("edf"), Gain(first_weight=1.0))


def deployment_of(device: LatencyModel, **more: Any) -> Deployment:
    return Deployment(device, device, **({"total_blocks": 1000, "block_tokens": 1} | more))


def gain_of(scenario: Scenario) -> float:
    return Simulation(scenario).run().summary["gain"]


# Against all schedules there are


tiny_requests = st.lists(
    st.fixed_dictionaries(
        {
            "gap_s": st.sampled_from([0.0, 0.0, 0.25, 1.0]), "prompt_tokens": st.integers(1, 3),
            "output_tokens": st.integers(1, 3), "weight": st.sampled_from([0.5, 1.0, 2.0]),
            "ttft_slo_s": st.sampled_from([0.25, 0.5, 1.0, 2.0]), "tpot_slo_s": st.sampled_from([0.125, 0.25, 0.5]),
            "ttlt_slo_s": st.sampled_from([np.inf, np.inf, 1.0, 2.0]),
        }
    ),
    min_size=1,
    max_size=2,
)  # fmt: skip
sixteenths = st.integers(0, 4).map(lambda n: n / 16)


@st.composite
def tiny(draw) -> tuple[Workload, LatencyModel]:
    rows = draw(tiny_requests)
    columns = {field: np.array([row[field] for row in rows]) for field in rows[0]}
    workload = Workload.from_columns({"arrival_s": np.cumsum(columns.pop("gap_s")), **columns})
    values = {name: draw(sixteenths) for name in ("a_p", "b_p", "c_p", "a_d", "b_d")}
    return workload, linear(**values, t_c=draw(st.sampled_from([1 / 16, 1 / 8, 1 / 4])))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(tiny(), st.booleans(), BIN_S, st.integers(1, 4), st.sampled_from([0.0, 1.0, 4.0]))
def test_no_schedule_of_all_there_are_exceeds_it(case, evictions, bin_s, fineness, first_weight):
    workload, device = case
    gain = Gain(first_weight=first_weight)
    best = best_gain(workload, device, gain, evictions)
    scenario = Scenario(workload, deployment_of(device), scheduler("edf"), gain)
    assert tdg_upper_bound(scenario, bin_s, fineness).gain >= best * (1 - 1e-12)


def test_with_one_request_it_is_what_the_best_schedule_gains():
    # 1 s of prompt, then a token each 0.5 s; deadlines 2, 2.4, 2.8, 3.2, ...: tokens 1 to 5 come at 1, 1.5, ... 3.0.
    device = linear(c_p=1.0, b_d=0.25, t_c=0.25)
    scenario = scene(device, prompt_tokens=1, output_tokens=12, ttft_slo_s=2.0, tpot_slo_s=0.4)
    best = gain_of(scenario)
    bound = tdg_upper_bound(scenario, bin_s=0.05, fineness=8)
    assert best < bound.ideal_gain
    assert best <= bound.gain <= best + 1e-6


def test_what_no_engine_can_do_in_time_is_worth_nothing():
    scenario = scene(linear(c_p=1.0, t_c=0.5), prompt_tokens=4, output_tokens=3, ttft_slo_s=4.4, tpot_slo_s=0.25)
    assert gain_of(scenario) == 0 == tdg_upper_bound(scenario).gain  # the first token comes at 4.5 s


def test_two_requests_that_need_the_same_time_cannot_both_have_it():
    # Each takes 1 s of prompt; at most 1.5 s fit before both deadlines.
    device = linear(c_p=0.99, t_c=0.01)
    scenario = scene(device, arrival_s=[0.0, 0.0], ttft_slo_s=1.5)
    bound = tdg_upper_bound(scenario, bin_s=0.05, fineness=8)
    assert best_gain(scenario.workload, device, scenario.gain) == 1
    assert 1 <= bound.gain <= 1.55


def test_the_constant_of_iterations_is_charged_once_for_a_batch():
    """Decodes share iterations: two requests take no more of them than one; the constant still limits their pace."""
    columns = {"prompt_tokens": 1, "output_tokens": 40, "ttft_slo_s": 1.0, "tpot_slo_s": 0.2}
    device = linear(c_p=1e-3, b_d=1e-3, t_c=0.3)
    one = tdg_upper_bound(scene(device, **columns), bin_s=0.1, fineness=8).gain
    two = tdg_upper_bound(scene(device, arrival_s=[0.0, 0.0], **columns), bin_s=0.1, fineness=8).gain
    best = gain_of(scene(device, arrival_s=[0.0, 0.0], **columns))
    assert best == pytest.approx(two, rel=0.15)
    assert two == pytest.approx(2 * one, rel=0.02)
    assert two < 80 * 0.3


def test_memory_limits_how_many_share_an_iteration():
    columns = {"arrival_s": np.zeros(6), "prompt_tokens": 50, "output_tokens": 40, "ttft_slo_s": 2.0,
               "tpot_slo_s": 0.11}  # fmt: skip
    device = linear(c_p=1e-4, b_d=1e-4, t_c=0.1)
    roomy = scene(device, **columns)
    tight = dataclasses.replace(roomy, deployment=deployment_of(device, total_blocks=100))
    bounds = [tdg_upper_bound(scenario, bin_s=0.25, fineness=4).gain for scenario in (roomy, tight)]
    assert bounds[0] == pytest.approx(240, rel=0.05)
    assert bounds[1] < 0.55 * bounds[0]
    assert gain_of(tight) <= bounds[1]


def test_finer_bins_do_not_make_it_looser():
    scenario = (
        scene(linear(c_p=0.02, b_d=0.01, a_d=0.002, t_c=0.05), arrival_s=np.arange(12) * 0.3,
              prompt_tokens=20, output_tokens=8, ttft_slo_s=1.0, tpot_slo_s=0.2)
    )  # fmt: skip
    gains = [tdg_upper_bound(scenario, bin_s=2.0**-k, fineness=64).gain for k in (-1, 1, 3)]
    assert gains[0] > gains[2] * (1 + 1e-6)
    assert gains[0] >= gains[1] >= gains[2]
    assert gains[2] >= gain_of(scenario)


# Against every scheduler


@pytest.mark.parametrize("name", scheduler_names())
@drawn(25, slow=True)
def test_no_scheduler_exceeds_it(name, data):
    scenario = data.draw(scenarios(name))
    scenario = dataclasses.replace(scenario, disturbance=dataclasses.replace(scenario.disturbance, noise=0.0))
    bound = tdg_upper_bound(scenario, data.draw(BIN_S), data.draw(st.integers(1, 3)))
    gain = gain_of(scenario)
    assert gain <= bound.gain * (1 + 1e-12)
    assert bound.gain <= bound.ideal_gain


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_run_of_a_cluster_exceeds_it(data):
    """Pools of all roles, links and delays, each engine kind with its device, under any router and scheduler."""
    scenario = data.draw(cluster_scenarios(data.draw(st.sampled_from(router_names()))))
    scenario = dataclasses.replace(scenario, disturbance=dataclasses.replace(scenario.disturbance, noise=0.0))
    assert gain_of(scenario) <= tdg_upper_bound(scenario, data.draw(BIN_S)).gain * (1 + 1e-12)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_client_behind_a_front_end_gains_more(data):
    scenario = data.draw(cluster_scenarios(data.draw(st.sampled_from(router_names()))))
    scenario = dataclasses.replace(
        scenario,
        disturbance=dataclasses.replace(scenario.disturbance, noise=0.0),
        predictor=None,
        front_end=FrontEnd(*(data.draw(st.floats(0, 1)) for _ in range(4)), one_process=data.draw(st.booleans())),
    )
    assert gain_of(scenario) <= tdg_upper_bound(scenario, data.draw(BIN_S)).gain * (1 + 1e-12)


def test_prompts_do_not_run_on_decode_engines():
    """Two engines, one for prompts: half of what two co-located ones could prefill in time."""
    device = linear(c_p=0.5, b_d=1e-3, t_c=1e-3)
    columns = {"arrival_s": np.zeros(8), "prompt_tokens": 2, "ttft_slo_s": 4.1}
    both = deployment_of(device, engines=2)
    apart = tuple(deployment_of(device, role=role) for role in ("prefill", "decode"))
    scenario = scene(device, **columns)
    together, split = (
        tdg_upper_bound(dataclasses.replace(scenario, deployment=deployment), bin_s=0.1).gain
        for deployment in (both, Cluster(apart))
    )
    assert together == pytest.approx(8, rel=0.01)
    assert split == pytest.approx(4.1, rel=0.02)


@pytest.mark.parametrize("profile", ["a100-llama3-8b", "ascend910b-qwen3-8b", "ascend910b-qwen3-8b-eager"])
def test_on_a_profile_it_lies_between_the_best_run_and_the_ideal(profile):
    rng = np.random.default_rng(3)
    n = 120
    workload = Workload.from_columns({
        "arrival_s": np.sort(rng.uniform(0, 6, n)), "prompt_tokens": rng.integers(200, 3000, n),
        "output_tokens": rng.integers(10, 200, n),
    })  # fmt: skip
    deployment = load_profile(profile).deployment()
    runs = [gain_of(Scenario(workload, deployment, scheduler(name))) for name in ("slide-batching", "edf", "sjf")]
    bound = tdg_upper_bound(Scenario(workload, deployment, scheduler("edf")))
    assert max(runs) <= bound.gain < 0.99 * bound.ideal_gain, "an overload: not all can be in time"


def test_a_run_that_is_cut_off_has_a_lower_bound():
    whole = scene(linear(c_p=0.1, b_d=0.1, t_c=0.05), prompt_tokens=2, output_tokens=30, tpot_slo_s=0.5)
    part = dataclasses.replace(whole, until_s=2.0)
    assert gain_of(part) <= tdg_upper_bound(part, bin_s=0.1).gain < 0.6 * tdg_upper_bound(whole, bin_s=0.1).gain


def test_bins_get_wider_where_time_runs_out(monkeypatch):
    scenario = scene(linear(c_p=0.1, b_d=0.1, t_c=0.05), prompt_tokens=2, output_tokens=30, tpot_slo_s=0.5)
    solve, widths = Program.solve, []

    def slow(program: Program, time_limit_s: float) -> Solved:
        widths.append(program.size)
        found = solve(program, time_limit_s)
        return found if len(widths) > 1 else dataclasses.replace(found, status=1, message="time is up")

    monkeypatch.setattr(Program, "solve", slow)
    bound = tdg_upper_bound(scenario)
    assert (bound.bin_s, len(widths)) == (2.0, 2)
    assert bound.gain >= gain_of(scenario)
    widths.clear()
    with pytest.raises(ExperimentError, match="time is up"):
        tdg_upper_bound(scenario, bin_s=1.0)


# What it does not hold for


def test_it_says_what_it_does_not_hold_for():
    plain = scene(linear(t_c=1.0))
    slowest = load_profile("a100-qwen1.5-4b").device
    for change, said in (
        ({"gain": Gain("ta-slo")}, "the bound is on TDG"),
        ({"disturbance": Disturbance(noise=0.1)}, "noise"),
        ({"deployment": deployment_of(slowest)}, "device form 'slowest'"),
        ({"deployment": deployment_of(linear(c_p=1.0))}, "no time"),
    ):
        with pytest.raises(ExperimentError, match=said):
            tdg_upper_bound(dataclasses.replace(plain, **change))
    for bad in ({"bin_s": 0.0}, {"bin_s": float("nan")}, {"fineness": 0}):
        with pytest.raises(ExperimentError, match="should be"):
            tdg_upper_bound(plain, **bad)
