"""Actors: in PyTorch, as compiled networks and as policies they say the same; and they begin with the base policy."""

from typing import Any

import numpy as np
import pytest
import torch

from servegym.baselines.learned.network import Network, Shape
from servegym.envs.env import ServingEnv
from servegym.envs.sb3 import Sb3VecEnv
from servegym.errors import TrainingError
from servegym.simulator.runs.simulation import Simulation
from servegym.tuners.actors import Actor, actor_layers, begin_with_base, load_network, network_of
from servegym.tuners.decision_head import NetworkAgent
from servegym.tuners.learners import new_model
from servegym.tuners.problem import Problem, problem_of
from tests.envs.small import outcome_bytes, steps
from tests.tuners.tiny import CASES, tiny


@pytest.fixture(params=CASES)
def problem(request: pytest.FixtureRequest) -> Problem:
    return problem_of(tiny(request.param))


def new(problem: Problem) -> Any:
    """A model that has learned nothing."""
    return new_model(problem, Sb3VecEnv(problem.venv))


def shaken(problem: Problem) -> Any:
    """A model with random weights."""
    model = new(problem)
    with torch.no_grad():
        for layer in actor_layers(model):
            layer.weight.add_(torch.randn_like(layer.weight))
            layer.bias.add_(torch.randn_like(layer.bias))
    return model


def actor_in_float64(layers: list[torch.nn.Linear], shape: Shape) -> Actor:
    """The PyTorch actor cast to float64, with which a network is compared."""
    actor = Actor(shape).double()
    for own, layer in zip(actor.layers, layers, strict=True):
        own.load_state_dict(layer.state_dict())
    return actor


class TorchAgent(NetworkAgent):
    """The actor in float64, asked in PyTorch."""

    def __init__(self, problem: Problem, actor: Actor):
        super().__init__(problem.venv.interface, Network.zeros(problem.shape))
        self.actor = actor
        self.network = self.outputs  # type: ignore[assignment]

    def outputs(self, observation: np.ndarray, filled: int | None = None) -> np.ndarray:
        with torch.no_grad():
            numbers = self.actor(torch.as_tensor(observation, dtype=torch.float64)).numpy()
        shape = self.actor.shape
        return numbers.reshape(shape.slots, shape.outputs) if shape.is_shared else numbers


def test_the_network_is_the_actor_in_float64(problem: Problem) -> None:
    model = shaken(problem)
    layers, shape = actor_layers(model), problem.shape
    network, actor = network_of(layers, shape), actor_in_float64(layers, shape)
    rng, space = np.random.default_rng(1), problem.venv.single_observation_space
    observations = rng.uniform(space.low, space.high, (50, *space.shape)).astype("f4")
    with torch.no_grad():
        told = actor(torch.as_tensor(observations, dtype=torch.float64)).numpy()
    for observation, numbers in zip(observations, told, strict=True):
        np.testing.assert_allclose(network(observation).ravel(), numbers, rtol=0, atol=1e-9)
    assert np.ptp(told, axis=0).min() > 1e-3  # it looks at what it is shown


def test_what_the_learner_does_is_what_the_actor_says(problem: Problem) -> None:
    model = shaken(problem)
    actor = actor_in_float64(actor_layers(model), problem.shape)
    env = Sb3VecEnv(problem.venv)
    env.seed(3)
    observations = env.reset()
    masks = {"action_masks": env.venv.action_masks()} if env.has_attr("action_masks") else {}
    actions, _ = model.predict(observations, deterministic=True, **masks)
    with torch.no_grad():
        told = actor(torch.as_tensor(observations, dtype=torch.float64)).numpy()
    if problem.head.is_choice:
        told = told.reshape(len(told), -1, problem.head.outputs if problem.head.outputs > 1 else told.shape[1])
        chosen = np.take_along_axis(told, actions.reshape(*told.shape[:-1], 1), -1)[..., 0]
        assert (chosen >= told.max(-1) - 1e-5).all()  # engines that look alike differ by rounding alone
        assert np.ptp(told, axis=-1).max() > 1e-3
    elif problem.head.kind != "dense":
        present = problem.head.layout.parts(observations)["request"][..., 0] > 0
        always = np.ones((len(told), told.shape[1] - present.shape[1]), bool)  # of a joint network, the whole's
        present = np.concatenate([always, present], axis=1)
        np.testing.assert_allclose(actions[present], told[present], atol=1e-5)
        assert present.any() and (actions[~present] == 0).all()
    else:
        np.testing.assert_allclose(actions, told, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["compiled", "torch"])
