"""The workloads that are served, and the policies that serve them; the same at home, where they are simulated."""

from pathlib import Path

import numpy as np

from experiments.engines.serving import artifact_for
from servegym.adapters.replay.sending import timed
from servegym.baselines.artifact import load_artifact, save_artifact
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.inputs.workload import Workload
from servegym.traces.workloads import build_workload

STOCK = "vllm-v1"
TRACES = ("azure-conv", "sharegpt", "chat-sessions")
PROFILE = "h100-llama3-8b"  # its SLOs' scale, and what policies believe where nothing was measured yet


def workload_of(
    trace: str,
    requests: int,
    rate_per_s: float | None,
    seed: int,
    context_tokens: int,
    profile: Profile,
    most_output_tokens: int | None = None,
) -> Workload:
    """From time 0 on. Turns of sessions come like requests of their own, since their think times are longer than runs.

    rate_per_s: None: all at once. most_output_tokens: outputs are cut to it.
    """
    workload = build_workload(
        trace,
        requests=requests,
        rate_per_s=rate_per_s or 1.0,
        seed=seed,
        max_total_tokens=context_tokens - 1,
        idle_tpot_s=profile.idle_tpot_s,
    )
    table = workload.table.copy()
    if most_output_tokens is not None:
        table["output_tokens"] = np.minimum(table["output_tokens"], most_output_tokens)
    if rate_per_s is None:
        table["arrival_s"] = 0.0
    elif workload.turns is not None:
        table["arrival_s"] = np.random.default_rng(seed).exponential(1.0 / rate_per_s, requests).cumsum()
    return timed(Workload(table, workload.name, workload.provenance, workload.prefixes))


def artifact(name: str, folder: Path, workload: Workload, profile: Profile) -> Path | None:
    """The file of a policy for vLLM: of a scheduler's name, or a file that is one; None for vLLM's own order."""
    if name == STOCK:
        return None
    if name.endswith(".json"):
        load_artifact(Path(name))
        return Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace(':', '-').replace(',', '-').replace('=', '')}.json"
    return Path(save_artifact(artifact_for({"scheduler": name}, workload, profile), path))


def profile_of(name: str | None) -> Profile:
    return load_profile(name or PROFILE)
