"""The times of a replay: the workload's own, from 0 on, and faster if one likes."""

from __future__ import annotations

import dataclasses
import math

from servegym.errors import ReplayError
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.workload import Workload


def timed(workload: Workload, speed: float = 1.0) -> Workload:
    """The workload with its first arrival at 0, arrivals and think times `speed` times as fast; SLOs stay.

    Raises ReplayError for a speed that is not above 0.
    """
    if not 0 < speed < math.inf:
        raise ReplayError(f"speed is {speed}; it should be above 0 (1: the workload's own times)")
    arrival_s = workload.table["arrival_s"]
    faster = workload.replace(arrival_s=(arrival_s - arrival_s[0]) / speed)
    if faster.turns is None:
        return faster
    return dataclasses.replace(faster, turns=SessionDependencies(faster.turns.after, faster.turns.think_s / speed))
