"""Episodes with sessions and closed loops."""

import dataclasses

import numpy as np
import pytest

from servegym.envs.agents import BaseAgent, play
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.workload import Workload
from tests.envs.small import IDS, drawn, make, outcome_bytes, simulated


@pytest.mark.parametrize("limits", [{}, {"clients": 3, "max_concurrency": 2}])
@pytest.mark.parametrize("name", IDS)
def test_a_heuristic_is_an_agent_where_requests_follow_others(name: str, limits: dict[str, int]) -> None:
    scenario = drawn(name)
    n = len(scenario.workload)
    after = np.where(np.arange(n) % 3 == 0, -1, np.arange(n) - 1)  # sessions of three turns
    columns = {field: scenario.workload.table[field] for field in scenario.workload.table.dtype.names}
    workload = Workload.from_columns(columns, turns=SessionDependencies(after, np.full(n, 0.125)))
    scenario = dataclasses.replace(scenario, workload=workload, **limits)
    env = make(name, scenario)
    play(env, BaseAgent())
    assert outcome_bytes(env.simulation.arrays) == simulated(env, scenario)
    # All turns may arrive, so all count.
    assert env._episode_batch.ideal_gain[0] == scenario.gain.ideal(workload).sum()
