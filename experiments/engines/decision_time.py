"""How long a decision takes in the plug-in: python -m experiments.engines.decision_time [--running N --waiting N]

vLLM's scheduler is filled with requests, of which `--running` decode and `--waiting` wait, and is then stepped.
Printed, as one JSON object: median and 99th percentile of a decision (planning, and setting up vLLM for it), what
taking in the step costs besides, vLLM's own `schedule`, and the share of the bound.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.engines.serving import artifact_for
from experiments.engines.vllm_driving import MOST_ID, Limits, block_hasher, make_request, make_scheduler
from servegym.baselines import registry
from servegym.baselines.artifact import save_artifact
from servegym.latency_models.profile import load_profile
from servegym.simulator.inputs.workload import Workload

BOUND_S = 1e-3
OUTPUT_TOKENS = 10_000  # of the running requests: they go on decoding
SHARED_TOKENS = 64  # at the beginning of all prompts, where prefixes are cached


def measure(
    policy: str, running: int, waiting: int, steps: int, enforce: str, prefix_caching: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Times of decisions with so many requests, in microseconds. With prefix caching their prompts begin alike."""
    registry.load()
    profile, random = load_profile("h200-llama3-8b"), np.random.default_rng(seed)
    total = running + waiting
    workload = Workload.from_columns(
        {
            "arrival_s": np.zeros(total),
            "prompt_tokens": random.integers(100, 400, total),
            "output_tokens": OUTPUT_TOKENS,
            "ttft_slo_s": random.choice([0.5, 1.0, 3.0], total),
            "tpot_slo_s": random.choice([0.03, 0.05, 0.1], total),
            "weight": random.choice([1.0, 2.0], total),
        }
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "policy.json"
        save_artifact(artifact_for({"scheduler": policy}, workload, profile), path)
        from servegym.adapters.vllm import Scheduler

        config = {"servegym": {"policy": str(path), "enforce": enforce, "decision_limit_s": 10.0}}
        limits = Limits(profile.kv.total_blocks, max_num_seqs=running, prefix_caching=prefix_caching)
        scheduler = make_scheduler(Scheduler, limits, config)
    return _step(scheduler, workload, running, waiting, steps)


class Stopwatch:
    """Calls of a function, timed: wall time, and time of this thread on a core, that others hardly lengthen."""

    def __init__(self, owner: Any, name: str):
        self.function = getattr(owner, name)
        self.wall_s, self.cpu_s = 0.0, 0.0
        setattr(owner, name, self)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        cpu_s, begin = time.thread_time(), time.perf_counter()
        result = self.function(*arguments, **keywords)
        self.wall_s, self.cpu_s = time.perf_counter() - begin, time.thread_time() - cpu_s
        return result


def _step(scheduler: Any, workload: Workload, running: int, waiting: int, steps: int) -> dict[str, Any]:
    from vllm.v1.outputs import ModelRunnerOutput

    plugin, now_s = scheduler.servegym, 0.0
    scheduler.use_clock(lambda: now_s)
    decision, after, ended = (Stopwatch(plugin, name) for name in ("before", "after", "ended"))
    schedule = Stopwatch(scheduler, "schedule")
    walls: list[float] = []
    cpus: list[float] = []
    taking_in: list[float] = []
    own: list[float] = []
    added = 0
    hasher = block_hasher(scheduler.block_size) if scheduler.kv_cache_manager.enable_caching else None
    while len(walls) < steps:
        wanted = running if len(scheduler.running) < running else running + waiting
        while len(scheduler.requests) < min(wanted, len(workload)):
            row = workload.table[added]
            own_ids = np.random.default_rng(added).integers(MOST_ID, size=int(row.prompt_tokens) - SHARED_TOKENS)
            prompt = None if hasher is None else [5] * SHARED_TOKENS + own_ids.tolist()
            scheduler.add_request(make_request(row, added, prompt, hasher))
            added += 1
        output = scheduler.schedule()
        ids = list(output.num_scheduled_tokens)
        tokens = [[] if scheduler.requests[i].is_prefill_chunk else [7] for i in ids]
        places = {request_id: place for place, request_id in enumerate(ids)}
        now_s += 0.02
        ran = ModelRunnerOutput(req_ids=ids, req_id_to_index=places, sampled_token_ids=tokens)
        scheduler.update_from_output(output, ran)
        if len(scheduler.running) == running and len(scheduler.waiting) == waiting:
            walls.append(decision.wall_s)
            cpus.append(decision.cpu_s)
            taking_in.append(after.cpu_s + ended.cpu_s)
            own.append(schedule.cpu_s - decision.cpu_s - after.cpu_s)

    def microseconds(seconds: list[float], percentile: float) -> float:
        return round(1e6 * float(np.percentile(seconds, percentile)), 1)

    return {
        "running": running,
        "waiting": waiting,
        "steps": steps,
        "decision_p50_us": microseconds(walls, 50),
        "decision_p99_us": microseconds(walls, 99),
        "decision_cpu_p50_us": microseconds(cpus, 50),
        "decision_cpu_p99_us": microseconds(cpus, 99),
        "taking_in_cpu_p50_us": microseconds(taking_in, 50),
        "vllm_schedule_cpu_p50_us": microseconds(own, 50),
        "p99_of_bound": round(float(np.percentile(walls, 99)) / BOUND_S, 3),
        "p50_of_bound": round(float(np.percentile(walls, 50)) / BOUND_S, 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--policy", default="slide-batching")
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--enforce", choices=("exact", "order"), default="exact")
    parser.add_argument("--prefix-caching", action="store_true")
    given = parser.parse_args(arguments)
    sizes = given.running, given.waiting, given.steps
    print(json.dumps(measure(given.policy, *sizes, given.enforce, given.prefix_caching), indent=2))


if __name__ == "__main__":
    main()
