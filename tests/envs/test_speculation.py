"""Episodes of engines that speculate."""

import dataclasses

import pytest

from servegym.envs.agents import BaseAgent, play
from servegym.simulator.features.speculation import Speculation
from servegym.simulator.inputs.deployment import Deployment
from tests.envs.small import IDS, drawn, make, outcome_bytes, simulated


@pytest.mark.parametrize("name", IDS)
def test_a_heuristic_is_an_agent_of_engines_that_speculate(name: str) -> None:
    scenario, one = drawn(name), Speculation(4, (0.9, 0.7, 0.5, 0.3), 1e-3, 1e-5)
    deployment = scenario.deployment
    pools = tuple(dataclasses.replace(pool, speculation=one) for pool in deployment.pools)
    changed = pools[0] if isinstance(deployment, Deployment) else dataclasses.replace(deployment, pools=pools)
    scenario = dataclasses.replace(scenario, deployment=changed, draft_seed=5)
    env = make(name, scenario)
    play(env, BaseAgent())
    assert outcome_bytes(env.simulation.arrays) == simulated(env, scenario)
    assert env.simulation.arrays.engines["totals"]["accepted_tokens"].sum() > 0
