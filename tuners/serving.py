"""Serving a scenario to its end for a training, and what the objective asks of it."""

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

    1 and 0 s where nothing arrived. A run that its policies bring to a standstill counts as if nothing had been served,
    on all engines, up to the latest time of a run: figures of the part that was served would flatter it.
    """

    gain_ratio: float
    slo_attainment: float
    ttft_s_p99: float
    engines_in_service: float


def outcome_of(runs: Sequence[Scenario], index: int) -> Outcome:
    """That of one of some scenarios. (All of them are sent once to where they run.)"""
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
