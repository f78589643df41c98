"""Episodes behind a front end."""

import dataclasses

import numpy as np
import pytest

from servegym.envs.agents import BaseAgent, play
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.workload import Workload
from tests.envs.small import IDS, drawn, make, outcome_bytes, simulated


@pytest.mark.parametrize("sessions", [False, True])
@pytest.mark.parametrize("one_process", [False, True])
@pytest.mark.parametrize("name", IDS)
def test_a_heuristic_is_an_agent_behind_a_front_end(name: str, one_process: bool, sessions: bool) -> None:
    scenario, n = drawn(name), len(drawn(name).workload)
    scenario = dataclasses.replace(scenario, front_end=FrontEnd(0.01, 1e-5, 1e-4, 0.02, one_process))
    if sessions:
        after = np.where(np.arange(n) % 3 == 0, -1, np.arange(n) - 1)
        columns = {field: scenario.workload.table[field] for field in scenario.workload.table.dtype.names}
        workload = Workload.from_columns(columns, turns=SessionDependencies(after, np.full(n, 0.125)))
        scenario = dataclasses.replace(scenario, workload=workload, clients=3)
    env = make(name, scenario)
    play(env, BaseAgent())
    assert outcome_bytes(env.simulation.arrays) == simulated(env, scenario)
    assert (env.simulation.result().requests["engine_ttft_s"] >= 0).all()
