"""Load: an arrival rate relative to what the deployment can serve of a trace."""

from __future__ import annotations

import math

import numpy as np

from servegym.baselines.registry import scheduler
from servegym.experiments.errors import ExperimentError
from servegym.latency_models.profile import Profile
from servegym.simulator.simulation import Scenario, Simulation
from servegym.simulator.workload import Workload
from servegym.traces.workloads import build_workload, load_trace

LOADS = {"light": 0.3, "medium": 0.7, "high": 1.0, "overload": 1.4}

SATURATION_SCHEDULER = "sarathi-fcfs"
# Of an engine. At the end of the run fewer and fewer requests share a batch, so a short run looks slower:
# of azure-conv 1000 requests give 7.14 requests/s, 4000 give 7.26 and 20,000 give 7.38, in 1.2 s instead of 0.1.
SATURATION_REQUESTS = 4000
SATURATION_SEED = 0


def parse_load(text: str) -> float:
    """A load from its name in `LOADS` or a number above 0. Raises ExperimentError."""
    try:
        load = LOADS[text] if text in LOADS else float(text)
    except ValueError:
        load = math.nan
    if not 0 < load < math.inf:
        names = ", ".join(f"{name} ({value:g})" for name, value in LOADS.items())
        raise ExperimentError(f"a load of {text!r}: it should be a number above 0, or one of {names}")
    return load


def load_title(load: float) -> str:
    """The load as a reader knows it: 0.7 (medium)."""
    names = [name for name, value in LOADS.items() if value == load]
    return f"{load:.4g} ({names[0]})" if names else f"{load:.4g}"


def saturation_rate_per_s(trace: str, profile: Profile, engines: int = 1, slo: str = "proserve") -> float:
    """Requests per second of sarathi-fcfs when all requests are there at time 0, to the end of the last.

    Served are `SATURATION_REQUESTS` an engine: of a family those of seed 0; of a file that has more, as many
    evenly spaced over it, so that a trace whose lengths drift through the day is represented as a whole.
    The recipe matters too: Sarathi-Serve sizes its batches to the smallest TPOT SLO.

    Raises WorkloadError for an unknown trace or recipe, DeploymentError for a request that fits no engine.
    """
    deployment = profile.deployment(engines)
    workload = _all_at_once(trace, slo, SATURATION_REQUESTS * engines, profile.idle_tpot_s)
    result = Simulation(Scenario(workload, deployment, scheduler(SATURATION_SCHEDULER))).run()
    return result.summary["throughput_requests_per_s"]


def _all_at_once(trace: str, slo: str, requests: int, idle_tpot_s: float) -> Workload:
    available = len(load_trace(trace, seed=SATURATION_SEED, default_requests=requests))
    workload = build_workload(
        trace, requests=available, slo=slo, arrivals="at-once", seed=SATURATION_SEED, idle_tpot_s=idle_tpot_s
    )
    if available <= requests:
        return workload
    rows = np.linspace(0, available - 1, requests).round().astype("i8")
    return Workload(workload.table[rows], workload.name, workload.provenance)
