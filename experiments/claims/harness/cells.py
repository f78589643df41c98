"""A cell: one run of a claim, and how it is served."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from experiments.claims.harness.served import begin
from experiments.claims.harness.settings import POISSON, Setting, seed_of, served_by, words_of, workload
from experiments.without_steps import without_steps
from servegym.errors import ExperimentError
from servegym.scenarios import fleets
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.simulation import Simulation

DEFAULT_HIGH_WEIGHT = 2.0


class Cell(NamedTuple):
    """One run. All of it is JSON, and a row of results begins with it.

    scheduler: "name" or "name:key=value,...". load: relative to saturation. high_weight: of high priority (low: 1).
    buffered: deadlines count from the TTFT SLO; False: from the first token where it is earlier.
    arrivals: "poisson", or a process of `traces.arrivals` with its own rates; `load` is then its mean.
    exact_estimator: the device takes what the estimator says, and not what the device model says.
    slo: recipe of SLOs, priorities and clients, with its parameters; empty: the setting's (`slo_recipe`).
    predictor, host: settings "key=value,..." of a Predictor and of HostMemory, for claims that measure with
        `waiting.py`; empty: one without errors that takes no time, and no host memory.
    engines: "engines=8" or "prefill=5,decode=3", as in a `Fleet`, whose total the load is relative to; empty: one.
    router: "name" or "name:key=value,..."; empty: request i goes to engine i mod n.
    operators: settings "check_s=1e-05,jitter_s=0.0005" of `Operators` in place of the profile's; empty: as it has them.
    corrected: the estimator is corrected online, by the times that iterations took.
    """

    family: str
    device: str
    scheduler: str
    load: float
    seed: int
    requests: int
    high_weight: float = DEFAULT_HIGH_WEIGHT
    buffered: bool = True
    arrivals: str = "poisson"
    exact_estimator: bool = False
    slo: str = ""
    predictor: str = ""
    host: str = ""
    engines: str = ""
    router: str = ""
    operators: str = ""
    corrected: bool = False

    @property
    def setting(self) -> Setting:
        return Setting(self.family, self.device)


def cell_of(row: dict[str, Any]) -> Cell:
    return Cell(*(row.get(field) for field in Cell._fields))  # type: ignore[arg-type]


@functools.cache
def serving(device: str, engines: str) -> ServingSpec:
    """A spec with the engines of a cell. Raises SpecError."""
    numbers = dict(pair.split("=") for pair in filter(None, engines.split(",")))
    return ServingSpec().with_overrides({"device": served_by(device), **numbers})


def spec_of(cell: Cell) -> ServingSpec:
    """What a cell serves, by what; its seed is that of its family's requests."""
    return serving(cell.device, cell.engines).replaced(
        **words_of(cell.setting, cell.slo, cell.arrivals), load=cell.load if cell.arrivals == POISSON else None,
        requests=cell.requests, seed=seed_of(cell.family, cell.seed), scheduler=without_steps(cell.scheduler),
        router=cell.router or None, gain=Gain(buffered_first_token=cell.buffered),
    )  # fmt: skip


def deployment_of(device: str, engines: str, operators: str = "") -> Deployment | Cluster:
    """Raises ExperimentError for settings of operators where the device has none."""
    made = fleets.deployment_of(serving(device, engines))
    if not operators:
        return made
    own: dict[str, Any] = {name: float(number) for name, number in (pair.split("=") for pair in operators.split(","))}

    def changed(pool: Deployment) -> Deployment:
        if pool.operators is None:
            raise ExperimentError(f"{device} has no operators to set {operators} of; it should be a device with them")
        return dataclasses.replace(pool, operators=dataclasses.replace(pool.operators, **own))

    return of_pools(made, changed)


def scenario(cell: Cell) -> Scenario:
    """What a cell runs."""
    requests = workload(
        cell.setting, cell.load, cell.seed, cell.requests, cell.arrivals, cell.slo,
        serving(cell.device, cell.engines).fleet.total,
    )  # fmt: skip
    if cell.high_weight != DEFAULT_HIGH_WEIGHT:
        requests = requests.replace(weight=np.where(requests.table["priority"] == 0, cell.high_weight, 1.0))
    deployment = deployment_of(cell.device, cell.engines, cell.operators)
    if cell.exact_estimator:
        deployment = exact(deployment)
    built = spec_of(cell).build(workload=requests, deployment=deployment)
    return dataclasses.replace(built, correction=Correction()) if cell.corrected else built


def exact(deployment: Deployment | Cluster) -> Deployment | Cluster:
    """The same, of devices that take what their estimators say."""
    return of_pools(deployment, lambda pool: dataclasses.replace(pool, device=pool.estimator))


def of_pools(deployment: Deployment | Cluster, change: Callable[[Deployment], Deployment]) -> Deployment | Cluster:
    """The same with each pool changed."""
    if isinstance(deployment, Cluster):
        return dataclasses.replace(deployment, pools=tuple(map(change, deployment.pools)))
    return change(deployment)


def simulation(cell: Cell, record_timeline: bool = False) -> Simulation:
    return begin(scenario(cell), record_timeline)
