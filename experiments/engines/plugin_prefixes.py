"""Prefix caching: policies in the plug-in beside the same ones simulated, and hit rates of vLLM and of the simulator.

    python -m experiments.engines.plugin_prefixes [--trace mooncake.jsonl] [--page docs/results/...parity.md]

Runs where vLLM is installed. Decisions: at each step the tokens scheduled of each request, those it had before
(found ones among them), which were preempted, and the clock. Memory: the blocks in use, what the free ones hold in the
order in which they will be taken, and what was overwritten. A hit rate is the tokens found by requests when they were
scheduled first, over the tokens of their prompts.
"""

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engines.plugin_parity import plugged_in
from experiments.engines.prefix_parity import compared, first_difference, found_share, page_with, sessions, simulate
from experiments.engines.vllm_driving import Drive, Limits, Step, drive
from servegym.adapters.vllm.versions import installed_version
from servegym.baselines import registry
from servegym.evaluation.markdown import narrow_header, narrow_row, row
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts
from servegym.simulator.policies.policy import get_policy
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.workloads import build_workload

# Policy, blocks of 16 tokens, seed, sessions, sessions/s.
PLUGGED = (
    ("vllm-v1:max_num_batched_tokens=1024", 4000, 1, 60, 4.0),
    ("vllm-v1:max_num_batched_tokens=1024", 400, 3, 60, 4.0),
    ("vllm-v1:max_num_batched_tokens=200", 500, 4, 60, 4.0),
    ("slide-batching", 4000, 1, 30, 4.0),
    ("slide-batching", 900, 2, 60, 4.0),
    ("slide-batching", 350, 6, 60, 4.0),
    ("slide-batching", 400, 10, 90, 8.0),
    ("expected-gain", 4000, 1, 60, 4.0),
    ("expected-gain", 900, 2, 60, 4.0),
    ("expected-gain", 400, 10, 90, 8.0),
    ("sarathi-fcfs:max_num_batched_tokens=256", 400, 10, 90, 8.0),
    ("weighted-vtc:max_num_batched_tokens=512", 400, 5, 60, 4.0),
)
SHARED_TRACES = (("chat-sessions", 8.0, 300, 6000), ("chat-sessions", 8.0, 300, 1500))  # rate/s, requests, blocks


def demanding_sessions(seed: int, count: int, rate_per_s: float) -> Workload:
    """`sessions`, with weights by priority and SLOs of several sizes."""
    plain, random = sessions(seed, count, rate_per_s), np.random.default_rng((2, seed))
    table = plain.table.copy()
    table["weight"] = 4.0 - table["priority"]
    table["ttft_slo_s"] = random.choice([0.5, 1.0, 3.0], len(table))
    table["tpot_slo_s"] = random.choice([0.03, 0.05, 0.1], len(table))
    return Workload(table, plain.name, {}, plain.prefixes)


def plugged_and_simulated(
    policy: str, workload: Workload, limits: Limits, profile: Profile, contents: bool = True
) -> tuple[Drive, list[Step], dict[str, float]]:
    """What vLLM did under a policy in the plug-in, what the simulator does under it, and the plug-in's counters.
    contents: steps say what blocks hold."""
    chosen = get_policy("scheduler", policy)
    _, steps = simulate(workload, limits, chosen, profile, Correction(), contents)
    scheduler = plugged_in(workload, limits, chosen, profile, "exact")
    return drive(scheduler, workload, profile.device, contents=contents), steps, scheduler.servegym.metrics.counts


def plugin_lines(profile: Profile) -> Iterator[str]:
    """The table of policies in the plug-in."""
    yield from narrow_header(
        "policy", "blocks", "decisions of both", "memory of both", "steps", "preemptions", "found by vLLM",
        "found, simulated", "hits not as planned",
    )  # fmt: skip
    total, different = 0, 0
    for policy, blocks, seed, count, rate_per_s in PLUGGED:
        workload = demanding_sessions(seed, count, rate_per_s)
        limits = Limits(blocks, max_num_batched_tokens=2**16, prefix_caching=True)
        served, steps, counts = plugged_and_simulated(policy, workload, limits, profile)
        said = []
        for contents in (False, True):
            first = first_difference(served, steps, contents)
            said.append("all equal" if first is None else f"differ from step {first:,}")
        total, different = total + len(served.steps), different + said[0].startswith("differ")
        preemptions = sum(len(step.preempted) for step in served.steps)
        yield row(
            policy, blocks, *said, f"{len(served.steps):,}", preemptions, f"{found_share(served.steps, workload):.4f}",
            f"{found_share(steps, workload):.4f}", f"{counts['deviating_hits']:.0f}",
        )  # fmt: skip
    runs = f"in all, {different} of {len(PLUGGED)} runs with other decisions"
    yield narrow_row(runs, "", "", "", f"{total:,}", *[""] * 4)


