"""From names to a run: what a script or a notebook calls first."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from servegym.baselines.registry import router as find_router
from servegym.baselines.registry import scaler as find_scaler
from servegym.baselines.registry import scheduler as find_scheduler
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.cluster import Cluster
from servegym.simulator.deployment import Deployment, HostMemory
from servegym.simulator.disturbances import Correction, Disturbance
from servegym.simulator.errors import DeploymentError
from servegym.simulator.gains import Gain
from servegym.simulator.incidents import Incident
from servegym.simulator.policies import Policy
from servegym.simulator.predictors import Predictor
from servegym.simulator.results import Result
from servegym.simulator.simulation import Scenario, Simulation
from servegym.simulator.workload import Workload
from servegym.traces.workloads import build_workload


def simulate(
    workload: Workload | str,
    *,
    scheduler: Policy | str = "slide-batching",
    device: Profile | str = "a100-llama3-8b",
    engines: int = 1,
    deployment: Deployment | Cluster | None = None,
    router: Policy | str | None = None,
    scaler: Policy | str | None = None,
    incidents: Iterable[Incident] = (),
    rate_per_s: float | None = None,
    requests: int | None = None,
    slo: str = "proserve",
    seed: int = 0,
    gain: Gain | None = None,
    until_s: float = np.inf,
    disturbance: Disturbance | None = None,
    correction: Correction | None = None,
    host: HostMemory | None = None,
    predictor: Predictor | None = None,
    record_timeline: bool = False,
) -> Result:
    """Serve a workload and say how well it went.

    workload: a `Workload`, or the name of a trace family or a trace file, of which `requests`, `rate_per_s`,
        `slo` and `seed` make one (see `build_workload`; they are for a name only). Where a recipe's TPOT SLO is
        below twice what the device takes when idle, it is raised to that, and `provenance["slo_notes"]` says so.
    scheduler: a policy, or "name:key=value,...". device: a profile, its name, or the path of its JSON file.
    engines: how many of the device. deployment: engines of your own making, instead of `engines` of the device with
        `host`; the device then stands for them only where a recipe asks for its TPOT.
    router: a policy, or "name:key=value,...": which engine gets a request (None: request i goes to engine i mod n).
    scaler: a policy, or "name:key=value,...": moves engines between tiers (None: they stay, and all are in service).
    incidents: engines that fail, return or are drained.
    until_s: stop at this time (inf: when all is served).
    disturbance: noise and drift of the device (None: it takes what its model says). correction: of the estimator, by
        what iterations took (None: it stays as it was fitted).
    host: host memory for the KV of victims (None: what is evicted is lost; see `Profile.host_memory`). predictor: of
        urgency and output lengths, in front of the queues (None: what the workload says, at once).

    Raises ServegymError (WorkloadError, PolicyError, ProfileError, DeploymentError, GainError) for wrong input.
    """
    profile = load_profile(device) if isinstance(device, str) else device
    if not isinstance(workload, Workload):
        workload = build_workload(
            workload,
            requests=requests,
            rate_per_s=rate_per_s,
            slo=slo,
            seed=seed,
            idle_tpot_s=profile.idle_tpot_s,
        )
    if deployment is None:
        deployment = profile.deployment(engines, host=host)
    elif engines != 1 or host is not None:
        raise DeploymentError("a deployment is given, and engines or host too; a deployment says how many and what")
    scenario = Scenario(
        workload,
        deployment,
        find_scheduler(scheduler) if isinstance(scheduler, str) else scheduler,
        gain or Gain(),
        until_s,
        disturbance or Disturbance(),
        correction,
        predictor,
        find_router(router) if isinstance(router, str) else router,
        find_scaler(scaler) if isinstance(scaler, str) else scaler,
        tuple(incidents),
    )
    return Simulation(scenario, record_timeline).run()
