"""Number of requests that a scheduler considers urgent, found by calling it again at each of its decisions."""

from __future__ import annotations

import numpy as np
import pandas as pd

from servegym.errors import ExperimentError
from servegym.evaluation.reports.iterations import iterations
from servegym.simulator.records.types import LEAVE_OUT
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation


def urgency(result: Result) -> pd.DataFrame:
    """Return a row for each iteration: engine, start_s, end_s, and how many requests were urgent and normal when it
    started; 0 at engines whose scheduler has no urgency.

    The timeline has no tiers, which would make it many times as long. So the scenario is stepped through again, and the
    scheduler is called before each batch. Raises ExperimentError for a scheduler without urgency, and for a run that
    its scenario does not reproduce (a controller changed its parameters).
    """
    scenario = result.scenario
    if scenario.scheduler.urgent_tier is None:
        raise ExperimentError(f"{scenario.scheduler.name} does not distinguish urgent requests from normal ones")
    table = iterations(result)[["engine", "start_s", "end_s"]]
    simulation = Simulation(scenario)
    urgent, normal = np.zeros(len(table), "i8"), np.zeros(len(table), "i8")
    for row, (engine, start_s) in enumerate(zip(table["engine"].tolist(), table["start_s"].tolist(), strict=True)):
        going_on, status = simulation.step(), simulation.arrays.status[0]
        # Skip decisions without an iteration: the engine waits, resumes a batch, or is running one.
        while going_on and (status.now_s, status.deciding_engine) < (start_s, engine):
            going_on, status = simulation.step(), simulation.arrays.status[0]
        if not going_on or status.deciding_engine != engine or status.now_s != start_s:
            raise ExperimentError(f"run again, the scenario decides otherwise at {start_s:g} s")
        policy = simulation.settings.schedulers[simulation.arrays.engines[engine].pool]
        if policy.urgent_tier is None:
            continue
        tiers = simulation.ranks_of(policy, simulation.arrays.parameters[engine], engine, start_s)["tier"]
        urgent[row] = np.count_nonzero(tiers <= policy.urgent_tier)
        normal[row] = np.count_nonzero((tiers > policy.urgent_tier) & (tiers != LEAVE_OUT))
    return table.assign(urgent=urgent, normal=normal)
