"""Simulates a scenario to its end for a training, and takes the figures that the objective needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from servegym.errors import StalledError
from servegym.simulator.features.front import has_arrived
from servegym.simulator.inputs.cluster import cluster_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.types import LATEST_S
from servegym.simulator.runs.simulation import Simulation


class Outcome(NamedTuple):
    """TDG ratio, SLO attainment, p99 of the time to a first token, s, and engines in service on average.

    Ratios are 1 and times 0 s if nothing arrived. A run that its policies bring to a standstill counts as if nothing
    had been served, with all engines in service, up to the latest time of a run: figures of the served part would be
    too good.
    """

    gain_ratio: float
    slo_attainment: float
    ttft_s_p99: float
    engines_in_service: float


def outcome_of(runs: Sequence[Scenario], index: int) -> Outcome:
    """The outcome of one of some scenarios. (All scenarios are sent to a worker once.)"""
    try:
        summary = Simulation(runs[index]).run().summary
    except StalledError:
        return Outcome(0.0, 0.0, LATEST_S, float(cluster_of(runs[index].deployment).engines))
    attainment, wait_s = summary["slo_attainment"], summary["ttft_s"]["p99"]
    in_service = summary["cost_engine_s"] / summary["span_s"] if summary["span_s"] else 0.0
    return Outcome(summary["tdg_ratio"], 1.0 if attainment is None else attainment, wait_s or 0.0, in_service)


def tdg_ratio(scenario: Scenario) -> float:
    """`outcome_of` for the TDG ratio alone, which takes less time."""
    simulation = Simulation(scenario)
    try:
        arrays = simulation.run().arrays
    except StalledError:
        return 0.0
    ideal = scenario.gain.ideal(scenario.workload)[has_arrived(arrays)]
    return float(arrays.status[0].gain / ideal.sum())
