"""Decisions of the real V1 scheduler and of the simulator, over seeds. Runs where vLLM is installed
(docs/results/vllm-parity.md).

    python -m experiments.engines.plugin_parity stock [--queueing priority] [--blocks 400] [--seeds 12]
    python -m experiments.engines.plugin_parity exact|order [--policy slide-batching:eta=0.03] [--blocks 900]

stock: vLLM's own scheduler, and vllm-v1. exact, order: a policy in the plug-in, and the same policy simulated.

Printed for each seed: steps of the run, the first that differs from the simulated one ("none"), evictions, served over
simulated gain; and of the plug-in the share of steps, and of tokens, that were not as decided.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.engines.vllm_driving import Drive, Limits, drive, make_scheduler
from servegym.baselines import registry
from servegym.baselines.artifact import Artifact, save_artifact
from servegym.evaluation.assumptions import estimator_of
from servegym.evaluation.markdown import narrow_header, row
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Policy, get_policy
from servegym.simulator.records.types import BATCH_START, SCHEDULED
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation


def random_workload(seed: int, requests: int, rate_per_s: float, most_prompt: int, most_output: int) -> Workload:
    """Requests of three priorities, with weights and SLOs of several sizes; arrivals are Poisson."""
    random = np.random.default_rng(seed)
    priority = random.integers(0, 3, requests)
    return Workload.from_columns(
        {
            "arrival_s": np.cumsum(random.exponential(1 / rate_per_s, requests)),
            "prompt_tokens": random.integers(20, most_prompt, requests),
            "output_tokens": random.integers(1, most_output, requests),
            "priority": priority,
            "weight": 4.0 - priority,
            "ttft_slo_s": random.choice([0.5, 1.0, 3.0], requests),
            "tpot_slo_s": random.choice([0.03, 0.05, 0.1], requests),
            "ttlt_slo_s": np.where(random.random(requests) < 0.1, 20.0, np.inf),
        }
    )


def batches_of(result: Result) -> list[tuple[float, list[tuple[int, int]]]]:
    """Of each iteration of one engine: its start, and (request, tokens), by request."""
    found: list[tuple[float, list[tuple[int, int]]]] = []
    for line in result.arrays.timeline[: result.arrays.status[0].timeline_used]:
        if line.kind == BATCH_START:
            found.append((float(line.time_s), []))
        elif line.kind == SCHEDULED:
            found[-1][1].append((int(line.request), int(line.tokens)))
    return [(start_s, sorted(batch)) for start_s, batch in found]


def first_difference(served: Drive, result: Result) -> int | None:
    """The first step that differs; None: they are all the same."""
    theirs = [(step.start_s, sorted(step.scheduled)) for step in served.steps]
    ours = batches_of(result)
    differing = (number for number, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b)
    return next(differing, None if len(theirs) == len(ours) else min(len(theirs), len(ours)))


def simulate(workload: Workload, limits: Limits, policy: Policy, profile: Profile, corrected: bool) -> Result:
    deployment = Deployment(
        profile.device, profile.estimator, limits.blocks, watermark=limits.watermark,
        async_scheduling=limits.async_scheduling,
    )  # fmt: skip
    scenario = Scenario(workload, deployment, policy, correction=Correction() if corrected else None)
    return Simulation(scenario, record_timeline=True).run()


def save_policy(policy: Policy, profile: Profile, workload: Workload, folder: str) -> Path:
    """The policy as a file for an engine, its estimator the profile's, with the facts of what will be served."""
    table, path = workload.table, Path(folder) / "policy.json"
    facts = {
        "tpot_slo_s": float(table["tpot_slo_s"].min()),
        "first_token_weight": float(table["prompt_tokens"].mean() / table["output_tokens"].mean()),
    }
    save_artifact(Artifact({"scheduler": policy}, estimator_of(profile), facts), path)
    return path


def plugged_in(workload: Workload, limits: Limits, policy: Policy, profile: Profile, enforce: str) -> Any:
    """vLLM's scheduler with the policy, its estimator the profile's."""
    from servegym.adapters.vllm import AsyncScheduler, Scheduler

    with TemporaryDirectory() as folder:
        path = save_policy(policy, profile, workload, folder)
        section = {"policy": str(path), "enforce": enforce, "decision_limit_s": 60.0}
        return make_scheduler(AsyncScheduler if limits.async_scheduling else Scheduler, limits, {"servegym": section})


def own_scheduler(limits: Limits) -> Any:
    """vLLM's own."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    return make_scheduler(AsyncScheduler if limits.async_scheduling else Scheduler, limits)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("stock", "exact", "order"))
    parser.add_argument("--policy", default="slide-batching:eta=0.03")
    parser.add_argument("--queueing", choices=("fcfs", "priority"), default="fcfs")
    parser.add_argument("--blocks", type=int, default=900)
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--prompt", type=int, default=3000)
    parser.add_argument("--output", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args(arguments)
    registry.load()
    profile, stock = load_profile("a100-llama3-8b"), given.what == "stock"
    budget = 1024 if stock else 2**16
    limits = Limits(given.blocks, max_num_batched_tokens=budget, scheduling_policy=given.queueing)
    own = (
        f"vllm-v1:policy={given.queueing},max_num_batched_tokens={budget},max_num_seqs={limits.max_num_seqs},"
        "watermark=0"
    )
    policy = get_policy("scheduler", own if stock else given.policy)
    heads = "seed", "steps", "simulated", "first difference", "evictions", "gain", "steps not as decided", "tokens"
    print(*narrow_header(*heads), sep="\n")
    for seed in range(given.seeds):
        workload = random_workload(seed, given.requests, given.rate, given.prompt, given.output)
        result = simulate(workload, limits, policy, profile, corrected=not stock)
        if stock:
            scheduler = own_scheduler(limits)
        else:
            scheduler = plugged_in(workload, limits, policy, profile, given.what)
        served = drive(scheduler, workload, profile.device)
        first = first_difference(served, result)
        evictions = sum(len(step.preempted) for step in served.steps)
        gain = served.gain(workload)[0] / float(result.arrays.status[0].gain)
        deviating = ["", ""]
        if not stock:
            counts = scheduler.servegym.metrics.counts
            tokens = sum(n for step in served.steps for _, n in step.scheduled)
            steps = counts["deviating_steps"] / len(served.steps)
            deviating = [f"{steps:.4f}", f"{counts['deviating_tokens'] / tokens:.4f}"]
        simulated, differs = len(batches_of(result)), "none" if first is None else first
        cells = seed, len(served.steps), simulated, differs, evictions, f"{gain:.4f}", *deviating
        print(row(*cells), flush=True)


if __name__ == "__main__":
    main()
