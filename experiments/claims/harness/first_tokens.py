"""First tokens in time, as FlowPrefill counts: the share of requests, the highest rate and the tightest SLOs.

Loads are relative to what the prefill engine could do if it served one whole prompt after the other (`capacity_per_s`).
A run ends when the last TTFT deadline is past: a request without a token by then has missed it.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from experiments.claims.harness.cells import Cell, deployment_of
from experiments.claims.harness.goodput import arrivals, unit_arrivals
from experiments.claims.harness.served import begin
from experiments.claims.harness.settings import FACTS_REQUESTS, FULL_SEED, Setting, idle_prefill_s, profile
from experiments.claims.harness.slo_scale import least
from experiments.without_steps import scheduler_without_steps
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.state import SimulationState
from servegym.simulator.runs.simulation import Simulation

ATTAINMENT = 0.9  # FlowPrefill, section 6.1
LOADS = (0.02, 4.0)  # between which goodput is looked for
SCALES = (0.02, 20.0)  # between which the least SLO scale is
LOOKS = 12  # times at which a run is looked at, and given up where it has failed already
ONE_AND_ONE = "prefill=1,decode=1"


@functools.cache
def capacity_per_s(setting: Setting) -> float:
    """Prompts per second that a prefill engine serves whole, one at a time, never idle."""
    table = unit_arrivals(setting, FULL_SEED, "", FACTS_REQUESTS).table
    return 1 / float(idle_prefill_s(setting.device, table).mean())


def scenario_at(cell: Cell, load: float, duration_s: float, scale: float = 1.0) -> Scenario:
    """Arrivals of so long a time, their TTFT SLOs scaled. Of a seed they are the same at two loads but for the rate."""
    workload = arrivals(cell.setting, cell.seed, cell.slo, load * capacity_per_s(cell.setting), duration_s)
    workload = workload.replace(ttft_slo_s=scale * workload.table["ttft_slo_s"])
    end_s = float((workload.table["arrival_s"] + workload.table["ttft_slo_s"]).max())
    deployment = deployment_of(cell.device, cell.engines, cell.operators)
    front_end = profile(cell.device).front_end
    return Scenario(workload, deployment, scheduler_without_steps(cell.scheduler), until_s=end_s, front_end=front_end)


def missed(arrays: SimulationState, now_s: float) -> np.ndarray:
    """bool[requests]: the first token came late, or is late and has not come."""
    first_s, deadline_s = arrays.outcomes["first_token_s"], arrays.requests["first_deadline_s"]
    return np.where(np.isnan(first_s), deadline_s <= now_s, first_s >= deadline_s)


def attainment(cell: Cell, load: float, duration_s: float, scale: float = 1.0) -> float:
    """Share of the requests with their first token in time."""
    run = begin(scenario_at(cell, load, duration_s, scale))
    run.run()
    return float(1 - missed(run.arrays, run.scenario.until_s).mean())


def is_served(cell: Cell, load: float, duration_s: float, scale: float = 1.0) -> bool:
    """Whether enough requests have their first token in time. A run ends as soon as too many have not."""
    whole = scenario_at(cell, load, duration_s, scale)
    run, most = begin(whole), (1 - ATTAINMENT) * len(whole.workload)
    for until_s in np.linspace(0, whole.until_s, LOOKS + 1)[1:]:
        run.scenario = dataclasses.replace(whole, until_s=float(until_s))
        run.run()
        if missed(run.arrays, float(until_s)).sum() > most:
            return False
    return True


def goodput_per_s(cell: Cell, duration_s: float) -> float | None:
    """The highest rate, requests per second, at which enough first tokens come in time; None: not within `LOADS`."""
    longest = least(lambda gap: is_served(cell, 1 / gap, duration_s), 1.0, 1 / LOADS[1], 1 / LOADS[0])
    return None if longest is None else capacity_per_s(cell.setting) / longest


def least_scale(cell: Cell, load: float, duration_s: float) -> float | None:
    """The smallest factor of all TTFT SLOs with which enough first tokens come in time; None: not within `SCALES`."""
    return least(lambda scale: is_served(cell, load, duration_s, scale), 1.0, *SCALES)


def run_to_the_end(cell: Cell, load: float, requests: int) -> tuple[Simulation, dict[str, Any]]:
    """All requests served, however late: attainment, and first tokens per second from the first arrival to the last."""
    rate_per_s = load * capacity_per_s(cell.setting)
    whole = dataclasses.replace(scenario_at(cell, load, requests / rate_per_s), until_s=np.inf)
    run = begin(whole)
    run.run()
    first_s = run.arrays.outcomes["first_token_s"]
    return run, {
        "attainment": float(1 - missed(run.arrays, np.inf).mean()),
        "first_tokens_per_s": float(len(first_s) / first_s.max()),
    }
