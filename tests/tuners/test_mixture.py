"""A training on several kinds of scenarios: each scenario is of one of them, and its policy names all its cases."""

import dataclasses
import json

import numpy as np
import pytest

from servegym.errors import TrainingError
from servegym.scenarios.sampling import draw_episode
from servegym.simulator.inputs.cluster import cluster_of
from servegym.tuners import evolution
from servegym.tuners.config import TrainingConfig, from_plain, load_config
from servegym.tuners.mixture import union_of
from servegym.tuners.problem import problem_of

DOCUMENT = {
    "environment": "ClusterRouting-v1", "algorithm": "cma", "arguments": {"engines": 4}, "budget": {"steps": 8},
    "scenarios": {"router": "predicted-cost", "requests": 20},
    "mixture": [
        {"trace": "sharegpt", "engines": 2, "load": 2.0},
        {"preset": "mixed-fleet", "trace": "azure-conv", "load": {"low": 1.0, "high": 1.5}},
    ],
}  # fmt: skip


def config_of(**changes) -> TrainingConfig:
    return from_plain(TrainingConfig, DOCUMENT | changes, "")


def test_each_scenario_is_of_one_kind_with_what_all_have() -> None:
    source = problem_of(config_of()).source
    drawn = [draw_episode(source.spec(rng), rng) for rng in map(np.random.default_rng, range(40))]
    kinds = [(one.workload.name, one.spec.fleet.total) for one in drawn]
    assert set(kinds) == {("sharegpt", 2), ("azure-conv", 4)} and 8 <= kinds.count(("sharegpt", 2)) <= 32
    assert all(len(one.workload) == 20 and one.spec.policies.router == "predicted-cost" for one in drawn)
    scenario = source(np.random.default_rng(0))
    assert (scenario.workload.name, cluster_of(scenario.deployment).engines) == kinds[0]


def test_a_single_spec_draws_as_it_does_alone() -> None:
    source = problem_of(config_of(mixture=[])).source
    alone = source.specs[0](np.random.default_rng(3))
    assert source(np.random.default_rng(3)).workload.digest == alone.workload.digest


def test_validation_and_provenance_have_all_kinds() -> None:
    problem = problem_of(config_of())
    assert {spec.demand.split for spec in problem.validation_source.specs} == {"validation"}
    trained_on = problem.trained_on
    assert trained_on["traces"] == ["sharegpt", "azure-conv"]
    assert trained_on["loads"] == [2.0, {"low": 1.0, "high": 1.5}]
    assert len(trained_on["seeds"]) == 1


def test_a_value_stands_once() -> None:
    assert union_of([{"loads": {"low": 1.0}}, {"loads": [{"low": 1.0}, 2.0]}]) == {"loads": [{"low": 1.0}, 2.0]}


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ([{"split": "test"}], r"^mixture\[0\].split is 'test'; training uses 'train'"),
        ([{}, {"router": "min-load"}], "mixture: a router 'min-load' beside 'predicted-cost'; all scenarios should"),
        ([{}, {"wheels": 4}], r"^mixture\[1\].wheels: unknown field of a spec 'wheels'"),
        ([{"prefill": 2}], r"^mixture\[0\]: there are prefill engines and no decode engines; give both"),
    ],
)
def test_what_is_refused(mixture, message) -> None:
    with pytest.raises(TrainingError, match=message):
        problem_of(config_of(mixture=mixture))


@pytest.mark.parametrize(
    ("scenarios", "message"),
    [
        ({"laod": 1.0}, "scenarios.laod: unknown field of a spec 'laod' (did you mean 'load'?)"),
        ({"load": -1}, "scenarios.load is -1; it should be a number above 0"),
        ({"load": ["a"]}, "scenarios.load: a load of 'a': it should be a number above 0, or one of light"),
        ({"requests": 0.5}, "scenarios.requests is 0.5; it should be a whole number from 1"),
        ({"demand": {"load": -1}}, "scenarios.demand: load is -1; it should be a number above 0"),
        ({"trace": ["azure-conv", "azur"]}, "scenarios.trace: unknown trace 'azur' (did you mean 'azure-"),
        ({"slo": "same:tpot=1"}, "scenarios.slo: SLOs 'same:tpot=1': unknown parameter 'tpot'"),
        ({"arrivals": 3}, "scenarios.arrivals is 3; it should be a name, or several"),
        ({"device": "a100"}, "scenarios.device: unknown profile 'a100' (did you mean 'a100-"),
        ({"pools": [{"device": "a100"}]}, "scenarios.pools: unknown profile 'a100'"),
        ({"router": "min"}, "scenarios.router: unknown router 'min' (did you mean 'min-"),
        ({"gain": "gdt"}, "scenarios.gain: unknown gain function 'gdt'"),
        ({"predictor": "x"}, "scenarios.predictor: "),
        ({"incidents": ["fail"]}, "scenarios.incidents: an incident of 'fail'; it should be KIND:ENGINE@SECONDS"),
        ({"preset": ["light"]}, "scenarios.preset: unknown preset ['light']; there are light, overload"),
        ({"split": "test"}, "scenarios.split is 'test'; training uses 'train'"),
        ({"load": 1.0, "rate_per_s": 2.0}, "scenarios: load and rate_per_s (--load and --rate) are both given"),
    ],
)
def test_what_is_wrong_with_scenarios_names_file_and_key(scenarios, message, tmp_path) -> None:
    """Before anything is drawn or written: one of several traces may not be drawn for hours."""
    (tmp_path / "mine.yaml").write_text(json.dumps(DOCUMENT | {"scenarios": scenarios, "mixture": []}))
    with pytest.raises(TrainingError) as caught:
        evolution.train(load_config(tmp_path / "mine.yaml"), tmp_path / "run")
    assert str(caught.value).startswith(f"{tmp_path / 'mine.yaml'}: {message}")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_drawn_names_the_file_too() -> None:
    config = dataclasses.replace(config_of(scenarios={"requests": 10**6}), file="mine.yaml")
    with pytest.raises(
        TrainingError, match=r"^mine.yaml: scenarios: trace \S+: an episode of 1000000 requests; its train"
    ):
        problem_of(config).source(np.random.default_rng(0))


def test_its_entries_are_checked() -> None:
    with pytest.raises(TrainingError, match=r"mixture\[0\] is 3; it should be keys with values"):
        config_of(mixture=[3])
    assert dataclasses.replace(load_config("cma-mixed-fleet"), mixture=({"load": 1.0},)).mixture[0] == {"load": 1.0}
