"""Behaviour cloning: what teachers say, and what a network makes of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from servegym.baselines.artifact.files import load_policy
from servegym.baselines.registry import router, scheduler
from servegym.envs.agents import play
from servegym.envs.env import ServingEnv
from servegym.errors import ServegymError, TrainingError
from servegym.simulator.runs.simulation import Simulation
from servegym.tuners import cloning
from servegym.tuners.config import BudgetConfig, NetworkConfig, TrainingConfig, ValidationConfig
from servegym.tuners.problem import problem_of
from servegym.tuners.teachers import teacher_of

pytestmark = pytest.mark.slow

SCENARIOS = {"requests": 30, "load": 3.0, "slo_scale": 0.5, "trace": ["sharegpt"]}
RANKING, ROUTING, BATCHING = "RequestRanking-v0", "ClusterRouting-v0", "EngineBatching-v0"
ARGUMENTS = {RANKING: {"slots": 64}, ROUTING: {"engines": 3}, BATCHING: {"controls": ["gamma", "eta"]}}
TEACHERS = {RANKING: "sjf", ROUTING: "min-tokens", BATCHING: "slide-batching:gamma=3,eta=0.02,steps=ignore"}


def config_of(environment: str, **changes) -> TrainingConfig:
    return dataclasses.replace(
        TrainingConfig(
            environment,
            "bc",
            arguments=ARGUMENTS[environment],
            scenarios=SCENARIOS | ({"engines": 3, "router": "min-load"} if environment == ROUTING else {}),
            environments=1,
            network=NetworkConfig(hidden=(8,), base_bias=1.0),
            hyperparameters={"teacher": TEACHERS[environment], "rounds": 2, "epochs": 3},
            budget=BudgetConfig(steps=300),
            validation=ValidationConfig(scenarios=2),
        ),
        **changes,
    )


def taught(environment: str, teacher: str):
    problem = problem_of(config_of(environment))
    env = ServingEnv(problem.venv.interface, problem.source)
    return env, teacher_of(env, teacher)


class Played:
    """A teacher as an agent that is told when an episode begins."""

    def __init__(self, teacher):
        self.teacher, self.begun = teacher, False

    def act(self, observation, info):
        if not self.begun:
            self.teacher.begin()
            self.begun = True
        return self.teacher.act(observation, info)


def test_a_router_teaches_what_it_would_have_done():
    env, teacher = taught(ROUTING, "min-tokens")
    total = play(env, Played(teacher), seed=3)
    scenario = dataclasses.replace(env.simulation.scenario, router=router("min-tokens"))
    assert Simulation(scenario).run().summary["tdg_ratio"] == pytest.approx(total, abs=1e-9)


def test_a_scheduler_teaches_its_order():
    env, teacher = taught(RANKING, "sjf")
    total = play(env, Played(teacher), seed=3)
    # The base's limits and victims are those of the base: the same policy with a rank of its own, by hand.
    observation, info = env.reset(seed=3)
    teacher.begin()
    ratio, over = 0.0, False
    while not over:
        arrays = env.simulation.arrays
        filled = int((observation[28::22] > 0).sum())
        queue = arrays.queues[0][arrays.order[0, :filled]]
        exec_s = arrays.ranks["exec_s"][arrays.order[0, :filled]]
        scores = teacher.act(observation, info)
        assert (np.diff(exec_s[np.argsort(-scores[:filled], kind="stable")]) >= 0).all()
        assert len(np.unique(queue)) == filled
        observation, reward, over, _, info = env.step(scores)
        ratio += reward
    assert ratio == total


def test_settings_are_taught_as_one_action():
    env, teacher = taught(BATCHING, TEACHERS[BATCHING])
    total = play(env, Played(teacher), seed=3)
    scenario = dataclasses.replace(env.simulation.scenario, scheduler=scheduler(TEACHERS[BATCHING]))
    assert Simulation(scenario).run().summary["tdg_ratio"] == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("environment", [RANKING, ROUTING, BATCHING])
def test_cloning_comes_closer_to_its_teacher(environment, tmp_path):
    config = config_of(environment)
    more = {**config.hyperparameters, "epochs": 30, "learning_rate": 0.01}
    shares = []
    policy = cloning.train(
        dataclasses.replace(config, hyperparameters=more), tmp_path, progress=lambda s, t: shares.append(s)
    )
    assert shares == [0.0, 0.5, 1.0]
    assert load_policy(tmp_path / "policy.json").weights == policy.weights
    problem = problem_of(config)
    settings = cloning.CloningConfig(**config.hyperparameters)
    env, teacher = taught(environment, settings.teacher)
    seen = cloning.show(env, teacher, teacher, 150, 77)
    learner = cloning.Learner(problem, settings)
    tensors = [cloning.torch.as_tensor(array) for array in (seen.observations, seen.actions, seen.masks)]
    before = learner.loss(*tensors).item()
    cloning.load_network(list(learner.actor.layers), policy.network)
    assert learner.loss(*tensors).item() < 0.95 * before


def test_the_same_seed_gives_the_same_weights(tmp_path):
    weights = [cloning.train(config_of(ROUTING), tmp_path / name).weights for name in ("one", "two")]
    assert weights[0] == weights[1]
    assert cloning.train(config_of(ROUTING), tmp_path / "one", resume=True).weights == weights[0]


def test_the_base_teaches_where_no_other_is_named(tmp_path):
    env, teacher = taught(ROUTING, "")
    _, info = env.reset(seed=1)
    assert teacher.act(None, info) == info["base_action"]


@pytest.mark.parametrize(("environment", "teacher", "message"), [
    (RANKING, "qoserve", "remembers nothing"),
    (BATCHING, "sjf", "slide-batching:steps=ignore with other values of gamma, eta"),
    (BATCHING, "slide-batching:load=c,steps=ignore", "slide-batching:steps=ignore with other values of gamma, eta"),
])  # fmt: skip
def test_a_teacher_that_cannot_teach_is_refused(environment, teacher, message):
    with pytest.raises(TrainingError, match=message):
        taught(environment, teacher)


@pytest.mark.parametrize(("changes", "message"), [
    ({"hyperparameters": {"rounds": 0}}, "hyperparameters.rounds is 0"),
    ({"hyperparameters": {"teacher": "sjf"}}, "^hyperparameters.teacher: unknown router 'sjf'"),
    ({"hyperparameters": {"teacher": "min-load"}, "start": "no.json"}, "^start: no.json"),
    ({"hyperparameters": {"learning_rate": 1e30}}, r"^hyperparameters.learning_rate is 1e\+30; it should"),
    ({"hyperparameters": {"teachers": "sjf"}}, "hyperparameters.teachers: unknown key"),
    ({"budget": BudgetConfig(minutes=1.0)}, "budget.steps is None"),
])  # fmt: skip
def test_what_cannot_be_is_told(changes, message, tmp_path):
    with pytest.raises(ServegymError, match=message):
        cloning.train(config_of(ROUTING, **changes), tmp_path)
