"""ClusterRouting with an action that refuses the request."""

import dataclasses

import numpy as np
import pytest

from servegym.baselines.registry import router
from servegym.envs.agents import BaseAgent, play
from servegym.errors import EnvError
from servegym.simulator.inputs.scenario import Scenario
from tests.envs.small import drawn, make, outcome_bytes, simulated
from tests.envs.test_vector import make_vector

NAME = "ClusterRouting-v0"


def refusing(refuse: float = 0.5) -> Scenario:
    """Under a base that refuses some of the requests."""
    scenario = drawn(NAME)
    workload = scenario.workload.replace(arrival_s=scenario.workload.table["arrival_s"] / 8)
    return dataclasses.replace(
        scenario, workload=workload, router=router("prefix-affinity").with_settings(refuse=refuse)
    )


@pytest.mark.parametrize("refuse", [False, True])
def test_a_base_that_refuses_is_an_agent_whether_the_agent_may_or_not(refuse: bool) -> None:
    scenario = refusing()
    env = make(NAME, scenario, refuse=refuse)
    play(env, BaseAgent())
    assert outcome_bytes(env.simulation.arrays) == simulated(env, scenario)
    assert env.simulation.arrays.status[0].refused > 0


def test_an_agent_refuses_what_it_likes_before_the_first_token() -> None:
    env = make(NAME, drawn(NAME), refuse=True)
    engines = env.action_space.n - 1
    _, info = env.reset(seed=0)
    assert info["action_mask"].shape == (engines + 1,) and info["action_mask"][engines] == 1
    assert "refuse request" in env.interface.in_words(np.array([engines]), env.simulation, 0)
    total, ended = 0.0, False
    while not ended:
        _, reward, ended, cut, _ = env.step(engines)
        total, ended = total + reward, ended or cut
    status = env.simulation.arrays.status[0]
    assert total == 0 and (status.finished, status.refused) == (0, len(env.simulation.scenario.workload))


def test_without_it_the_last_action_is_no_refusal() -> None:
    env = make(NAME, drawn(NAME))
    env.reset(seed=0)
    assert env.action_space.n == 4 and make(NAME, drawn(NAME), refuse=True).action_space.n == 5
    with pytest.raises(EnvError, match="refuse='yes': it should be True or False"):
        make(NAME, refuse="yes")


def test_episodes_side_by_side_refuse_for_themselves() -> None:
    envs = make_vector(NAME, 2, scenario=drawn(NAME), refuse=True)
    envs.reset(seed=0)
    refused = envs.single_action_space.n - 1
    for _ in range(3):
        envs.step(np.array([refused, 0]))
    assert [int(one.arrays.status[0].refused) for one in envs.episode_batch.simulations] == [3, 0]
