"""What experiments with served engines share: their workloads, and artifacts made for them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.engines.stretching import slowed_estimator
from servegym.baselines.artifact import KINDS, Artifact
from servegym.baselines.registry import router, scheduler
from servegym.evaluation.assumptions import estimator_of
from servegym.latency_models.profile import Profile
from servegym.scenarios.saturation import saturation_rate_per_s
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain
from servegym.traces.workloads import build_workload

DECISION_LIMIT_S = 0.01  # of the device: the plug-in's default, stretched as all times are
FIND = {"scheduler": scheduler, "router": router}


def overload(
    trace: str, slo: str, profile: Profile, load: float, requests: int, seed: int, context_tokens: int, engines: int = 1
) -> Workload:
    """A workload at a load relative to the engines' saturation, from time 0, with no SLO that an idle device misses."""
    most = context_tokens - 1
    rate_per_s = load * saturation_rate_per_s(trace, profile, engines, slo=slo, max_total_tokens=most)
    workload = build_workload(
        trace,
        requests=requests,
        rate_per_s=rate_per_s,
        slo=slo,
        seed=seed,
        max_total_tokens=most,
        idle_tpot_s=profile.idle_tpot_s,
    )
    return workload.replace(arrival_s=workload.table["arrival_s"] - workload.table["arrival_s"][0])


def artifact_for(policies: Mapping[str, str], workload: Workload, profile: Profile, speed: float = 1.0) -> Artifact:
    """An artifact of policies (name by role) for a workload, and for a device of this speed."""
    table = workload.table
    first, later = Gain().token_gains(table)
    # Of what is known of the fit only the steps are those of a device of another speed, too.
    estimator = estimator_of(profile) | {"fit": {"step_tokens": profile.step_tokens}}
    terms: dict[str, Any] = {
        "ttft_slo_s": float(np.median(table["ttft_slo_s"])) / speed,
        "tpot_slo_s": float(table["tpot_slo_s"].min()) / speed,
        "ttlt_slo_s": None,
        "weight_of_priority": {},
        "first_token_weight": float(first[0] / later[0]),
        "devices": [profile.name],
    }
    found = {role: FIND[KINDS[role]](name) for role, name in policies.items()}
    return Artifact(found, slowed_estimator(estimator, speed), terms)
