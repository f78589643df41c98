"""vLLM's own V1 scheduler and the simulator's, both with prefix caching, on sessions (docs/vllm.md).

    python -m servegym.experiments.engines.prefix_parity [--blocks 700] [--seeds 5] [--queueing fcfs]

Runs where vLLM is installed. Compared at each step: the tokens scheduled of each request and those it had before (what
it found among them), who was preempted, the blocks in use, the blocks overwritten so far, and the clock. Printed for
each seed: steps, the first that differs ("none"), preemptions, blocks overwritten, share of tokens found by each.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from servegym.adapters.vllm.driving import Drive, Limits, Step, drive, make_scheduler
from servegym.baselines import registry
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.deployment import Deployment
from servegym.simulator.policies import Policy, get_policy
from servegym.simulator.prefixes import Prompts
from servegym.simulator.results import Result
from servegym.simulator.scenario import Scenario
from servegym.simulator.simulation import Simulation
from servegym.simulator.types import BATCH_END, BATCH_START, EVICTED, FOUND, SCHEDULED
from servegym.simulator.workload import Workload

CHUNK_TOKENS = 16


def sessions(seed: int, count: int, rate_per_s: float, think_s: float = 2.0, systems: int = 3) -> Workload:
    """Sessions of 1 to 6 turns: a prompt is one of a few system prompts, all turns before, and what is new.

    A turn may come before the one before it is answered: then it finds less.
    """
    random = np.random.default_rng(seed)
    system_tokens = random.integers(50, 600, systems)
    rows: list[tuple[float, int, int, list[tuple[str, int, int]]]] = []
    for session, begin_s in enumerate(np.cumsum(random.exponential(1 / rate_per_s, count)).tolist()):
        system = int(random.integers(systems))
        context, now_s = int(system_tokens[system]), begin_s
        for _ in range(int(random.integers(1, 7))):
            prompt, output = context + int(random.integers(5, 400)), int(random.integers(1, 300))
            context = prompt + output
            chunks = [
                ("system", system, i) if (i + 1) * CHUNK_TOKENS <= system_tokens[system] else ("session", session, i)
                for i in range(context // CHUNK_TOKENS)
            ]
            rows.append((now_s, prompt, output, chunks))
            now_s += float(random.exponential(think_s))
    rows.sort(key=lambda row: row[0])
    numbers: dict[tuple[str, int, int], int] = {}
    numbered = [[numbers.setdefault(chunk, len(numbers)) for chunk in row[3]] for row in rows]
    columns = {name: np.array([row[i] for row in rows]) for i, name in enumerate(("arrival_s", "prompt_tokens"))}
    workload = Workload.from_columns(
        columns | {"output_tokens": np.array([row[2] for row in rows]), "priority": random.integers(0, 3, len(rows))},
        name="sessions",
    )
    prompts = Prompts(CHUNK_TOKENS, np.cumsum([0, *map(len, numbered)]), np.concatenate(numbered))
    return Workload(workload.table, "sessions", {}, prompts)


def simulate(workload: Workload, limits: Limits, policy: Policy, profile: Profile) -> tuple[Result, list[Step]]:
    """The run, and its iterations as the steps of an engine."""
    deployment = Deployment(
        profile.device, profile.estimator, limits.blocks, block_tokens=limits.block_tokens, watermark=limits.watermark,
        prefix_caching=limits.prefix_caching,
    )  # fmt: skip
    simulation = Simulation(Scenario(workload, deployment, policy), record_timeline=True)
    overwritten = []  # before each batch
    while simulation.step():
        overwritten.append(int(simulation.arrays.engines[0].totals.overwritten_blocks))
    result = simulation.result()
    overwritten.append(int(simulation.arrays.engines[0].totals.overwritten_blocks))
    steps: list[Step] = []
    computed, evicted = np.zeros(len(workload), "i8"), set[int]()
    for line in result.arrays.timeline[: result.arrays.status[0].timeline_used]:
        if line.kind == EVICTED:
            evicted.add(int(line.request))
            computed[line.request] = 0
        elif line.kind == FOUND:
            computed[line.request] = line.tokens
        elif line.kind == BATCH_START:
            steps.append(Step(float(line.time_s), 0.0, [], evicted, 0, {}, overwritten[len(steps) + 1]))
            evicted = set()
        elif line.kind == SCHEDULED:
            steps[-1].scheduled.append((int(line.request), int(line.tokens)))
            steps[-1].cached_tokens[int(line.request)] = int(computed[line.request])
            computed[line.request] += line.tokens
        elif line.kind == BATCH_END:
            steps[-1].end_s, steps[-1].used_blocks = float(line.time_s), int(line.tokens)
    return result, steps


def first_difference(served: Drive, steps: list[Step]) -> int | None:
    """The first step that differs; None: they are all the same. (Within a step the order of a batch means nothing.)"""

    def parts(step: Step) -> tuple[Any, ...]:
        times_s = (step.start_s, step.end_s)
        return (*times_s, sorted(step.scheduled), step.preempted, step.used_blocks, step.cached_tokens,
                step.overwritten_blocks)  # fmt: skip

    differing = (n for n, (a, b) in enumerate(zip(served.steps, steps, strict=False)) if parts(a) != parts(b))
    return next(differing, None if len(served.steps) == len(steps) else min(len(served.steps), len(steps)))


def found_share(steps: list[Step], workload: Workload) -> float:
    """Of the prompt tokens the share that their requests had when they were first scheduled."""
    first: dict[int, int] = {}
    for step in steps:
        for r, tokens in step.cached_tokens.items():
            first.setdefault(r, tokens)
    return sum(first.values()) / float(workload.table["prompt_tokens"].sum())


def compared(workload: Workload, limits: Limits, profile: Profile) -> tuple[Drive, list[Step], Result]:
    """What vLLM's scheduler did, and what the simulator's vllm-v1."""
    from vllm.v1.core.sched.scheduler import Scheduler

    policy = get_policy("scheduler", "vllm-v1").with_settings(
        policy=limits.scheduling_policy, token_budget=limits.max_num_batched_tokens,
        max_sequences=limits.max_num_seqs, watermark=limits.watermark,
    )  # fmt: skip
    result, steps = simulate(workload, limits, policy, profile)
    return drive(make_scheduler(Scheduler, limits), workload, profile.device), steps, result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--queueing", choices=("fcfs", "priority"), default="fcfs")
    parser.add_argument("--blocks", type=int, default=700)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--watermark", type=float, default=0.0)
    parser.add_argument("--sessions", type=int, default=60)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args(arguments)
    registry.load()
    profile = load_profile("a100-llama3-8b")
    limits = Limits(
        given.blocks, max_num_batched_tokens=given.budget, max_num_seqs=given.sequences,
        scheduling_policy=given.queueing, watermark=given.watermark, prefix_caching=True,
    )  # fmt: skip
    print("| seed | steps | first difference | preemptions | blocks overwritten | found, vLLM | found, simulated |")
    print("|---|---|---|---|---|---|---|")
    for seed in range(given.seeds):
        workload = sessions(seed, given.sessions, given.rate)
        served, steps, _ = compared(workload, limits, profile)
        first, last = first_difference(served, steps), served.steps[-1]
        preemptions = sum(len(step.preempted) for step in served.steps)
        shares = [f"{found_share(those, workload):.4f}" for those in (served.steps, steps)]
        print(
            f"| {seed} | {len(served.steps)} | {'none' if first is None else first} | {preemptions} | "
            f"{last.overwritten_blocks} | {' | '.join(shares)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
