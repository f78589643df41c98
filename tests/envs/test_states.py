"""An episode can be gone on with from any of its decisions, as often as one likes."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from servegym.envs.env import ServingEnv
from servegym.errors import EnvError
from servegym.simulator.inputs.scenario import Scenario
from tests.envs.small import IDS, drawn, frozen, make, outcome_bytes
from tests.envs.test_vector import make_vector, of_one, same

OPTIONS = {"shaping": 0.3, "discount": 0.99}


def begun(name: str, steps: int) -> tuple[ServingEnv, Any]:
    """An environment after some steps of any actions, and what it showed last."""
    env = make(name, **OPTIONS)
    env.action_space.seed(3)
    seen = env.reset(seed=5)
    for _ in range(steps):
        seen = env.step(env.action_space.sample())
        assert not (seen[2] or seen[3]), "too few decisions for this test"
    return env, seen


def played(env: ServingEnv) -> list[Any]:
    """All that an environment shows, under any actions, the same each time: under these an episode may never end."""
    env.action_space.seed(7)
    shown, over = [], False
    while not over and len(shown) < 80:
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        over = terminated or truncated
        shown.append((frozen(observation), reward, terminated, truncated, info))
    return [*shown, outcome_bytes(env.simulation.arrays)]


def equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and one[-1] == other[-1] and all(
        a[:4] == b[:4] and same(a[4], b[4]) for a, b in zip(one[:-1], other[:-1], strict=True)
    )  # fmt: skip


@pytest.mark.parametrize("name", IDS)
def test_what_follows_is_the_same_each_time(name: str) -> None:
    env, seen = begun(name, 4)
    state = env.clone_state()
    first = played(env)
    for again in (env, env, make(name, **OPTIONS)):
        observation, info = again.restore_state(state)
        assert frozen(observation) == frozen(seen[0]) and same(info, seen[-1])
        assert equal(played(again), first)


@pytest.mark.parametrize("name", IDS)
def test_a_deep_copy_goes_on_as_the_original_would(name: str) -> None:
    env, _ = begun(name, 4)
    other = copy.deepcopy(env)
    assert other.simulation is not env.simulation
    assert equal(played(other), played(env))
    assert frozen(other.reset()[0]) == frozen(env.reset()[0]), "the same random numbers"
    assert copy.deepcopy(make(name))._episode_batch is None
    assert pickle.loads(pickle.dumps(env))._episode_batch is None


def test_the_end_is_a_state_too() -> None:
    env, (_, info) = begun(IDS[0], 0)
    over = False
    while not over:
        _, _, over, _, info = env.step(info["base_action"])
    with pytest.raises(Exception, match="episode is over"):
        copy.deepcopy(env).step(env.action_space.sample())


@pytest.mark.parametrize("name", IDS)
def test_actions_are_tried_side_by_side(name: str) -> None:
    env, _ = begun(name, 4)
    state, vector = env.clone_state(), make_vector(name, 3, autoreset_mode="Disabled", **OPTIONS)
    vector.reset(seed=1)
    for i in range(3):
        vector.restore_state(i, state)
    actions = [env.action_space.sample() for _ in range(3)]
    observations, rewards, _, _, infos = vector.step(np.array(actions))
    for i, action in enumerate(actions):
        env.restore_state(state)
        observation, reward, _, _, info = env.step(action)
        assert frozen(observations[i]) == frozen(observation) and rewards[i] == reward
        assert same(info, of_one(infos, i))
    assert same(env.restore_state(vector.clone_state(1))[1], of_one(infos, 1))


def test_settings_are_those_of_the_environment() -> None:
    scenario: Scenario = drawn("EngineBatching-v0")
    one, every_second = make("EngineBatching-v0", scenario), make("EngineBatching-v0", scenario, batches_per_step=2)
    one.reset()
    every_second.restore_state(one.clone_state())
    for env in (one, every_second):
        env.step(env.action_space.sample() * 0)
    iterations = [env.simulation.arrays.engines["iterations"].sum() for env in (one, every_second)]
    assert iterations[1] == iterations[0] + 1


def test_states_of_other_environments_are_refused() -> None:
    with pytest.raises(EnvError, match="no episode before the first reset"):
        make("EngineBatching-v0").clone_state()
    env, _ = begun("EngineBatching-v0", 1)
    with pytest.raises(EnvError, match=r"a state of EngineBatching.* it should be one of ClusterRouting"):
        make("ClusterRouting-v0").restore_state(env.clone_state())
    few, many = make("RequestRanking-v0"), make("RequestRanking-v0", slots=9)
    few.reset()
    with pytest.raises(EnvError, match="numbers in an observation"):
        many.restore_state(few.clone_state())
