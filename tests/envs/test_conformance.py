"""What Gymnasium and those that use it expect of every registered environment."""

import inspect
import pickle
import re
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from servegym.envs.agents import BaseAgent, RandomAgent
from servegym.envs.registration import ENVIRONMENTS
from tests.envs.small import IDS, frozen, make, played, steps

SECTIONS = (
    "Description", "Action Space", "Observation Space", "Rewards", "Starting State", "Episode End", "Arguments",
    "Version History",
)  # fmt: skip


def test_every_registered_environment_is_checked() -> None:
    assert set(IDS) <= set(gym.registry)


@pytest.mark.parametrize("name", IDS)
def test_gymnasium_finds_nothing_to_warn_of(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".* is out of date")  # of one that has a later version
        check_env(make(name))


@pytest.mark.parametrize("name", IDS)
def test_stable_baselines_finds_nothing_to_warn_of(name: str) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".* is out of date")
        checker.check_env(make(name))


@pytest.mark.parametrize("name", IDS)
def test_it_can_be_made_without_arguments(name: str) -> None:
    env = gym.make(f"servegym:{name}").unwrapped
    observation, _ = env.reset(seed=0)
    assert observation.any()
    assert env.observation_space.contains(observation)


@pytest.mark.parametrize("name", IDS)
def test_the_same_seed_gives_the_same_bytes(name: str) -> None:
    first, second = make(name), make(name)
    episode = played(first, RandomAgent(first.action_space, 5), seed=3)
    assert len(episode) > 5
    assert episode == played(second, RandomAgent(second.action_space, 5), seed=3)
    assert episode == played(first, RandomAgent(first.action_space, 5), seed=3)  # a second time in the same one


@pytest.mark.parametrize("name", IDS)
def test_another_seed_and_the_next_episode_are_others(name: str) -> None:
    env = make(name)
    first = played(env, BaseAgent(), seed=3)
    second, third = played(env, BaseAgent()), played(env, BaseAgent(), seed=4)
    assert first != second != third != first
    assert played(env, BaseAgent(), seed=3) == first
    assert played(env, BaseAgent()) == second  # the seed says what all episodes after it are


@pytest.mark.parametrize("name", IDS)
def test_a_pickled_copy_begins_with_a_reset(name: str) -> None:
    env = make(name)
    expected = played(make(name), BaseAgent(), seed=3)
    fresh = pickle.loads(pickle.dumps(env))
    assert played(fresh, BaseAgent(), seed=3) == expected

    env.reset(seed=8)
    env.step(BaseAgent().act(*env.reset(seed=8)))
    copy = pickle.loads(pickle.dumps(env))
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        copy.step(env.action_space.sample())
    assert played(copy, BaseAgent(), seed=3) == expected
    # The copy has the random generator of the original: their next episodes are the same.
    env.reset(seed=8)
    assert played(pickle.loads(pickle.dumps(env)), BaseAgent()) == played(env, BaseAgent())


@pytest.mark.parametrize("name", IDS)
def test_a_step_needs_an_episode(name: str) -> None:
    env = make(name)
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        env.step(env.action_space.sample())
    played(env, BaseAgent(), seed=0)
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        env.step(env.action_space.sample())


@pytest.mark.parametrize("name", IDS)
def test_observations_are_in_their_space(name: str) -> None:
    env = make(name)
    parts = make(name, observation="dict")
    assert isinstance(parts.observation_space, gym.spaces.Dict)
    agents = (RandomAgent(one.action_space, 1) for one in (env, parts))
    names = [field for field, _ in env.interface.layout]
    varied = np.zeros(len(names), bool)
    first = None
    for (flat, *_), (split, *_) in zip(
        steps(env, next(agents), seed=1), steps(parts, next(agents), seed=1), strict=True
    ):
        assert env.observation_space.contains(flat), [
            (names[i], flat[i])
            for i in np.flatnonzero((flat < env.observation_space.low) | (flat > env.observation_space.high))
        ]
        assert parts.observation_space.contains(split)
        assert frozen(dict(split)) == frozen(env.interface.layout.parts(flat))
        first = flat if first is None else first
        varied |= flat != first
    assert varied.mean() > 0.2  # the episode shows more than one state


@pytest.mark.parametrize("name", IDS)
def test_what_was_returned_stays_as_it_is(name: str) -> None:
    env = make(name)
    kept, copies = [], []
    for step in steps(env, BaseAgent(), seed=1):
        kept.append(step)
        copies.append(frozen(step))
    assert [frozen(step) for step in kept] == copies


@pytest.mark.parametrize(("name", "module", "env"), ENVIRONMENTS)
def test_docstrings_have_every_section(name: str, module: str, env: str) -> None:
    doc = inspect.getdoc(type(make(name)))
    assert doc is not None
    assert tuple(re.findall(r"^## (.*)$", doc, re.MULTILINE)) == SECTIONS
    arguments = doc.partition("## Arguments")[2]
    for parameter in inspect.signature(type(make(name))).parameters:
        assert parameter == "options" or f"`{parameter}" in arguments, parameter
