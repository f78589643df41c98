"""vLLM's own V1 scheduler and the simulator's with KV cache groups, windows and states: the same at every step?

    python -m experiments.engines.group_parity [--prefixes] [--page docs/results/vllm-parity.md]

Runs where vLLM is installed, for some minutes. Compared at each step: the tokens scheduled of each request and those it
had before, which were preempted, the blocks in use and the clock; with asynchronous scheduling the tokens scheduled and
the clock. Printed is a table, a line for each of CASES; --page puts it into a page.

With --prefixes vLLM caches prefixes, and sessions are served (PREFIX_CASES). Compared are also the tokens found and
what the free blocks hold, in the order in which they will be taken.
"""

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.engines.plugin_parity import first_difference as first_scheduled_otherwise
from experiments.engines.plugin_parity import own_scheduler, random_workload
from experiments.engines.prefix_parity import first_difference, found_share, sessions, simulate
from experiments.engines.vllm_driving import Drive, Limits, drive
from experiments.engines.vllm_driving_ahead import drive_ahead
from servegym.adapters.vllm.versions import installed_version
from servegym.baselines import registry
from servegym.errors import ExperimentError
from servegym.evaluation.markdown import narrow_header, narrow_row
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.kv_groups import KvCacheGroup
from servegym.simulator.policies.policy import get_policy

PLACES = {
    False: ("<!-- groups: written by experiments.engines.group_parity -->", "<!-- end of groups -->"),
    True: ("<!-- cached groups: written by experiments.engines.group_parity -->", "<!-- end of cached groups -->"),
}
FULL, STATE = KvCacheGroup(), KvCacheGroup(state=True)
# Groups as vLLM makes of these models' layers, with as many tokens in a block and in a window.
WINDOWED = (KvCacheGroup(window=4096),)  # Mistral-7B-v0.1
NARROW = (FULL, KvCacheGroup(window=128))  # gpt-oss
MANY = (FULL, *(KvCacheGroup(window=1024),) * 6)  # gemma-3-27b
LOCAL = (FULL, *(KvCacheGroup(window=8192, local=True),) * 3)  # Llama-4
SHORT = (FULL, *(KvCacheGroup(window=512, local=True),) * 3)  # the same, for requests of some thousand tokens
ALONE = (KvCacheGroup(window=1024),)
UNEQUAL = (KvCacheGroup(32), *(KvCacheGroup(window=128),) * 5)  # MiMo-V2-Flash
STATES = (KvCacheGroup(544), *(STATE,) * 3)  # Qwen3-Next
MAMBA = (KvCacheGroup(528), *(STATE,) * 6)  # Nemotron-H-8B
STATES_ALONE = (STATE,)  # Mamba-2.8B, Falcon-Mamba-7B, Mamba-Codestral-7B: one group of all layers
# The same where prefixes are cached: states are in blocks of as many tokens.
CACHED_STATES = (KvCacheGroup(544), *(KvCacheGroup(544, state=True),) * 3)
CACHED_MAMBA = (KvCacheGroup(528), *(KvCacheGroup(528, state=True),) * 6)
CHECKPOINTED = (KvCacheGroup(528), *(KvCacheGroup(528, state=True, checkpoints=True),) * 6)  # as vLLM 0.33 has it
SMALL_CHECKPOINTED = (KvCacheGroup(64), *(KvCacheGroup(64, state=True, checkpoints=True),) * 3)
CACHED_ALONE = (KvCacheGroup(16, state=True),)  # vLLM caches Mamba and Mamba-2 alone only if asked to
CHECKPOINTED_ALONE = (KvCacheGroup(16, state=True, checkpoints=True),)  # Mamba-2
SMALL_STATES = (KvCacheGroup(64), *(KvCacheGroup(64, state=True),) * 3)  # for requests of some hundred tokens


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
    Case("states alone", limits_of(STATES_ALONE, 40), 16, 20.0, 3000, 600, 300),
    Case("the same, priorities", limits_of(STATES_ALONE, 12, 512, scheduling_policy="priority"), 17, 20.0, 2000, 600),
    Case("the same, a watermark", limits_of(STATES_ALONE, 30, watermark=0.1), 18, 20.0, 2000, 600, 300),
    Case("the same, asynchronous", limits_of(STATES_ALONE, 20, async_scheduling=True), 19, 20.0, 2000, 600),
)