def opened(workload: Workload, arrival_s: np.ndarray) -> Workload:
    """The requests at these times, in their order, and following nobody: a real scheduler is driven by times."""
    order, prompts = np.argsort(arrival_s, kind="stable"), workload.prefixes
    table = workload.table[order].copy()
    table["arrival_s"] = arrival_s[order]
    if prompts is None:
        return Workload(table, workload.name, {})
    chunks = [prompts.chunks[prompts.offsets[r] : prompts.offsets[r + 1]] for r in order]
    taken = Prompts(prompts.chunk_tokens, np.cumsum([0, *map(len, chunks)]), np.concatenate(chunks))
    return Workload(table, workload.name, {}, taken)


def session_workload(trace: str, rate_per_s: float | None, requests: int, limits: Limits, profile: Profile) -> Workload:
    """Requests of a trace; where turns follow each other, at the times at which they come when vllm-v1 serves them."""
    most = limits.blocks * limits.block_tokens // 2
    workload = build_workload(
        trace, requests=requests, rate_per_s=rate_per_s, max_prompt_tokens=most, max_total_tokens=most
    )
    if workload.turns is None:
        return workload
    deployment = Deployment(
        profile.device, profile.estimator, limits.blocks, block_tokens=limits.block_tokens, prefix_caching=True
    )
    own = get_policy("scheduler", "vllm-v1").with_settings(max_num_batched_tokens=limits.max_num_batched_tokens)
    result = Simulation(Scenario(workload, deployment, own)).run()
    return opened(workload, result.arrays.requests["arrival_s"].copy())


def hit_lines(profile: Profile, traces: Sequence[tuple[str, float | None, int, int]]) -> Iterator[str]:
    """The table of hit rates."""
    yield from narrow_header(
        "trace", "requests", "prompt tokens", "blocks", "scheduler", "vLLM", "simulator", "difference", "steps of both"
    )
    for trace, rate_per_s, requests, blocks in traces:
        limits = Limits(blocks, max_num_batched_tokens=2048, prefix_caching=True, max_model_len=2**17)
        workload = session_workload(trace, rate_per_s, requests, limits, profile)
        for policy in ("vllm-v1", "slide-batching"):
            if policy == "vllm-v1":
                served, steps, _ = compared(workload, limits, profile, contents=False)
            else:
                wide = dataclasses.replace(limits, max_num_batched_tokens=2**16)
                served, steps, _ = plugged_and_simulated(policy, workload, wide, profile, contents=False)
            theirs, ours = found_share(served.steps, workload), found_share(steps, workload)
            first = first_difference(served, steps, contents=False)
            prompts = int(workload.table["prompt_tokens"].sum())
            yield row(
                Path(trace).stem, len(workload), f"{prompts:,}", blocks,
                "its own, vllm-v1" if policy == "vllm-v1" else f"{policy}, plug-in", f"{theirs:.4f}", f"{ours:.4f}",
                f"{(ours - theirs) / theirs:+.2%}",
                f"{'all equal' if first is None else f'differ from step {first:,}'} of {len(served.steps):,}",
            )  # fmt: skip


def parts(profile: Profile, traces: Sequence[tuple[str, float | None, int, int]]) -> str:
    """What the page says of a version beside its own scheduler."""
    lines: list[str] = []
    for title, table in (("Policies in the plug-in", plugin_lines(profile)), ("Hit rates", hit_lines(profile, traces))):
        lines += [f"### {title}", ""]
        for line in table:
            lines.append(line)
            print(line, flush=True)
        lines.append("")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trace", help="a recorded trace of sessions beside the generated one, for hit rates")
    parser.add_argument("--requests", type=int, default=200, help="of that trace (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=6000, help="of 16 tokens, for it (default: %(default)s)")
    parser.add_argument("--page", type=Path, help="a page with a section of this version to put the tables into")
    parser.add_argument("--hits-only", action="store_true", help="print the table of hit rates, and no more")
    given = parser.parse_args(arguments)
    registry.load()
    traces: list[Any] = list(SHARED_TRACES)
    if given.trace:
        traces.append((given.trace, None, given.requests, given.blocks))
    if given.hits_only:
        for line in hit_lines(load_profile("a100-llama3-8b"), traces):
            print(line, flush=True)
        return
    text, version = parts(load_profile("a100-llama3-8b"), traces), str(installed_version())
    if given.page is not None:
        page = given.page.read_text(encoding="utf-8")
        old = next((one for one in page.split("\n## vLLM ")[1:] if one.split("\n")[0] == version), version + "\n")
        section = f"## vLLM {old.split(chr(10) + '### ')[0].rstrip()}\n\n{text}"
        given.page.write_text(page_with(page, version, section), encoding="utf-8")


if __name__ == "__main__":
    main()
