"""ClusterRouting with an action that refuses the request."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from servegym.baselines.artifact.files import load_policy, save_policy
from servegym.baselines.registry import router
from servegym.envs.agents import BaseAgent, play
from servegym.errors import EnvError
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation
from servegym.tuners.decision_head import NetworkAgent
from tests.baselines.learned.cases import refusing_where_late
from tests.envs.small import drawn, make, outcome_bytes, simulated, steps
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


@pytest.mark.parametrize("base", ["min-load", "prefix-affinity:refuse=0.5"])
def test_a_network_that_refuses_decides_alike_in_the_environment_and_from_a_file(base: str, tmp_path: Path) -> None:
    scenario = dataclasses.replace(refusing(), router=router(base))
    env = make(NAME, scenario, refuse=True)
    policy = refusing_where_late(router(base), env.interface.engines)
    total = play(env, NetworkAgent(env.interface, policy.network))
    again = load_policy(save_policy(policy, tmp_path / "mine.json", {}))
    assert again.controls == ("refuse",)
    alone = Simulation(dataclasses.replace(scenario, router=again)).run()
    assert outcome_bytes(alone.arrays) == outcome_bytes(env.simulation.arrays)
    assert total == pytest.approx(alone.summary["tdg_ratio"], abs=1e-9)
    without = Simulation(scenario).run().arrays.status[0].refused
    assert alone.arrays.status[0].refused not in (0, without, len(scenario.workload))


def test_the_last_slot_is_that_of_refusing() -> None:
    """It is empty but for the base's choice: whether that is to refuse, and how far refusing is from it."""
    env = make(NAME, refusing(1.5), refuse=True, sees="caching")
    names = [field.name for field in env.interface.layout.slot_fields]
    engines, said = env.interface.engines, set()
    for observation, _, over, _, info in steps(env, BaseAgent()):
        if over:
            break
        slot = dict(zip(names, env.interface.layout.parts(observation)["engine"][-1].tolist(), strict=True))
        refused = info["base_action"] == engines
        assert (slot.pop("chosen"), slot.pop("base_gap")) == (float(refused), 1.0 - float(refused))
        assert not any(slot.values())
        said.add(bool(refused))
    assert said == {False, True}


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
