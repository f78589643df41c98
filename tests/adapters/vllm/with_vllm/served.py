"""Workloads, artifacts and the comparison of what vLLM scheduled with what the simulator did."""

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.engines.plugin_parity import random_workload
from experiments.engines.vllm_driving import MOST_IDLE_STEPS, Drive, Limits, Step, drive, make_request, make_scheduler
from servegym.baselines import registry
from servegym.baselines.artifact import Artifact, save_artifact
from servegym.evaluation.assumptions import estimator_of
from servegym.latency_models.profile import load_profile
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Policy, get_policy
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation
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
        PROFILE.device, PROFILE.estimator, limits.blocks, block_tokens=limits.block_tokens, watermark=limits.watermark,
        async_scheduling=limits.async_scheduling,
    )  # fmt: skip
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


UnderWay = list[tuple[Any, dict[str, list[int]]]]  # what was scheduled, and the tokens that will come of it


def drive_async(
    made: Any,
    workload: Workload,
    depth: int,
    look: Callable[[UnderWay], None] = lambda steps: None,
    requests: Callable[[Any, int], Any] = make_request,
) -> list[int]:
    """Serve a workload with up to so many steps under way at once, each of 0.02 s. Gives the tokens of each request.

    look: sees the steps under way, oldest first, after each call of the scheduler. requests: makes one of a row.
    """
    from vllm.v1.outputs import ModelRunnerOutput

    now_s, added, idle_steps = [0.0], 0, 0
    under_way: UnderWay = []
    tokens_of = [0] * len(workload)
    made.use_clock(lambda: now_s[0])
    while added < len(workload) or made.has_unfinished_requests() or under_way:
        while added < len(workload) and workload.table["arrival_s"][added] <= now_s[0]:
            made.add_request(requests(workload.table[added], added))
            added += 1
        output = made.schedule()
        if output.total_num_scheduled_tokens:
            sampled = {i: [] if made.requests[i].is_prefill_chunk else [7] for i in output.num_scheduled_tokens}
            under_way.append((output, sampled))
        look(under_way)
        if len(under_way) == depth or (under_way and not output.total_num_scheduled_tokens):
            output, sampled = under_way.pop(0)
            ids = list(sampled)
            ran = ModelRunnerOutput(
                req_ids=ids, req_id_to_index={i: n for n, i in enumerate(ids)},
                sampled_token_ids=[list(tokens) for tokens in sampled.values()],
            )  # fmt: skip
            now_s[0] += 0.02
            for outputs in made.update_from_output(output, ran).values():
                for result in outputs.outputs:
                    tokens_of[int(result.request_id)] += len(result.new_token_ids)
            look(under_way)
            idle_steps = 0
        elif not under_way:
            now_s[0] += 0.02
            idle_steps += made.has_unfinished_requests()
            assert idle_steps < MOST_IDLE_STEPS
    return tokens_of


def v1_policy(limits: Limits) -> Policy:
    """The simulator's vllm-v1 with vLLM's settings."""
    return get_policy("scheduler", "vllm-v1").with_settings(
        policy=limits.scheduling_policy,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        watermark=limits.watermark,
        long_prefill_token_threshold=limits.long_prefill_token_threshold,
    )


__all__ = [
    "UnderWay", "assert_same", "drive", "drive_async", "plugged", "saved", "simulated", "stock", "v1_policy",
    "workload_of",
]  # fmt: skip
