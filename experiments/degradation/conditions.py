"""What is wrong in a run, and a run with it."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.kept_runs import served
from servegym.evaluation.ledger import Row
from servegym.latency_models.model import LatencyModel
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.predictors import Predictor
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation

FIRST_SEED = 3_100_000
GAIN, TUNED, DEFAULT = "expected-gain", "tuned slide-batching", "slide-batching"
POLICIES = {
    GAIN: "expected-gain:steps=ignore",
    TUNED: "slide-batching:hopeless=include,eta=0.044,gamma=3,density_exponent=1.5,steps=ignore",
    DEFAULT: "slide-batching:steps=ignore",
    "learned": "learned:cma-engine-batching",
    "sarathi-fcfs": "sarathi-fcfs",
}
TDG, ATTAINMENT = FIGURES = ("tdg_ratio", "slo_attainment")
NOISE, DRIFT, ESTIMATOR, LENGTHS, PREDICTOR = "noise", "drift", "estimator", "lengths", "predictor"


class Condition(NamedTuple):
    """What is wrong, by how much, and whether the estimator is corrected online."""

    what: str
    level: float
    corrected: bool = False


NOTHING = Condition("nothing", 0.0)
CONDITIONS = (
    NOTHING,
    *(Condition(NOISE, level) for level in (0.05, 0.1, 0.2, 0.4, 0.8)),
    *(Condition(DRIFT, level) for level in (0.1, 0.25, 0.5, 1.0)),
    *(Condition(DRIFT, level, True) for level in (0.5, 1.0)),
    *(Condition(ESTIMATOR, level) for level in (0.7, 0.85, 0.95, 1.05, 1.2, 1.5)),
    *(Condition(ESTIMATOR, level, True) for level in (0.7, 1.5)),
    *(Condition(LENGTHS, level) for level in (0.1, 0.33, 1.0, 3.0, 10.0)),
    Condition(PREDICTOR, 0.9),
)


class Cell(NamedTuple):
    trace: str
    device: str
    load: float


class Run(NamedTuple):
    """A policy under a condition, on a cell with a seed."""

    policy: str
    condition: Condition
    cell: Cell
    seed: int


def applies(policy: str, condition: Condition) -> bool:
    """Whether it is run: lengths are wrong for the one that uses them."""
    return condition.what != LENGTHS or policy == GAIN


def last_deadline_s(workload: Workload) -> float:
    """When the last token of the last request is late: what comes later changes no gain and meets no SLO."""
    table = workload.table
    return float((table["arrival_s"] + table["ttft_slo_s"] + table["output_tokens"] * table["tpot_slo_s"]).max())


def spoiled(scenario: Scenario, condition: Condition, seed: int) -> Scenario:
    """The scenario with what is wrong; seed: of the noise and of the predictor's errors.

    It ends with the last deadline: where work is left, a device that drifts on would never be done.
    """
    workload, deployment, level = scenario.workload, scenario.deployment, condition.level
    assert isinstance(deployment, Deployment) and isinstance(deployment.estimator, LatencyModel)
    correction = Correction() if condition.corrected else None
    scenario = dataclasses.replace(scenario, until_s=last_deadline_s(workload), correction=correction)
    if condition.what == NOISE:
        return dataclasses.replace(scenario, disturbance=Disturbance(noise=level, seed=seed))
    if condition.what == DRIFT:
        last_s = float(workload.table["arrival_s"].max())
        return dataclasses.replace(scenario, disturbance=Disturbance(drift_per_s=level / last_s))
    if condition.what == ESTIMATOR:
        believed = dataclasses.replace(deployment, estimator=deployment.estimator.times(level))
        return dataclasses.replace(scenario, deployment=believed)
    if condition.what == LENGTHS:
        # None of an application has finished before its only request has: so what is told of lengths is never learnt.
        alone = workload.replace(application=np.arange(len(workload), dtype="i4"))
        told_tokens = level * float(workload.table["output_tokens"].mean())
        told = scenario.scheduler.with_settings(output_tokens=max(told_tokens, 1.0))
        return dataclasses.replace(scenario, workload=alone, scheduler=told)
    if condition.what == PREDICTOR:
        return dataclasses.replace(scenario, predictor=Predictor(length_error=level, seed=seed))
    return scenario


def scenario_of(run: Run, requests: int) -> Scenario:
    spec, workload = served(run.cell, run.seed, requests)
    scenario = spec.with_values({"scheduler": POLICIES[run.policy]}).build(run.seed, workload=workload)
    return spoiled(scenario, run.condition, run.seed)


def measured(run: Run, requests: int) -> Row:
    summary = Simulation(scenario_of(run, requests)).run().summary
    return {
        "run": [run.policy, list(run.condition), list(run.cell), run.seed],
        **{figure: summary[figure] for figure in FIGURES},
    }


def run_of(row: Row) -> Run:
    policy, condition, cell, seed = row["run"]
    return Run(policy, Condition(*condition), Cell(*cell), seed)


def runs_of(cells: Sequence[Cell], seeds: int) -> list[Run]:
    """Every run, those of one workload one after the other; no two cells share a seed."""
    return [
        Run(policy, condition, cell, FIRST_SEED + number * seeds + i)
        for number, cell in enumerate(cells)
        for i in range(seeds)
        for condition in CONDITIONS
        for policy in POLICIES
        if applies(policy, condition)
    ]
