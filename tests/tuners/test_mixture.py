"""A training on several kinds of scenarios: each scenario is of one of them, and its policy names all its cases."""

import dataclasses

import numpy as np
import pytest

from servegym.errors import TrainingError
from servegym.scenarios.sampling import draw_episode
from servegym.simulator.inputs.cluster import cluster_of
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
        ([{"split": "test"}], "scenarios.split is 'test'; training uses 'train'"),
        ([{}, {"router": "min-load"}], "mixture: a router 'min-load' beside 'predicted-cost'; all scenarios should"),
        ([{"wheels": 4}], "scenarios: unknown field of a spec 'wheels'"),
    ],
)
def test_what_is_refused(mixture, message) -> None:
    with pytest.raises(TrainingError, match=message):
        problem_of(config_of(mixture=mixture))


def test_its_entries_are_checked() -> None:
    with pytest.raises(TrainingError, match=r"mixture\[0\] is 3; it should be keys with values"):
        config_of(mixture=[3])
    assert dataclasses.replace(load_config("cma-mixed-fleet"), mixture=({"load": 1.0},)).mixture[0] == {"load": 1.0}
