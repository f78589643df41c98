"""vLLM's own V1 scheduler and the simulator's with KV cache groups, windows and states: the same at every step?

    python -m experiments.engines.group_parity [--page docs/results/vllm-parity.md]

Runs where vLLM is installed, for some minutes. Compared at each step: the tokens scheduled of each request and those it
had before, which were preempted, the blocks in use and the clock; with asynchronous scheduling the tokens scheduled and
the clock. Printed is a table, a line for each of CASES; --page puts it into a page.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.engines.plugin_parity import first_difference as first_scheduled_otherwise
from experiments.engines.plugin_parity import own_scheduler, random_workload
from experiments.engines.prefix_parity import first_difference, simulate
from experiments.engines.vllm_driving import Drive, Limits, drive
from experiments.engines.vllm_driving_ahead import drive_ahead
from servegym.adapters.vllm.versions import installed_version
from servegym.baselines import registry
from servegym.errors import ExperimentError
from servegym.evaluation.markdown import narrow_header, narrow_row
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.memory.kv_groups import KvCacheGroup
from servegym.simulator.policies.policy import get_policy

BEGIN, END = "<!-- groups: written by experiments.engines.group_parity -->", "<!-- end of groups -->"
FULL, STATE = KvCacheGroup(), KvCacheGroup(state=True)
# Groups as vLLM makes of these models' layers, with as many tokens in a block and in a window.
WINDOWED = (KvCacheGroup(window=4096),)  # Mistral-7B-v0.1
NARROW = (FULL, KvCacheGroup(window=128))  # gpt-oss
MANY = (FULL, *(KvCacheGroup(window=1024),) * 6)  # gemma-3-27b
LOCAL = (FULL, *(KvCacheGroup(window=8192, local=True),) * 3)  # Llama-4
UNEQUAL = (KvCacheGroup(32), *(KvCacheGroup(window=128),) * 5)  # MiMo-V2-Flash
STATES = (KvCacheGroup(544), *(STATE,) * 3)  # Qwen3-Next
MAMBA = (KvCacheGroup(528), *(STATE,) * 6)  # Nemotron-H-8B


@dataclasses.dataclass(frozen=True)
class Case:
    """Settings, and random requests for them: how many, and bounds of their tokens."""

    label: str
    limits: Limits
    seed: int
    rate_per_s: float = 20.0
    prompt: int = 3000
    output: int = 300
    requests: int = 100


def limits_of(groups: tuple[KvCacheGroup, ...], blocks: int, budget: int = 1024, **others: float | str) -> Limits:
    return Limits(blocks, max_num_batched_tokens=budget, groups=groups, **others)  # type: ignore[arg-type]


CASES = (
    Case("a window of 4,096", limits_of(WINDOWED, 1500), 1, 2.0, 12000),
    Case("the same, little memory", limits_of(WINDOWED, 900, 512, scheduling_policy="priority"), 2, 4.0, 12000),
    Case("full, window of 128", limits_of(NARROW, 4000), 3),
    Case("the same, little memory", limits_of(NARROW, 450), 4, 30.0, 600, 400),
    Case("full, six windows of 1,024", limits_of(MANY, 6000), 5),
    Case("the same, little memory", limits_of(MANY, 2200), 6, 30.0, 600, 400),
    Case("the same, a watermark", limits_of(MANY, 1800, 256, watermark=0.05), 7, 20.0, 2000),
    Case("full, three local windows of 8,192", limits_of(LOCAL, 5000, 2048), 8, 4.0, 16000),
    Case("full in blocks of 32, five windows of 128", limits_of(UNEQUAL, 800), 9, 30.0, 600, 400),
    Case("full, three states", limits_of(STATES, 60), 10, 20.0, 2000, 600),
    Case("the same, much memory", limits_of(STATES, 600), 11, 20.0, 2000),
    Case("full, six states, priorities", limits_of(MAMBA, 100, scheduling_policy="priority"), 12, 20.0, 2000, 600),
    Case("full, window of 128, asynchronous", limits_of(NARROW, 450, async_scheduling=True), 13, 30.0, 600, 400),
    Case("full, six windows of 1,024, asynchronous", limits_of(MANY, 2200, async_scheduling=True), 14, 30.0, 600, 400),
    Case("full, three states, asynchronous", limits_of(STATES, 60, async_scheduling=True), 15, 20.0, 2000, 600),
)


def compared(case: Case, profile: Profile) -> tuple[Drive, int | None]:
    """What vLLM's scheduler did, and the first step at which the simulator's vllm-v1 did something else; None: there is
    none. Raises ExperimentError where a request is not done."""
    limits = case.limits
    workload = random_workload(case.seed, case.requests, case.rate_per_s, case.prompt, case.output)
    policy = get_policy("scheduler", "vllm-v1").with_settings(
        policy=limits.scheduling_policy, max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs, watermark=limits.watermark,
    )  # fmt: skip
    result, steps = simulate(workload, limits, policy, profile, contents=False)
    if result.arrays.status[0].finished != len(workload):
        raise ExperimentError(f"{case.label}: {result.arrays.status[0].finished} of {len(workload)} requests finished")
    if limits.async_scheduling:
        served = drive_ahead(own_scheduler(limits), workload, profile.device)
        return served, first_scheduled_otherwise(served, result)
    served = drive(own_scheduler(limits), workload, profile.device)
    return served, first_difference(served, steps)


def rows(profile: Profile, cases: Sequence[Case] = CASES) -> Iterator[str]:
    """The table, line by line."""
    groups = f"groups of layers (vLLM {installed_version()})"
    yield from narrow_header(groups, "blocks", "steps", "equal", "preemptions", numbers=(1, 2, 4))
    total = equal = evictions = 0
    for case in cases:
        served, first = compared(case, profile)
        count = len(served.steps)
        preempted = sum(len(step.preempted) for step in served.steps)
        total, equal, evictions = total + count, equal + (count if first is None else first), evictions + preempted
        said = "all" if first is None else f"the first {first:,}"
        yield narrow_row(case.label, f"{case.limits.blocks:,}", f"{count:,}", said, f"{preempted:,}")
    yield narrow_row("in all", "", f"{total:,}", f"{equal:,}", f"{evictions:,}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--page", type=Path, help="a page to write the table into")
    given = parser.parse_args(arguments)
    registry.load()
    lines = []
    for line in rows(load_profile("a100-llama3-8b")):
        lines.append(line)
        print(line, flush=True)
    if given.page is not None:
        text = given.page.read_text("utf-8")
        if BEGIN not in text or END not in text:
            raise ExperimentError(f'{given.page} has no "{BEGIN}" and "{END}" to write between')
        head, _, rest = text.partition(BEGIN)
        given.page.write_text("\n".join([head + BEGIN, *lines, END + rest.partition(END)[2]]), encoding="utf-8")


if __name__ == "__main__":
    main()
