"""Workloads, artifacts and the comparison of what vLLM scheduled with what the simulator did."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

from servegym.adapters.vllm.driving import Drive, Limits, Step, drive, make_scheduler
from servegym.baselines import registry
from servegym.baselines.artifact import Artifact, save_artifact
from servegym.evaluation.assumptions import estimator_of
from servegym.experiments.engines.plugin_parity import random_workload
from servegym.latency_models.profile import load_profile
from servegym.simulator.deployment import Deployment
from servegym.simulator.disturbances import Correction
from servegym.simulator.policies import Policy, get_policy
from servegym.simulator.results import Result
from servegym.simulator.scenario import Scenario
from servegym.simulator.simulation import Simulation
from servegym.simulator.workload import Workload
from tests.timelines import iterations

registry.load()
PROFILE = load_profile("a100-llama3-8b")


def workload_of(seed: int, requests: int, rate_per_s: float, prompt: int = 3000, output: int = 300) -> Workload:
    """Random requests of three priorities, with weights and SLOs of several sizes."""
    return random_workload(seed, requests, rate_per_s, prompt, output)


def saved(policy: Policy, workload: Workload, path: Path) -> Path:
    """The policy as an artifact with the profile's estimator; a first token is worth what the simulator says."""
    table = workload.table
    artifact = Artifact(
        {"scheduler": policy},
        estimator_of(PROFILE),
        {
            "ttft_slo_s": 1.0,
            "tpot_slo_s": float(table["tpot_slo_s"].min()),
            "first_token_weight": float(table["prompt_tokens"].mean() / table["output_tokens"].mean()),
        },
    )
    save_artifact(artifact, path)
    return path


def plugged(limits: Limits, policy: Path, name: str = "Scheduler", **settings: Any) -> Any:
    """Our scheduler on this artifact. A decision may take long here: other processes share the machine."""
    section = {"policy": str(policy), "decision_limit_s": 60.0} | settings
    scheduler_cls = getattr(importlib.import_module("servegym.adapters.vllm"), name)
    return make_scheduler(scheduler_cls, limits, {"servegym": section})


def stock(limits: Limits) -> Any:
    """vLLM's own scheduler."""
    return make_scheduler(importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler, limits)


def simulated(workload: Workload, limits: Limits, policy: Policy, correction: Correction | None) -> Result:
    deployment = Deployment(
        PROFILE.device, PROFILE.estimator, limits.blocks, block_tokens=limits.block_tokens, watermark=limits.watermark
    )
    return Simulation(Scenario(workload, deployment, policy, correction=correction), record_timeline=True).run()


def steps_of(result: Result) -> list[Step]:
    """A simulated run as the steps of an engine. (Within a step the order of a batch means nothing.)"""
    return [
        Step(i.start_s, i.end_s, sorted(i.batch), set(i.evicted), i.used_blocks) for i in iterations(result)
    ]  # fmt: skip


def assert_same(served: Drive, result: Result) -> None:
    """The same tokens for each request in each step, the same victims, blocks and times."""
    expected = steps_of(result)
    for number, (theirs, ours) in enumerate(zip(served.steps, expected, strict=False)):
        assert dataclasses.replace(theirs, scheduled=sorted(theirs.scheduled)) == ours, f"step {number}"
    assert len(served.steps) == len(expected)


def v1_policy(limits: Limits) -> Policy:
    """The simulator's vllm-v1 with vLLM's settings."""
    return get_policy("scheduler", "vllm-v1").with_settings(
        policy=limits.scheduling_policy,
        token_budget=limits.max_num_batched_tokens,
        max_sequences=limits.max_num_seqs,
        watermark=limits.watermark,
    )


__all__ = ["assert_same", "drive", "plugged", "saved", "simulated", "stock", "v1_policy", "workload_of"]
