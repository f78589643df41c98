"""Measures saturation: the requests per second to which loads are relative. saturations.json has those of profiles that
ship (python -m experiments.profiles.saturations, in a clone)."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from servegym.baselines.registry import scheduler
from servegym.latency_models.profile import FOLDER, Profile, load_profile
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.reading import Reading
from servegym.traces.workloads import build_trace, load_trace, workload_of_trace

SATURATION_SCHEDULER = "sarathi-fcfs"
# For each engine. Towards the end of a run, batches have fewer requests, so a short run looks slower: with azure-conv,
# 1000 requests give 7.14 requests/s, 4000 give 7.26 and 20,000 give 7.38, in 1.2 s of run time instead of 0.1 s.
SATURATION_REQUESTS = 4000
SATURATION_SEED = 0

TABLE = Path(__file__).parent / "saturations.json"


def saturation_rate_per_s(
    trace: str,
    profile: Profile,
    engines: int = 1,
    slo: str = "proserve",
    max_total_tokens: int | None = None,
    max_prompt_tokens: int | None = None,
    reading: Reading | None = None,
) -> float:
    """Measure the requests per second of sarathi-fcfs if all requests arrive at time 0, until the last is done.

    `SATURATION_REQUESTS` an engine are simulated: of a family, those of seed 0; of a file with more, evenly spaced
    ones, as lengths may drift through the day. The recipe matters too: Sarathi-Serve sizes its batches to the smallest
    TPOT SLO.

    max_total_tokens, max_prompt_tokens: requests with more prompt and output tokens, or a longer prompt, are left out.
    reading: options for reading a file.

    Raises WorkloadError for an unknown trace or recipe, DeploymentError for a request that fits no engine.
    """
    deployment = profile.deployment(engines)
    limits = max_prompt_tokens, max_total_tokens
    workload = _all_at_once(trace, slo, SATURATION_REQUESTS * engines, profile.idle_tpot_s, *limits, reading)
    result = Simulation(Scenario(workload, deployment, scheduler(SATURATION_SCHEDULER))).run()
    return result.summary["throughput_requests_per_s"]


def _all_at_once(
    trace: str, slo: str, requests: int, idle_tpot_s: float, max_prompt_tokens: int | None,
    max_total_tokens: int | None, reading: Reading | None,
) -> Workload:  # fmt: skip
    loaded = load_trace(
        trace, seed=SATURATION_SEED, default_requests=requests, max_prompt_tokens=max_prompt_tokens,
        max_total_tokens=max_total_tokens, reading=reading,
    ).alone()  # fmt: skip
    workload = workload_of_trace(
        build_trace(loaded, slo=slo, arrivals="at-once", seed=SATURATION_SEED, idle_tpot_s=idle_tpot_s)
    )
    if len(workload) <= requests:
        return workload
    rows = np.linspace(0, len(workload) - 1, requests).round().astype("i8")
    return Workload(workload.table[rows], workload.name, workload.provenance)


@functools.cache
def known_saturation_rate_per_s(
    trace: str, device: str, slo: str, max_total_tokens: int | None = None, max_prompt_tokens: int | None = None,
    reading: Reading | None = None,
) -> float:  # fmt: skip
    """`saturation_rate_per_s` of one engine, for the requests of a trace that it can hold.

    Taken from the table if it has this profile; else measured once in a process. Raises the errors of
    `saturation_rate_per_s` and `load_profile`.
    """
    measured = measured_saturations().get(device, {"profile_sha256": "", "rates_per_s": {}})
    rate_per_s = measured["rates_per_s"].get(slo, {}).get(trace)
    unlimited = max_total_tokens is None and max_prompt_tokens is None
    if unlimited and rate_per_s is not None and measured["profile_sha256"] == profile_sha256(device):
        return float(rate_per_s)
    return held_rate_per_s(trace, load_profile(device), slo, max_total_tokens, max_prompt_tokens, reading)


def held_rate_per_s(
    trace: str, profile: Profile, slo: str, max_total_tokens: int | None = None, max_prompt_tokens: int | None = None,
    reading: Reading | None = None,
) -> float:  # fmt: skip
    """Measure `saturation_rate_per_s` of one engine for the requests that its KV memory can hold."""
    capacity = profile.kv.total_blocks * profile.kv.block_tokens
    limit = capacity if max_total_tokens is None else min(max_total_tokens, capacity)
    return saturation_rate_per_s(
        trace, profile, slo=slo, max_total_tokens=limit, max_prompt_tokens=max_prompt_tokens, reading=reading
    )


@functools.cache
def measured_saturations() -> dict[str, Any]:
    """Return the table: by device, rates_per_s[recipe][trace], and the profile_sha256 of the measured profile."""
    devices: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))["devices"]
    return devices


def profile_sha256(device: str) -> str:
    """Return the SHA-256 of the file of a shipped profile."""
    return hashlib.sha256((FOLDER / f"{device}.json").read_bytes()).hexdigest()
