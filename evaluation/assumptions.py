"""The assumptions of an artifact: the estimator of a profile, and the SLOs and weights that a recipe gives a trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from servegym.latency_models.profile import Profile
from servegym.traces.loading import trace_names
from servegym.traces.own_slos import SAME, recipe_named
from servegym.traces.reading import Reading
from servegym.traces.workloads import build_workload, workload_notes

REQUESTS = 2000  # drawn from a family to find their usual SLOs
READ_BY = tuple(field.name for field in dataclasses.fields(Reading))  # fields of a spec too
SLOS = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s")


def estimator_of(profile: Profile) -> dict[str, Any]:
    """The `estimator` of an artifact: form, packed coefficients, and facts of the fit."""
    return {
        "profile": profile.name,
        "form": profile.estimator.form,
        "coefficients": profile.estimator.coefficients.tolist(),
        "fit": {
            "title": profile.title,
            "basis": profile.basis,
            "coefficients_by_name": profile.estimator.coefficients_by_name,
            "error": profile.error,
            "valid": {name: list(bounds) for name, bounds in profile.valid.items()},
            "source": profile.provenance,
            "step_tokens": profile.step_tokens,
        },
    }


def workload_of(
    slo: str, traces: Iterable[str], profile: Profile | None = None, read_by: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The `workload` of an artifact: what a recipe gives to requests of its traces.

    For a request that states none, the SLOs that most requests have; a weight for each priority; the worth of a first
    token: mean prompt tokens over mean output tokens, as in the gain. profile: a device that is slow makes some recipes
    relax SLOs. read_by: fields of a spec; some say how trace files are read. Raises WorkloadError.
    """
    given = {name: value for name, value in (read_by or {}).items() if name in READ_BY and value is not None}
    reading = Reading(**given)
    workloads = [
        build_workload(
            trace,
            requests=REQUESTS if trace in trace_names() else None,
            rate_per_s=1.0,
            slo=slo,
            idle_tpot_s=None if profile is None else profile.idle_tpot_s,
            reading=None if trace in trace_names() else reading,
        )
        for trace in traces
    ]
    return {
        "slo": slo,
        **usual_demand(np.concatenate([workload.table for workload in workloads])),
        "traces": [str(trace) for trace in traces],
        "notes": [note for workload in workloads for note in workload_notes(workload.provenance)],
    }


def are_own(slo: str) -> bool:
    """Return whether a recipe is of SLOs that are the same for all requests, whatever the trace."""
    return recipe_named(slo).partition(":")[0] == SAME


def usual_demand(table: np.ndarray) -> dict[str, Any]:
    """Of requests of dtype `WORKLOAD`: the SLOs that most have, a weight for each priority, first_token_weight."""
    slos, counts = np.unique(np.stack([table[name] for name in SLOS], axis=1), axis=0, return_counts=True)
    usual = slos[counts.argmax()]
    return {
        **{name: float(value) for name, value in zip(SLOS, usual, strict=True) if np.isfinite(value)},
        "weight_of_priority": {
            str(priority): _usual(table["weight"][table["priority"] == priority])
            for priority in np.unique(table["priority"])
        },
        "first_token_weight": round(float(table["prompt_tokens"].mean() / table["output_tokens"].mean()), 4),
    }


def _usual(values: np.ndarray) -> float:
    found, counts = np.unique(values, return_counts=True)
    return float(found[counts.argmax()])