def test_played_in_the_environment_it_is_the_compiled_policy_simulated(problem: Problem, how: str) -> None:
    layers, shape = actor_layers(shaken(problem)), problem.shape
    network = network_of(layers, shape)
    agents = {
        "compiled": NetworkAgent(problem.venv.interface, network),
        "torch": TorchAgent(problem, actor_in_float64(layers, shape)),
    }
    for seed in range(3 if how == "compiled" else 1):  # torch takes ten times as long for a decision
        scenario = problem.source(np.random.default_rng(seed))
        env = ServingEnv(problem.venv.interface, scenario)
        assert len(list(steps(env, agents[how]))) > 2
        simulation = Simulation(problem.head.with_policy(scenario, problem.head.policy(network)))
        assert outcome_bytes(env.simulation.arrays) == outcome_bytes(simulation.run().arrays)


def test_it_begins_with_the_base_policy(problem: Problem) -> None:
    beginner, another = (network_of(actor_layers(make(problem)), problem.shape) for make in (new, shaken))
    different = 0
    for seed in range(3):
        scenario = problem.source(np.random.default_rng(seed))
        base, same, other = (
            outcome_bytes(Simulation(problem.head.with_policy(scenario, policy)).run().arrays)
            for policy in (None, problem.head.policy(beginner), problem.head.policy(another))
        )
        assert same == base
        different += other != base
    assert different > 0


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(6,), (8, 7), (6, 6, 6)])
def test_the_bias_towards_the_base_is_as_large_as_asked(activation: str, hidden: tuple[int, ...]) -> None:
    problem = problem_of(tiny("ppo-tier-scaling"))
    actor = Actor(problem.head.shape(hidden, activation))
    assert problem.head.base_bias is not None
    begin_with_base(actor, problem.head.base_bias.times(2.5))
    slot = {field.name: i for i, field in enumerate(problem.head.layout.slot_fields)}
    observation = np.random.default_rng(0).random(problem.shape.observation_size).astype("f4")
    engines = problem.head.layout.parts(observation)["engine"]
    for name in slot:
        if name.startswith("base_"):
            engines[:, slot[name]] = 0
    engines[0, slot["base_to_pool"]] = engines[1, slot["base_to_tier_2"]] = engines[1, slot["base_closes"]] = 1
    engines[2, slot["base_to_tier_3"]] = 1
    outputs = actor(torch.as_tensor(observation)).detach().numpy().reshape(3, 10)
    for engine, choice in enumerate((0, 7, 8)):
        others = np.delete(outputs[engine], choice)
        assert outputs[engine, choice] - others.max() == pytest.approx(2.5, abs=1e-5)


def test_a_bias_needs_units_to_carry_it() -> None:
    problem = problem_of(tiny("ppo-tier-scaling", network={"hidden": [8, 4]}))
    with pytest.raises(TrainingError, match="a layer of 4 units; here each should have 6 or more"):
        new(problem)


def test_scores_of_empty_slots_are_nobodys_doing() -> None:
    problem = problem_of(tiny("ppo-request-ranking"))
    model = new(problem)
    env = Sb3VecEnv(problem.venv)
    env.seed(0)
    observations = torch.as_tensor(env.reset())
    present = problem.head.layout.parts(observations.numpy())["request"][..., 0] > 0
    assert not present.all()
    actions = torch.randn(present.shape)
    _, log_prob, _ = model.policy.evaluate_actions(observations, actions)
    (gradient,) = torch.autograd.grad(log_prob.sum(), model.policy.log_std)
    seen = torch.as_tensor(present)
    distance = (actions - model.policy.action_net(observations)) / model.policy.log_std.exp()
    assert gradient.item() == pytest.approx(((distance**2 - 1) * seen).sum().item(), rel=1e-4)


def test_weights_go_there_and_back(problem: Problem) -> None:
    network = Network.random(problem.shape, np.random.default_rng(0))
    layers = actor_layers(new(problem))
    load_network(layers, network)
    found = network_of(layers, problem.shape)
    np.testing.assert_allclose(found.weights.values, network.weights.values, rtol=1e-6)  # float32 in between