def cached(groups: tuple[KvCacheGroup, ...], blocks: int, budget: int = 1024, **others: float | str) -> Limits:
    return limits_of(groups, blocks, budget, prefix_caching=True, **others)


# Of sessions: how many, and how many begin in a second; lengths are those of prefix_parity.
PREFIX_CASES = (
    Case("full, window of 128", cached(NARROW, 4000), 1, 4.0, requests=60),
    Case("the same, little memory", cached(NARROW, 800), 2, 4.0, requests=60),
    Case("the same, priorities", cached(NARROW, 700, 512, scheduling_policy="priority"), 3, 4.0, requests=60),
    Case("full, six windows of 1,024", cached(MANY, 8000), 4, 4.0, requests=60),
    Case("the same, little memory", cached(MANY, 2800), 5, 4.0, requests=60),
    Case("the same, a watermark", cached(MANY, 3000, 256, watermark=0.05), 6, 4.0, requests=60),
    Case("full in blocks of 32, five windows of 128", cached(UNEQUAL, 1300), 7, 4.0, requests=60),
    Case("the same, much memory", cached(UNEQUAL, 5000), 8, 4.0, requests=60),
    Case("full, three local windows of 512", cached(SHORT, 1200), 9, 4.0, requests=60),
    Case("the same, much memory", cached(SHORT, 5000), 10, 4.0, requests=60),
    Case("a window of 1,024", cached(ALONE, 500), 11, 4.0, requests=60),
    Case("full, three states", cached(CACHED_STATES, 60), 14, 4.0, requests=60),
    Case("the same, much memory", cached(CACHED_STATES, 600), 15, 4.0, requests=60),
    Case("full, six states, priorities", cached(CACHED_MAMBA, 90, scheduling_policy="priority"), 16, 4.0, requests=60),
    Case("full, three states, blocks of 64", cached(SMALL_STATES, 200), 17, 4.0, requests=60),
    Case("the same, chunks of 500", cached(SMALL_STATES, 250, 500, watermark=0.05), 18, 4.0, requests=60),
    Case("the same, much memory", cached(SMALL_STATES, 2000), 19, 4.0, requests=60),
    Case("full, three states, a budget below a block", cached(CACHED_STATES, 90, 300), 20, 4.0, requests=60),
    Case("full, six states, checkpoints", cached(CHECKPOINTED, 120), 22, 4.0, requests=60),
    Case("the same, much memory", cached(CHECKPOINTED, 1200), 23, 4.0, requests=60),
    Case("full, three states, blocks of 64, checkpoints", cached(SMALL_CHECKPOINTED, 220), 24, 4.0, requests=60),
    Case("the same, chunks of 500", cached(SMALL_CHECKPOINTED, 250, 500, watermark=0.05), 25, 4.0, requests=60),
    Case("full, window of 128, asynchronous", cached(NARROW, 800, async_scheduling=True), 12, 4.0, requests=60),
    Case("full, six windows of 1,024, asynchronous", cached(MANY, 2800, async_scheduling=True), 13, 4.0, requests=60),
    Case("full, three states, asynchronous", cached(SMALL_STATES, 200, async_scheduling=True), 21, 4.0, requests=60),
    Case("the same, checkpoints", cached(SMALL_CHECKPOINTED, 200, async_scheduling=True), 26, 4.0, requests=60),
    Case("states alone", cached(CACHED_ALONE, 30), 27, 4.0, requests=60),
    Case("the same, much memory", cached(CACHED_ALONE, 400), 28, 4.0, requests=60),
    Case("the same, little memory", cached(CACHED_ALONE, 16, 512), 29, 4.0, requests=60),
    Case("the same, checkpoints", cached(CHECKPOINTED_ALONE, 40), 30, 4.0, requests=60),
    Case(
        "the same, checkpoints, a watermark", cached(CHECKPOINTED_ALONE, 30, 500, watermark=0.1), 31, 4.0, requests=60
    ),
    Case("states alone, asynchronous", cached(CACHED_ALONE, 30, async_scheduling=True), 32, 4.0, requests=60),
)


