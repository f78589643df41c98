"""Decisions of SGLang's own scheduler under a policy of ours, and of the simulator. Runs where SGLang is installed.

    python -m experiments.engines.sglang_parity [--policy sarathi-edf] [--tokens 30000]

A run is of random requests to their ends, on an emulated device. Printed, as a line of JSON: steps; the first that
differs from the simulated one (null: none); retractions; gains served and simulated; the share of steps that were not
as decided; tokens lost or too many (0); KV memory that was not given back (0).

--policy none: SGLang decides alone. --shared N: prompts begin alike for so many tokens, and the radix cache is on.
"""

import json
import os
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import typer

from experiments.engines.plugin_parity import batches_of, first_difference, random_workload, save_policy
from experiments.engines.sglang_driving import Limits, drive, make_scheduler
from servegym.baselines import registry
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Policy, get_policy
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation


def simulate(workload: Workload, limits: Limits, policy: Policy, profile: Profile) -> Result:
    """The same, simulated: a block is a token."""
    engine = Deployment(profile.device, profile.estimator, limits.tokens, block_tokens=1, watermark=0.0)
    return Simulation(Scenario(workload, engine, policy, correction=Correction()), record_timeline=True).run()


def plugged_in(workload: Workload, limits: Limits, policy: Policy | None, profile: Profile) -> Any:
    """SGLang's scheduler with the policy, its estimator the profile's; None: without ours."""
    os.environ.pop("SERVEGYM_POLICY", None)
    with TemporaryDirectory() as folder:
        if policy is not None:
            path = save_policy(policy, profile, workload, folder)
            os.environ |= {"SERVEGYM_POLICY": str(path), "SERVEGYM_DECISION_LIMIT_S": "60"}
        return make_scheduler(limits)


def main(
    policy: str = "vllm-v1:max_num_batched_tokens=1024,watermark=0",
    tokens: int = 12000,
    requests: int = 60,
    rate: float = 40.0,
    shared: int = 0,
    seed: int = 0,
) -> None:
    registry.load()
    profile = load_profile("a100-llama3-8b")
    plugged = None if policy == "none" else get_policy("scheduler", policy)
    limits = Limits(tokens, radix_cache=shared > 0, chunked_prefill_size=1024)
    workload = random_workload(seed, requests, rate, 3000, 300)
    prompts = [
        [9] * min(shared, int(row.prompt_tokens)) + [10 + index] * max(0, int(row.prompt_tokens) - shared)
        for index, row in enumerate(workload.table)
    ]
    scheduler = plugged_in(workload, limits, plugged, profile)
    served = drive(scheduler, workload, profile.device, prompts)
    out = np.array([len(times) for times in served.token_s])
    kept = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
    found: dict[str, Any] = {
        "policy": policy, "seed": seed, "steps": len(served.steps),
        "retractions": sum(len(step.preempted) for step in served.steps),
        "gain": served.gain(workload)[0], "wrong_tokens": int(np.abs(out - workload.table["output_tokens"]).sum()),
        "memory_not_returned": limits.tokens - kept,
    }  # fmt: skip
    if plugged is not None:
        counts = scheduler.servegym.metrics.counts
        found |= {"not_as_decided": counts["deviating_steps"] / len(served.steps), "broken": counts["broken"],
                  "fallback_steps": counts["fallback_steps"],
                  "decision_ms": 1e3 * scheduler.servegym.metrics.decision_s / max(1, counts["decisions"])}  # fmt: skip
    if plugged is not None and not shared:
        result = simulate(workload, limits, plugged, profile)
        found |= {"simulated_steps": len(batches_of(result)), "first_difference": first_difference(served, result),
                  "simulated_gain": float(result.arrays.status[0].gain)}  # fmt: skip
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    typer.run(main)
