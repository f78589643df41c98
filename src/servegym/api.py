"""The entry points of scripts and notebooks: from plain arguments to a run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from servegym.errors import SpecError
from servegym.evaluation import streaming
from servegym.evaluation.streaming import Streamed
from servegym.scenarios.demand import Demand
from servegym.scenarios.spec import ServingSpec
from servegym.scenarios.values import is_number
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation

ALONE = ServingSpec(Demand(window="first"))
ENGINES = ("engines", "prefill", "decode", "pools", "host_memory_gib", "prefix_store_tokens", "prefix_caching")


def stream(trace: str | os.PathLike[str], out: str | os.PathLike[str], **overrides: Any) -> Streamed:
    """Serve a trace that is larger than memory.

        stream("year.parquet", "results/year", engines=4, router="min-load").summary["slo_attainment"]

    trace: a file in servegym's own format, with arrival_s. out: the folder to which requests.parquet and
    engines.parquet are written as the run goes. overrides: as `simulate` takes them; requests come at the file's
    own times and with its own SLOs (slo="given").

    Memory holds the requests under way and one chunk of the file. Raises ServegymError for options that need all
    requests at once.
    """
    return streaming.stream(ALONE.with_overrides({"slo": "given", **overrides, "trace": trace}), out)


def simulate(
    workload: ServingSpec | Workload | str | os.PathLike[str] = "azure-conv",
    *,
    deployment: Deployment | Cluster | None = None,
    until_s: float = np.inf,
    record_timeline: bool = False,
    **overrides: Any,
) -> Result:
    """Serve requests and say how well it went.

        simulate("azure-conv", scheduler="edf", load=1.0, engines=4, router="min-load")

    workload: the name of a trace family or a trace file; or a `ServingSpec`; or a `Workload` of your own making.
    deployment: engines of your own making, instead of those that overrides describe; `device` then says only whose idle
        times raise SLOs.
    until_s: stop at this time (inf: when all is served).
    overrides: fields of a `ServingSpec` (docs/spec.md), such as rate_per_s, requests, slo, seed, device, engines,
        router, incidents, noise, gain. Policies, profiles, gains and predictors may be objects.

    Where a recipe's TPOT SLO is below twice what the device takes when idle, it is raised to that, and
    `result.scenario.workload.provenance["slo_notes"]` says so.

    Raises ServegymError (SpecError, WorkloadError, PolicyError, ProfileError, DeploymentError, GainError) for wrong
    input.
    """
    incidents: Iterable[Incident] = ()
    if deployment is not None:
        if given := [name for name in ENGINES if name in overrides]:
            raise SpecError(
                f"a deployment is given, and {given[0]} too; a deployment says how many engines and of what"
            )
        incidents = overrides.pop("incidents", ())  # of its engines, not of the spec's
    if not is_number(until_s, False):
        raise SpecError(f"until_s is {until_s!r}; it should be a time of 0 or more")
    spec = workload if isinstance(workload, ServingSpec) else ALONE
    if not isinstance(workload, ServingSpec | Workload):
        overrides = {"trace": workload, **overrides}
    scenario = (spec.with_overrides(overrides) if overrides else spec).build(
        workload=workload if isinstance(workload, Workload) else None, deployment=deployment
    )
    scenario = dataclasses.replace(scenario, until_s=until_s, incidents=(*scenario.incidents, *incidents))
    return Simulation(scenario, record_timeline).run()
