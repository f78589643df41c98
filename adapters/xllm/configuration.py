"""Translates a tuned SlideBatching to xLLM's flags, and SLOs and weights of its workload to fields of requests.

xLLM's engine implements ProServe's Algorithm 1 with fewer parameters: those without a flag are listed with what xLLM
does instead.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from servegym.adapters.xllm.flags import Value, Version
from servegym.baselines.artifact.artifact import Artifact
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.errors import XllmError
from servegym.simulator.policies.policy import Fact, Policy

SCHEDULER = "slide-batching"
LARGEST_WEIGHT = 1000  # of the whole numbers that xLLM takes as weights, unless a ratio of weights is larger
NEAR_ENOUGH = 1e-3  # largest relative error of a ratio of weights that is accepted
NOT_OF_XLLM = "xLLM's router is another program and has no flag for it"
# Parameters of SlideBatching without a flag, and what xLLM's engine does.
INSTEAD = {
    "eta": "0.65 of the smallest TPOT SLO among the requests there are",
    "load": "load function a (Eq. 8)",
    "hopeless": "exclude: requests that cannot be in time do not set the budget",
    "deadlines": "first-token: later deadlines count from the first token, early or late",
    "ablation": "nothing is left out",
    "variant": "the order and stopping rule of variant=xllm",
    "density_exponent": "1: gain per second of work",
    "steps": "ignore: batches end wherever the time budget does",
    "step_tokens": "0: batches end wherever the time budget does",
}
AS_XLLM = {
    "load": "a", "hopeless": "exclude", "deadlines": "first-token", "variant": "xllm", "density_exponent": 1.0,
    "steps": "ignore", "step_tokens": 0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A configuration of xLLM.

    flags: by name, with values of their types. requests: fields of a request by its priority, and of one without a
    priority ("default"). without_flag: value of each parameter without a flag, and what xLLM does instead. notes:
    further differences.
    """

    version: Version
    flags: Mapping[str, Value]
    requests: Mapping[str, Mapping[str, Value]]
    without_flag: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """The flags as arguments of the command line."""
        return [f"--{name}={_as_text(value)}" for name, value in self.flags.items()]


def xllm_configuration(artifact: Artifact, version: Version) -> Configuration:
    """Make the configuration for an artifact whose scheduler is SlideBatching.

    Raises XllmError for another or a learned scheduler, and for an `ablation` that xLLM does not have.
    """
    policy = _scheduler(artifact)
    values = policy.chosen()
    flags: dict[str, Any] = {
        **version.slide_batching,
        "enable_chunked_prefill": True,
        "enable_latency_aware_schedule": True,
        "enable_profile_step_time": True,
        "aggressive_coeff": values["gamma"],
        "enable_starve_prevent": values["variant"] == "xllm",
        "starve_threshold": values["starve_threshold"],
    }
    if values["ablation"] == "no-latency":
        flags |= {"enable_latency_aware_schedule": False, "max_tokens_per_batch": values["max_num_batched_tokens"]}
    elif values["ablation"] != "none":
        raise XllmError(f"{policy.label}: xLLM has no flag to leave out a part; ablation should be none or no-latency")
    requests, notes = _requests(artifact, version)
    return Configuration(
        version,
        version.check_flags(flags),
        requests,
        _without_flag(artifact, policy, values),
        (*_notes(values), *notes),
    )


def _scheduler(artifact: Artifact) -> Policy:
    policy = artifact.scheduler
    if policy is None:
        raise XllmError(f"{artifact.label}: the artifact has no scheduler; xLLM takes {SCHEDULER}")
    if isinstance(policy, LearnedPolicy):
        raise XllmError(f"{policy.label}: a learned policy; xLLM runs no networks and takes {SCHEDULER} only")
    if policy.name != SCHEDULER:
        raise XllmError(f"{policy.label}: xLLM does not have this scheduler; it takes {SCHEDULER}")
    return policy


