"""Evolution: it begins at the base, goes on where it was stopped, and gives the same policy for the same seed."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

pytest.importorskip("cmaes")
pytest.importorskip("stable_baselines3")

from servegym.baselines.artifact.document import read_document
from servegym.baselines.artifact.files import load_policy
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.observations.fields import Field, Layout
from servegym.errors import TrainingError
from servegym.evaluation.running import ThreadRunner
from servegym.simulator.runs.simulation import Simulation
from servegym.tuners import evolution, generations
from servegym.tuners.config import BudgetConfig, NetworkConfig, TrainingConfig, ValidationConfig
from servegym.tuners.decision_head import BaseBias
from servegym.tuners.objective import Objective
from servegym.tuners.problem import problem_of
from servegym.tuners.runs import RunFolder
from servegym.tuners.training import Stopped

pytestmark = pytest.mark.slow

RANKING, ROUTING, BATCHING = "RequestRanking-v0", "ClusterRouting-v0", "EngineBatching-v0"
SCHEDULING = "Scheduling-v0"
SCENARIOS = {"requests": 40, "load": 3.0, "slo_scale": 0.5, "trace": ["sharegpt"]}
ARGUMENTS = {RANKING: {"slots": 16}, SCHEDULING: {"slots": 16}, ROUTING: {"engines": 3}, BATCHING: {}}


def config_of(environment: str = RANKING, **changes) -> TrainingConfig:
    return dataclasses.replace(
        TrainingConfig(
            environment,
            "cma",
            arguments=ARGUMENTS[environment],
            scenarios=SCENARIOS | ({"engines": 3, "router": "min-load"} if environment == ROUTING else {}),
            environments=1,
            network=NetworkConfig(hidden=(2,), base_bias=2.0),
            hyperparameters={"population": 6, "scenarios": 4},
            budget=BudgetConfig(steps=72),
            validation=ValidationConfig(scenarios=4, every_steps=24),
            name="small",
        ),
        **changes,
    )


@pytest.mark.parametrize("environment", [RANKING, SCHEDULING, ROUTING, BATCHING])
def test_it_begins_with_the_decisions_of_the_base(environment):
    config = config_of(environment, network=NetworkConfig(hidden=(5, 3), base_bias=1.5))
    problem = problem_of(config)
    policy = problem.head.policy(evolution.start_of(problem))
    for scenario in generations.scenarios_of(problem, 0, 3):
        ours, base = (Simulation(problem.head.with_policy(scenario, one)).run() for one in (policy, None))
        assert ours.arrays.outcomes.tobytes() == base.arrays.outcomes.tobytes()


def test_candidates_score_what_is_asked_beside_gain():
    problem = problem_of(config_of(SCHEDULING))
    policies, scenarios = [problem.head.base], generations.scenarios_of(problem, 0, 2)
    asked = Objective(attainment=2.0)
    plain, rewarded = (
        generations.scores_of(problem.head, policies, scenarios, ThreadRunner(), objective)
        for objective in (Objective(), asked)
    )
    runs = [Simulation(problem.head.with_policy(scenario)).run().summary for scenario in scenarios]
    assert plain == pytest.approx(np.mean([run["tdg_ratio"] for run in runs]))
    assert rewarded - plain == pytest.approx(2.0 * np.mean([run["slo_attainment"] for run in runs]))


def test_the_lead_of_the_base_passes_hidden_layers_and_is_as_large_as_said():
    shape = Shape("dense", 3, 2, hidden=(4, 4), activation="tanh")
    base_bias = BaseBias((1, 2), np.array([[1.0, 0.0], [0.0, -1.0]]), np.array([0.25, 0.0])).times(2.0)
    network = evolution.first_network(shape, base_bias, np.random.default_rng(0))
    assert network(np.zeros(3, "f4")) == pytest.approx([0.5, 0.0])
    assert network(np.array([9.0, 1.0, 1.0], "f4")) == pytest.approx([2.5, -2.0])
    with pytest.raises(TrainingError, match="a layer of 1 units"):
        evolution.first_network(dataclasses.replace(shape, hidden=(1,)), base_bias, np.random.default_rng(0))


def test_of_a_shared_network_the_part_of_the_whole_can_be_left_alone():
    problem = problem_of(config_of(hyperparameters={"inputs": "slot"}))
    settings = evolution.EvolutionConfig(inputs="slot", population=4, step=1.0)
    search = evolution.Search(evolution.start_of(problem), settings, 0)
    whole = problem.shape.whole
    for network in search.candidates():
        (weight, _), (start, _) = network.layers[0], search.best.layers[0]
        assert (weight[:, :whole] == start[:, :whole]).all()
        assert (weight[:, whole:] != start[:, whole:]).all()
    with pytest.raises(TrainingError, match="should be 'all'"):
        evolution.searched(Shape("dense", 3, 2), "slot")


def test_numbers_that_are_searched_by_name():
    layout = Layout("whole", (Field("a", 0, 1, ""), Field("b", 0, 1, "")), "slot", (Field("c", 0, 1, ""),), 5)
    shape = Shape.shared_by(layout, 2, hidden=())
    inputs = evolution.inputs_of(layout, shape)
    assert inputs == ["a", "b", "c"]
    assert evolution.searched(shape, "c, a", inputs).tolist() == [0, 1, 4, 5, 6, 7]  # two outputs each; biases
    assert evolution.inputs_of(layout, Shape.dense_on(layout, 1))[-1] == "slot[4].c"


def test_outputs_that_are_searched_by_index():
    shape = Shape("dense", 2, 3, hidden=())
    assert evolution.with_outputs(shape, "2, 0").tolist() == [0, 2, 3, 5, 6, 8]  # of both inputs, and the biases
    search = evolution.Search(Network.zeros(shape), evolution.EvolutionConfig(outputs="1", inputs="b"), 0, ["a", "b"])
    for network in search.candidates():
        assert np.flatnonzero(network.weights.values).tolist() == [4, 7]
    for wanted in ("3", "b", "1,", "-1"):
        with pytest.raises(TrainingError, match="it should be all, or some of 0 to 2"):
            evolution.with_outputs(shape, wanted)
    with pytest.raises(TrainingError, match="it should be all with hidden layers"):
        evolution.with_outputs(Shape("dense", 2, 3, hidden=(4,)), "1")


@pytest.mark.parametrize("separable", [False, True])
def test_the_search_finds_the_best_weights(separable):
    shape = Shape("dense", 4, 1, hidden=(1,))
    goal = np.linspace(-1.0, 1.0, shape.count)
    search = evolution.Search(Network.zeros(shape), evolution.EvolutionConfig(separable=separable), 1)
    for _ in range(150):
        networks = search.candidates()
        search.learn(np.array([-np.sum((network.weights.values - goal) ** 2) for network in networks]))
    assert search.best.weights.values == pytest.approx(goal, abs=0.01)


def test_training_writes_what_it_found(tmp_path):
    said = []
    policy = evolution.train(config_of(), tmp_path, progress=lambda share, text: said.append((share, text)))
    assert load_policy(tmp_path / "policy.json").weights == policy.weights
    rows = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [0, 24, 48, 72]
    assert [text.partition(" scenarios")[0] for _, text in said] == [f"{done} of 72" for done in (0, 24, 48, 72)]
    assert rows[0]["difference"] == 0.0
    best = max(rows, key=lambda row: row["policy"])
    problem = problem_of(config_of())
    verdict = generations.Judge(problem.head, problem.validation_source, problem.config.validation).judge(policy)
    assert verdict.policy == best["policy"]
    provenance = read_document(tmp_path / "policy.json")["provenance"]
    assert provenance["trained_on"]["traces"] == ["sharegpt"]
    assert provenance["config"]["hyperparameters"] == {"population": 6, "scenarios": 4}
    assert json.loads((tmp_path / "summary.json").read_text())["best_at_steps"] == best["steps"]
    assert (tmp_path / "training_curve.png").stat().st_size > 10_000
    assert [share for share, _ in said] == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0])
    with pytest.raises(TrainingError, match="has a training; --resume"):
        evolution.train(config_of(), tmp_path)


def test_the_same_seed_gives_the_same_weights_and_another_one_others(tmp_path):
    def trained(name: str, seed: int):
        return evolution.train(config_of(seed=seed), tmp_path / name).weights

    first = trained("one", 0)
    assert trained("two", 0) == first
    assert trained("three", 50) != first


class Interrupted:
    """Ctrl-C after so many generations."""

    def __init__(self, after: int):
        self.left = after

    def __call__(self, share: float, text: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def test_stopped_and_gone_on_with_is_as_if_it_had_not_been(tmp_path):
    straight = evolution.train(config_of(), tmp_path / "straight")
    with pytest.raises(Stopped):
        evolution.train(config_of(), tmp_path / "stopped", progress=Interrupted(2))
    resumed = evolution.train(RunFolder(tmp_path / "stopped").config(), tmp_path / "stopped", resume=True)
    assert resumed.weights == straight.weights
    rows = [json.loads(line) for line in (tmp_path / "stopped" / "curve.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [0, 24, 48, 72]


def test_it_goes_on_from_a_policy_that_has_been_trained(tmp_path):
    first = evolution.train(config_of(), tmp_path / "first")
    config = config_of(start=str(tmp_path / "first" / "policy.json"))
    assert evolution.start_of(problem_of(config)).weights == first.network.weights
    with pytest.raises(TrainingError, match=r"start: .* it should be of"):
        evolution.start_of(problem_of(dataclasses.replace(config, network=NetworkConfig(hidden=(3,)))))


@pytest.mark.parametrize(("hyperparameters", "message"), [
    ({"step": 0.0}, "hyperparameters.step is 0.0; it should be above 0"),
    ({"population": 3}, "hyperparameters.population is 3; it should be 4 or more"),
    ({"scenarios": 0}, "hyperparameters.scenarios is 0; it should be 1 or more"),
    ({"inputs": ""}, "hyperparameters.inputs is ''; it should be all, slot, or names of numbers"),
    (
        {"inputs": "queued, some"},
        "hyperparameters.inputs: there is no number 'some'; it should be all, slot, or some of ",
    ),
    ({"sigma": 0.1}, "hyperparameters.sigma: unknown key"),
    ({"population": "many"}, "hyperparameters.population is 'many'; it should be a whole number"),
])  # fmt: skip
def test_what_cannot_be_is_told(hyperparameters, message, tmp_path):
    with pytest.raises(TrainingError, match=message):
        evolution.train(config_of(hyperparameters=hyperparameters), tmp_path)
    assert not list(tmp_path.iterdir())
