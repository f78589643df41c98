"""vLLM's own V1 scheduler and the simulator's, both with prefix caching, on sessions: the same at every step?

    python -m experiments.engines.prefix_parity [--page docs/vllm_prefix_parity.md]

Runs where vLLM is installed, and takes some minutes. Compared at each step: the tokens scheduled of each request and
those it had before (found ones among them), which were preempted, the blocks in use, what the free blocks hold in the
order in which they will be taken, what was overwritten in which order, and the clock. Printed is a table, a line for
each of CASES; --page puts it into a page in the place of what that says of this version.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.engines.cached_blocks import Name
from experiments.engines.vllm_driving import Drive, Limits, Step, drive, make_scheduler
from servegym.adapters.vllm.versions import installed_version
from servegym.baselines import registry
from servegym.errors import ExperimentError
from servegym.evaluation.markdown import narrow_header, narrow_row, row
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts
from servegym.simulator.policies.policy import Policy, get_policy
from servegym.simulator.records.named_blocks import NAMES_OF_A_CHUNK
from servegym.simulator.records.types import BATCH_END, BATCH_START, EVICTED, FOUND, SCHEDULED
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation

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


class Memory(NamedTuple):
    """KV blocks of a simulated engine: their names as the simulator has them, which are free, in order, and how many
    with names were overwritten so far."""

    names: list[int]
    free: list[int]
    overwritten: int


def memory_of(simulation: Simulation) -> Memory:
    engine, blocks = simulation.arrays.engines[0], simulation.arrays.cache.blocks[0]
    after, free, block = blocks["after"].tolist(), [], int(engine.cache.first_free)
    while block >= 0:
        free.append(block)
        block = after[block]
    return Memory(blocks["name"].tolist(), free, int(engine.totals.overwritten_blocks))


def plain_name(name: int, limits: Limits | None = None) -> Name:
    """As `cached_blocks` has it. limits: of an engine that may have KV cache groups."""
    number, i = divmod(abs(name), NAMES_OF_A_CHUNK)
    number = number - 1 if name > 0 else -number
    if limits is None or len(limits.groups) < 2:
        return number, i
    i, group = divmod(i, len(limits.groups))
    return number, (i + 1) * limits.groups[group].block_tokens // limits.hashed_tokens - 1, group


def overwritten_between(before: Memory, now: Memory, limits: Limits | None = None) -> list[Name]:
    """Names lost in a step: of blocks that were free before it, in their order; then of those that were not."""
    free = set(before.free)
    order = [*before.free, *(block for block in range(len(before.names)) if block not in free)]
    lost = [before.names[b] for b in order if before.names[b] != 0 and before.names[b] != now.names[b]]
    return [plain_name(name, limits) for name in lost]


def simulate(
    workload: Workload,
    limits: Limits,
    policy: Policy,
    profile: Profile,
    correction: Correction | None = None,
    contents: bool = True,
    overwritten: bool = True,
) -> tuple[Result, list[Step]]:
    """The run, and its iterations as the steps of an engine. contents: they say what blocks hold, and what was
    overwritten.

    Raises ExperimentError where a block got its old name again in the step in which it was overwritten: what was lost
    cannot be told then.
    """
    deployment = Deployment(
        profile.device, profile.estimator, limits.blocks, block_tokens=limits.block_tokens, watermark=limits.watermark,
        prefix_caching=limits.prefix_caching, async_scheduling=limits.async_scheduling,
        kv_groups=limits.groups,
    )  # fmt: skip
    simulation = Simulation(Scenario(workload, deployment, policy, correction=correction), record_timeline=True)
    memory = []  # before each batch
    while contents and simulation.step():
        memory.append(memory_of(simulation))
    result = simulation.result() if contents else simulation.run()
    if contents:
        memory.append(memory_of(simulation))
    steps: list[Step] = []
    computed, evicted = np.zeros(len(workload), "i8"), set[int]()
    for line in result.arrays.timeline[: result.arrays.status[0].timeline_used]:
        if line.kind == EVICTED:
            evicted.add(int(line.request))
            computed[line.request] = 0
        elif line.kind == FOUND:
            computed[line.request] = line.tokens
        elif line.kind == BATCH_START:
            steps.append(Step(float(line.time_s), 0.0, [], evicted, 0))
            evicted = set()
        elif line.kind == SCHEDULED:
            steps[-1].scheduled.append((int(line.request), int(line.tokens)))
            steps[-1].cached_tokens[int(line.request)] = int(computed[line.request])
            computed[line.request] += line.tokens
        elif line.kind == BATCH_END:
            steps[-1].end_s, steps[-1].used_blocks = float(line.time_s), int(line.tokens)
    for step, (before, now) in zip(steps, pairwise(memory), strict=contents):
        step.free = [plain_name(before.names[b], limits) if before.names[b] != 0 else None for b in before.free]
        if not overwritten:
            continue
        step.overwritten = overwritten_between(before, now, limits)
        if len(step.overwritten) != now.overwritten - before.overwritten:
            raise ExperimentError(f"at {step.start_s} s a block was overwritten by what it held")
    return result, steps


def in_order(step: Step) -> list[Name]:
    """What was overwritten: of what was free before the step, in order; then what was freed in the step itself, of
    which the simulator's order is not recorded, sorted."""
    free = set(step.free)
    return [n for n in step.overwritten if n in free] + sorted(n for n in step.overwritten if n not in free)


