"""The PettingZoo environment: router and schedulers act together."""

import dataclasses
import inspect
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import servegym
from servegym.envs.agents import BaseAgent
from servegym.errors import ActionError, EnvError
from tests.envs.small import drawn, frozen, make, outcome_bytes, simulated, steps
from tests.envs.test_conformance import SECTIONS

pytest.importorskip("pettingzoo")

ROUTING = "ClusterRouting-v0"
Step = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


def make_parallel(scenario: Any = None, **arguments: Any) -> Any:
    from servegym.envs.parallel import ServingParallelEnv

    return ServingParallelEnv(drawn(ROUTING) if scenario is None else scenario, **arguments)


def with_base() -> Any:
    """The scenario of `make_parallel`, with the scheduler that is the environment's base."""
    return dataclasses.replace(drawn(ROUTING), scheduler=servegym.scheduler("slide-batching:steps=ignore"))


def base_actions(env: Any, infos: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {agent: infos[agent]["base_action"] for agent in env.agents}


def random_actions(env: Any, infos: dict[str, dict[str, Any]]) -> dict[str, Any]:
    mask = infos["router"]["action_mask"]
    return {agent: env.action_space(agent).sample(mask if agent == "router" else None) for agent in env.agents}


def parallel_steps(env: Any, actions_of: Callable[..., dict[str, Any]], **reset: Any) -> Iterator[Step]:
    observations, infos = env.reset(**reset)
    zero = dict.fromkeys(env.agents, 0.0)
    yield observations, zero, dict.fromkeys(env.agents, False), dict.fromkeys(env.agents, False), infos
    while env.agents:
        step = env.step(actions_of(env, infos))
        infos = step[-1]
        yield step


@pytest.mark.slow
def test_pettingzoo_finds_nothing_to_warn_of() -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    from tests.envs.small import SMALL

    source = SMALL[ROUTING].source
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(make_parallel(source), 300)
        parallel_seed_test(lambda: make_parallel(source), 100)


@pytest.mark.parametrize("scheduler", ["slide-batching", "sarathi-edf", "weighted-vtc"])
@pytest.mark.parametrize("router", ["min-load", "gorouting", "random"])
def test_heuristics_together_are_what_is_simulated(router: str, scheduler: str) -> None:
    scenario = dataclasses.replace(drawn(ROUTING), router=servegym.router(router))
    env = make_parallel(scenario, scheduler=scheduler)
    rewards = [rewards for _, rewards, *_ in parallel_steps(env, base_actions)]
    expected = simulated(make(ROUTING), dataclasses.replace(scenario, scheduler=servegym.scheduler(scheduler)))
    assert outcome_bytes(env.simulation.arrays) == expected
    ratio = env.result().summary["tdg_ratio"]
    for agent in env.possible_agents:
        assert sum(reward[agent] for reward in rewards) == pytest.approx(ratio, abs=1e-9)


@pytest.mark.slow
def test_each_is_shown_what_its_own_environment_shows() -> None:
    """The observations of those that decide, in turn; the others are shown their last again."""
    expected = {
        "router": [step[0] for step in steps(make(ROUTING, with_base()), BaseAgent())][:-1],
        "engine": [step[0] for step in steps(make("EngineBatching-v0", with_base()), BaseAgent())][:-1],
    }
    env = make_parallel()
    shown: dict[str, list[Any]] = {"router": [], "engine": []}
    last = {agent: np.zeros(env.observation_space(agent).shape, "f4") for agent in env.possible_agents}
    for observations, _, terminated, _, infos in parallel_steps(env, base_actions):
        if terminated["router"]:
            assert not any(observation.any() for observation in observations.values())
            break
        (decider,) = (agent for agent, info in infos.items() if info["deciding"])
        assert decider == env.decider
        for agent, observation in observations.items():
            assert env.observation_space(agent).contains(observation)
            if agent != decider:
                assert frozen(observation) == frozen(last[agent])
            last[agent] = observation
        shown[decider.partition("_")[0]].append(observations[decider])
        mask = infos["router"]["action_mask"]
        assert mask[3] == (decider != "router")  # three engines: there is no fourth to be sent to
    assert frozen(shown) == frozen(expected)
    assert env.decider is None


@pytest.mark.slow
def test_what_is_named_by_those_that_do_not_decide_is_not_used() -> None:
    env, other = make_parallel(), make_parallel()

    def with_noise(env: Any, infos: dict[str, dict[str, Any]]) -> dict[str, Any]:
        return {**random_actions(env, infos), env.decider: infos[env.decider]["base_action"]}

    def alone(env: Any, infos: dict[str, dict[str, Any]]) -> dict[str, Any]:
        return {env.decider: infos[env.decider]["base_action"]}

    assert [frozen(step) for step in parallel_steps(env, with_noise)] == [
        frozen(step) for step in parallel_steps(other, alone)
    ]
    assert outcome_bytes(env.simulation.arrays) == simulated(make(ROUTING), with_base())


@pytest.mark.slow
def test_everybodys_actions_count() -> None:
    def only(who: str) -> Callable[..., dict[str, Any]]:
        return lambda env, infos: {
            agent: (random_actions if agent.startswith(who) else base_actions)(env, infos)[agent]
            for agent in env.agents
        }

    outcomes = []
    for who in ("nobody", "router", "engine"):
        env = make_parallel()
        for agent in env.possible_agents:
            env.action_space(agent).seed(1)
        for _ in parallel_steps(env, only(who)):
            pass
        outcomes.append(outcome_bytes(env.simulation.arrays))
    assert outcomes[0] != outcomes[1] != outcomes[2] != outcomes[0]


def test_truncated_for_all() -> None:
    env = make_parallel(dataclasses.replace(drawn(ROUTING), until_s=1.0), shaping=0.5, discount=0.9)
    *_, (observations, rewards, terminated, truncated, infos) = parallel_steps(env, base_actions)
    assert set(truncated.values()) == {True} and set(terminated.values()) == {False}
    assert set(truncated) == set(terminated) == set(rewards) == set(observations) == set(env.possible_agents)
    assert infos["router"]["reward_terms"]["shaping"] != 0
    assert rewards["router"] == sum(infos["router"]["reward_terms"].values())
    assert env.agents == []
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        env.step({})


def test_all_are_told_of_the_whole_episode() -> None:
    env = make_parallel()
    _, infos = env.reset(seed=3)
    while env.agents:
        assert all("summary" not in info for info in infos.values())
        *_, infos = env.step(base_actions(env, infos))
    told = [info["summary"] for info in infos.values()]
    assert len(told) == len(env.possible_agents) and all(one == pytest.approx(told[0], nan_ok=True) for one in told)
    assert told[0]["gain_ratio"] == env.simulation.result().summary["gain_ratio"]


def test_a_pickled_copy_begins_with_a_reset() -> None:
    env = make_parallel()
    expected = [frozen(step) for step in parallel_steps(env, base_actions, seed=1)]
    env.reset(seed=1)
    copy = pickle.loads(pickle.dumps(env))
    assert copy.agents == []
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        copy.step({})
    assert [frozen(step) for step in parallel_steps(copy, base_actions, seed=1)] == expected


def test_spaces_are_seeded_one_by_one() -> None:
    env = make_parallel()
    samples = []
    for seed in (1, 2):
        env.action_space("engine_0").seed(5)
        env.action_space("engine_1").seed(seed)
        samples.append([env.action_space(agent).sample().tobytes() for agent in ("engine_0", "engine_1")])
    assert samples[0][0] == samples[1][0] and samples[0][1] != samples[1][1]


def test_bad_arguments_and_actions() -> None:
    with pytest.raises(EnvError, match=r"^engines=1: it should be a whole number, 2 to 4096$"):
        make_parallel(engines=1)
    with pytest.raises(EnvError, match=r"^render_mode 'video': it should be None, 'ansi' or 'rgb_array'$"):
        make_parallel(render_mode="video")
    with pytest.raises(EnvError, match=r"^there is no simulation before the first reset$"):
        make_parallel().result()
    with pytest.raises(EnvError, match=r"^a scenario of 3 engines; this environment is made for 2 to 2$"):
        make_parallel(engines=2).reset()
    env = make_parallel(render_mode="ansi")
    _, infos = env.reset()
    with pytest.raises(ActionError, match=r"^no action of router, which decides; it should be of shape \(\)$"):
        env.step({"engine_0": np.zeros(2)})
    with pytest.raises(ActionError, match=r"^an action of shape \(2,\) of router, which decides; it should be of"):
        env.step({"router": np.zeros(2)})
    with pytest.raises(ActionError, match=r"^an action of 'engine_9'; the agents are router, engine_0, engine_1, "):
        env.step({"router": 0, "engine_9": np.zeros(2)})
    for bad in (np.nan, 4, -1, 1.5, "first"):
        with pytest.raises(ActionError, match=rf"^action {bad!r} of router: it should be in Discrete\(4\)$"):
            env.step({"router": bad})
    assert env.decider == "router"
    env.step(base_actions(env, infos))
    assert isinstance(env.render(), str)
    env.close()
    assert env.agents == []


def test_the_docstring_has_every_section() -> None:
    doc = inspect.getdoc(type(make_parallel()))
    assert doc is not None
    assert tuple(re.findall(r"^## (.*)$", doc, re.MULTILINE)) == SECTIONS
