"""The episode as a whole, as pictures show it above everything else."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.simulator.features.front import has_arrived
from servegym.simulator.runs.simulation import Simulation


@dataclasses.dataclass(frozen=True)
class Head:
    """tdg_ratio: gain so far / ideal gain of all requests of the episode, as in `info`; nan: there is none to gain."""

    now_s: float
    gain: float
    tdg_ratio: float
    num_output_tokens: int
    on_time_tokens: int
    arrived: int
    finished: int
    decision: str  # for which the simulation has stopped
    action: str = ""  # the last, in words; empty: not known, or there was none

    @property
    def decisions(self) -> str:
        """The last action, and what is to be decided next."""
        return f"last action: {self.action}; {self.decision}" if self.action else self.decision

    @property
    def on_time(self) -> float:
        """Share of the tokens emitted so far that were in time; nan: there are none."""
        return self.on_time_tokens / self.num_output_tokens if self.num_output_tokens else np.nan


def head_of(simulation: Simulation, action: str = "") -> Head:
    arrays, status = simulation.arrays, simulation.arrays.status[0]
    arrived = has_arrived(arrays)
    arriving = ~(arrays.outcomes["ready_s"] > simulation.scenario.until_s)
    ideal = simulation.scenario.gain.ideal(simulation.scenario.workload.table)[arriving].sum()
    return Head(
        now_s=float(status.now_s),
        gain=float(status.gain),
        tdg_ratio=float(status.gain / ideal) if ideal > 0 else np.nan,
        num_output_tokens=int(arrays.requests["num_output_tokens"][arrived].sum()),
        on_time_tokens=int(arrays.outcomes["on_time_tokens"][arrived].sum()),
        arrived=int(arrived.sum()),
        finished=int(status.finished),
        decision=decision_of(simulation),
        action=action,
    )


def decision_of(simulation: Simulation) -> str:
    """What is to be decided next, in words."""
    status = simulation.arrays.status[0]
    if simulation.ended:
        return "the episode is over"
    if status.deciding_request >= 0:
        return f"to decide: where request {status.deciding_request} goes"
    if status.deciding_check:
        return "to decide: tiers of the engines"
    if status.deciding_engine >= 0:
        running = simulation.arrays.engines[status.deciding_engine].batch_length > 0
        what = "whether to suspend the batch" if running else "next batch"
        return f"to decide: {what} of engine {status.deciding_engine}"
    return "nothing has happened yet"