def _without_flag(artifact: Artifact, policy: Policy, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found = {
        f"scheduler.{name}": {"value": _plain(values[name]), "xllm": INSTEAD[name]}
        for name in INSTEAD
        if name != "ablation" and _plain(values[name]) != AS_XLLM.get(name)
    }
    for role, other in artifact.policies.items():
        if role == "decode_scheduler":
            found[role] = {"value": other.label, "xllm": "the scheduler's flags, given to the decode instances too"}
        elif role != "scheduler":
            chosen = {f"{role}.{name}": value for name, value in other.chosen().items()} or {role: other.label}
            found |= {name: {"value": _plain(value), "xllm": NOT_OF_XLLM} for name, value in chosen.items()}
    return found


def _notes(values: Mapping[str, Any]) -> list[str]:
    notes = [
        "enable_profile_step_time: xLLM fits its own estimate of step times when it starts; the artifact's is not used"
    ]
    if values["variant"] == "paper":
        notes.append(
            "variant=paper: xLLM orders and stops as variant=xllm does (a chunk of 50 tokens or fewer, or a decode "
            "that does not fit, ends the batch); tune variant=xllm for what xLLM runs"
        )
    return notes


def _requests(artifact: Artifact, version: Version) -> tuple[dict[str, dict[str, Value]], list[str]]:
    """Return the fields of requests from the artifact's workload, SLOs in ms, weights as whole numbers; and notes."""
    workload = artifact.workload
    if workload is None:
        return {}, ["the artifact has no SLOs and weights: each request has to send its own"]
    default: dict[str, Any] = {}
    for ours in ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s"):
        if workload.get(ours) is not None:
            default[f"{ours.removesuffix('_s')}_ms"] = max(1, round(1000 * workload[ours]))
    notes = []
    if workload.get("first_token_weight") is not None:
        first, later = whole_numbers([float(workload["first_token_weight"]), 1.0])
        default |= {"ttft_priority_weight": first, "tpot_priority_weight": later}
        notes.append(_rounded("first_token_weight", float(workload["first_token_weight"]), first / later))
    requests = {"default": version.check_fields(default)}
    weights = {str(key): float(value) for key, value in (workload.get("weight_of_priority") or {}).items()}
    wholes = whole_numbers(list(weights.values()))
    least, of_least = min(weights.values(), default=1.0), min(wholes, default=1)
    for (priority, weight), whole in zip(weights.items(), wholes, strict=True):
        requests[f"priority {priority}"] = version.check_fields(default | {"priority_weight": whole})
        notes.append(_rounded(f"weight of priority {priority}", weight / least, whole / of_least))
    return requests, [note for note in notes if note]


def whole_numbers(weights: list[float]) -> list[int]:
    """Approximate the ratios of weights by whole numbers: the smallest with errors below `NEAR_ENOUGH`, else the best
    up to `LARGEST_WEIGHT`."""
    if not weights:
        return []
    best: list[int] = []
    largest = max(1, int(LARGEST_WEIGHT * min(weights) / max(weights)))
    for scale in range(1, largest + 1):
        tried = [max(1, round(scale * weight / min(weights))) for weight in weights]
        if not best or _worst(weights, tried) < _worst(weights, best):
            best = tried
        if _worst(weights, best) <= NEAR_ENOUGH:
            break
    shared = math.gcd(*best)
    return [whole // shared for whole in best]


def _worst(weights: list[float], wholes: list[int]) -> float:
    """Return the largest relative error of the ratios of weights to the least weight."""
    at = weights.index(min(weights))
    return max(
        abs(whole / wholes[at] / (weight / weights[at]) - 1) for weight, whole in zip(weights, wholes, strict=True)
    )


def _rounded(what: str, wanted: float, given: float) -> str:
    error = given / wanted - 1
    return "" if abs(error) < 1e-6 else f"{what}: {wanted:.4g} is rounded to {given:.4g} ({100 * error:+.2g} %)"


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Fact) else value


def _as_text(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)