def first_difference(served: Drive, steps: list[Step], contents: bool = True, overwritten: bool = True) -> int | None:
    """The first step that differs; None: they are all the same. (Within a step the order of a batch means nothing.)

    contents: blocks in use and what they hold count, not only what is decided. overwritten: and what a step overwrote.
    """

    def parts(step: Step) -> tuple[Any, ...]:
        decided = (step.start_s, step.end_s, sorted(step.scheduled), step.preempted, step.cached_tokens)
        if not contents:
            return decided
        return (*decided, step.used_blocks, step.free, *([in_order(step)] if overwritten else []))

    differing = (n for n, (a, b) in enumerate(zip(served.steps, steps, strict=False)) if parts(a) != parts(b))
    return next(differing, None if len(served.steps) == len(steps) else min(len(served.steps), len(steps)))


def found_share(steps: list[Step], workload: Workload) -> float:
    """Of the prompt tokens the share that their requests had when they were first scheduled."""
    first: dict[int, int] = {}
    for step in steps:
        for r, tokens in step.cached_tokens.items():
            first.setdefault(r, tokens)
    return sum(first.values()) / float(workload.table["prompt_tokens"].sum())


def compared(
    workload: Workload, limits: Limits, profile: Profile, contents: bool = True
) -> tuple[Drive, list[Step], Result]:
    """What vLLM's scheduler did, and what the simulator's vllm-v1. contents: steps say what blocks hold."""
    from vllm.v1.core.sched.scheduler import Scheduler

    policy = get_policy("scheduler", "vllm-v1").with_settings(
        policy=limits.scheduling_policy, max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs, watermark=limits.watermark,
    )  # fmt: skip
    result, steps = simulate(workload, limits, policy, profile, contents=contents)
    return drive(make_scheduler(Scheduler, limits), workload, profile.device, contents=contents), steps, result


@dataclass(frozen=True)
class Case:
    """Settings, and sessions for them, in each of which several turns share what was said."""

    label: str
    limits: Limits
    seed: int
    sessions: int = 60
    rate_per_s: float = 4.0


def _limits(blocks: int, budget: int, **others: Any) -> Limits:
    return Limits(blocks, max_num_batched_tokens=budget, prefix_caching=True, **others)


CASES = (
    Case("roomy", _limits(4000, 1024), 1),
    Case("overwriting", _limits(900, 1024), 2),
    Case("pressure", _limits(400, 1024), 3),
    Case("pressure, other sessions", _limits(350, 512), 6),
    Case("small chunks", _limits(500, 200, max_num_seqs=128), 4),
    Case("small chunks, pressure", _limits(350, 128, max_num_seqs=64), 7),
    Case("few sequences", _limits(450, 1024, max_num_seqs=8), 8),
    Case("watermark", _limits(500, 1024, watermark=0.05), 5),
    Case("blocks of 32 tokens", _limits(200, 512, block_tokens=32), 9),
    Case("many sessions", _limits(400, 768), 10, sessions=90, rate_per_s=8.0),
)


def row_of(case: Case, profile: Profile) -> tuple[str, np.ndarray]:
    """A line of the table, and what is counted: steps, tokens scheduled and found, preemptions, overwritten blocks."""
    workload = sessions(case.seed, case.sessions, case.rate_per_s)
    served, steps, _ = compared(workload, case.limits, profile)
    first, scheduled, found = first_difference(served, steps), 0, 0
    computed = dict.fromkeys(range(len(workload)), 0)
    for step in served.steps:
        for request in step.preempted:
            computed[request] = 0
        for request, tokens in step.scheduled:
            found += step.cached_tokens[request] - computed[request]
            computed[request] = step.cached_tokens[request] + tokens
            scheduled += tokens
    counts = np.array([
        len(served.steps), scheduled, found, sum(len(step.preempted) for step in served.steps),
        sum(len(step.overwritten) for step in served.steps),
    ])  # fmt: skip
    limits = case.limits
    shape = f"{limits.blocks} of {limits.block_tokens}", limits.max_num_batched_tokens, limits.max_num_seqs
    equal = "all equal" if first is None else f"differ from step {first}"
    return row(case.label, *shape, equal, *(f"{n:,}" for n in counts)), counts


def section_of(version: str, profile: Profile, cases: Sequence[Case] = CASES) -> str:
    """What the page says of a version."""
    lines = [
        f"## vLLM {version}", "",
        *narrow_header(
            "", "blocks", "tokens in a batch", "sequences", "steps of both", "steps", "tokens scheduled", "found",
            "preemptions", "blocks overwritten",
        ),
    ]  # fmt: skip
    total = np.zeros(5, "i8")
    for case in cases:
        line, counts = row_of(case, profile)
        total += counts
        lines.append(line)
        print(line, flush=True)
    lines.append(narrow_row("in all", "", "", "", "", *(f"{n:,}" for n in total)))
    return "\n".join(lines) + "\n"


def page_with(page: str, version: str, section: str) -> str:
    """The page with this section in the place of the one of this version, or where it belongs.

    A section's parts (plugin_prefixes.py) stay, if the new one has none.
    """
    head, *sections = page.split("\n## vLLM ")
    if "\n### " not in section:
        old = next((one for one in sections if one.split("\n")[0] == version), "")
        section += "".join("\n### " + part.rstrip("\n") + "\n" for part in old.split("\n### ")[1:])
    others = {one.split("\n")[0]: f"## vLLM {one}".rstrip("\n") + "\n" for one in sections}
    return "\n".join([head.rstrip("\n") + "\n", *(text for _, text in sorted((others | {version: section}).items()))])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--page", type=Path, help="a page to put the table into")
    given = parser.parse_args(arguments)
    registry.load()
    version = str(installed_version())
    section = section_of(version, load_profile("a100-llama3-8b"))
    if given.page is not None:
        given.page.write_text(page_with(given.page.read_text(encoding="utf-8"), version, section), encoding="utf-8")


if __name__ == "__main__":
    main()
