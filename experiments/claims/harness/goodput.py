"""Goodput: the highest rate at which few enough requests violate their SLOs, found by bisection, one seed at a time."""

import functools
import math
from typing import Any

import numpy as np

from experiments.claims.harness.cells import Cell, deployment_of
from experiments.claims.harness.served import begin
from experiments.claims.harness.settings import Setting, profile, saturation_per_s, seed_of, words_of
from experiments.without_steps import scheduler_without_steps
from servegym.evaluation.bisection import failed_counts, highest_rate
from servegym.scenarios.building import workload_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload

MOST_VIOLATIONS = 0.01  # share of the requests (QoServe, section 4.1.2)
LOADS = (0.1, 5.0)  # of one co-located engine, between which goodput is looked for
PRECISION = 1.02  # lowest rate found to be too much over the highest found to be served
STEP = 1.3  # from the first rate, saturation, up or down to one on the other side


def goodput(cell: Cell, duration_s: float, interactive: bool = False) -> dict[str, Any]:
    """Requests per second at which at most `MOST_VIOLATIONS` of the arrivals of so long a time violate their SLOs.

    goodput_per_s: the highest rate that was found to be served; None where it is not within `LOADS`.
    runs: how many it took. The arrivals of a seed at two rates are the same but for their scale.
    interactive: all requests are judged by TTFT and TBT.
    """
    saturation = saturation_per_s(cell.setting)
    low, high = (saturation * load for load in LOADS)
    found = highest_rate(
        lambda rate: is_served(cell, rate, duration_s, interactive), saturation, low, high,
        precision=PRECISION, step=STEP,
    )  # fmt: skip
    within = found.served is not None and found.refused is not None
    return {"goodput_per_s": found.served if within else None, "runs": found.runs}


def is_served(cell: Cell, rate_per_s: float, duration_s: float, interactive: bool) -> bool:
    """Whether few enough requests violate their SLOs."""
    workload = arrivals(cell.setting, cell.seed, cell.slo, rate_per_s, duration_s)
    if interactive:
        workload = workload.replace(ttlt_slo_s=np.inf)
    return serves(scenario_of(cell, workload), np.ones((1, len(workload)), bool))


def serves(whole: Scenario, groups: np.ndarray) -> bool:
    """Whether of no group more than `MOST_VIOLATIONS` of the requests violate their SLOs. A run ends as soon as too
    many have. groups: bool[groups, requests]."""
    return failed_counts(begin(whole), groups, MOST_VIOLATIONS * groups.sum(axis=1)) is not None


def scenario_of(cell: Cell, workload: Workload) -> Scenario:
    deployment, front_end = deployment_of(cell.device, cell.engines), profile(cell.device).front_end
    return Scenario(workload, deployment, scheduler_without_steps(cell.scheduler), front_end=front_end)


def arrivals(setting: Setting, seed: int, slo: str, rate_per_s: float, duration_s: float) -> Workload:
    """The requests that arrive in so long a time."""
    requests = max(1, round(rate_per_s * duration_s))
    unit = unit_arrivals(setting, seed, slo, 2 ** math.ceil(math.log2(requests)))
    return Workload(unit.table[:requests], unit.name, unit.provenance).replace(
        arrival_s=unit.table["arrival_s"][:requests] / rate_per_s
    )


@functools.lru_cache(maxsize=16)
def unit_arrivals(setting: Setting, seed: int, slo: str, requests: int) -> Workload:
    """Poisson arrivals at 1 request/s."""
    return workload_of(
        ServingSpec().replaced(**words_of(setting, slo), requests=requests), seed_of(setting.family, seed), 1.0
    )
