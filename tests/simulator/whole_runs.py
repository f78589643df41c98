"""Whole runs of random scenarios, at once or step by step."""

import pytest

from servegym.baselines.registry import scheduler_names
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

every_scheduler = pytest.mark.parametrize("name", scheduler_names())


def finished(scenario: Scenario, record_timeline: bool = True) -> Simulation:
    simulation = Simulation(scenario, record_timeline)
    simulation.run()
    return simulation


def stepped(scenario: Scenario, record_timeline: bool = True) -> Simulation:
    simulation = Simulation(scenario, record_timeline)
    while simulation.step():
        pass
    return simulation