def workload_of(case: Case) -> Workload:
    if case.limits.prefix_caching:
        return sessions(case.seed, case.requests, case.rate_per_s)
    return random_workload(case.seed, case.requests, case.rate_per_s, case.prompt, case.output)


def compared(case: Case, profile: Profile) -> tuple[Drive, int | None]:
    """What vLLM's scheduler did, and the first step at which the simulator's vllm-v1 did something else; None: there is
    none. Raises ExperimentError where a request is not done."""
    limits, workload = case.limits, workload_of(case)
    policy = get_policy("scheduler", "vllm-v1").with_settings(
        policy=limits.scheduling_policy, max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs, watermark=limits.watermark,
    )  # fmt: skip
    contents = limits.prefix_caching and not limits.async_scheduling
    result, steps = simulate(workload, limits, policy, profile, contents=contents, overwritten=False)
    if result.arrays.status[0].finished != len(workload):
        raise ExperimentError(f"{case.label}: {result.arrays.status[0].finished} of {len(workload)} requests finished")
    if limits.async_scheduling:
        served = drive_ahead(own_scheduler(limits), workload, profile.device)
        return served, first_scheduled_otherwise(served, result)
    served = drive(own_scheduler(limits), workload, profile.device)
    return served, first_difference(served, steps, overwritten=False)


def rows(profile: Profile, cases: Sequence[Case] = CASES) -> Iterator[str]:
    """The table, line by line."""
    groups = f"groups of layers (vLLM {installed_version()})"
    with_prefixes = any(case.limits.prefix_caching for case in cases)
    found = ("found",) if with_prefixes else ()
    numbers = (1, 2, 4, 5)[: 3 + with_prefixes]
    yield from narrow_header(groups, "blocks", "steps", "equal", "preemptions", *found, numbers=numbers)
    total = equal = evictions = 0
    for case in cases:
        served, first = compared(case, profile)
        count = len(served.steps)
        preempted = sum(len(step.preempted) for step in served.steps)
        total, equal, evictions = total + count, equal + (count if first is None else first), evictions + preempted
        said = "all" if first is None else f"the first {first:,}"
        found = (f"{100 * found_share(served.steps, workload_of(case)):.0f} %",) if with_prefixes else ()
        yield narrow_row(case.label, f"{case.limits.blocks:,}", f"{count:,}", said, f"{preempted:,}", *found)
    yield narrow_row("in all", "", f"{total:,}", f"{equal:,}", f"{evictions:,}", *([""] if with_prefixes else []))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--page", type=Path, help="a page to write the table into")
    parser.add_argument("--prefixes", action="store_true", help="with prefix caching, on sessions")
    given = parser.parse_args(arguments)
    registry.load()
    lines = []
    for line in rows(load_profile("a100-llama3-8b"), PREFIX_CASES if given.prefixes else CASES):
        lines.append(line)
        print(line, flush=True)
    if given.page is not None:
        text, (begin, end) = given.page.read_text("utf-8"), PLACES[given.prefixes]
        if begin not in text or end not in text:
            raise ExperimentError(f'{given.page} has no "{begin}" and "{end}" to write between')
        head, _, rest = text.partition(begin)
        given.page.write_text("\n".join([head + begin, *lines, end + rest.partition(end)[2]]), encoding="utf-8")


if __name__ == "__main__":
    main()
