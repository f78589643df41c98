"""A scheduler that means nothing: its ranks change from batch to batch, and each limit of the packer is a parameter.

So that what no sensible scheduler combines is compared with the reference simulator too.
"""

import dataclasses
from typing import Any

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.policies.policy import Parameter, Policy, StateFields
from servegym.simulator.records.requests import is_decoding, left_of
from servegym.simulator.records.signatures import scheduler, victims
from servegym.simulator.records.types import LEAVE_OUT
from tests.reference.decisions import LEFT_OUT, Limits, Rank
from tests.reference.requests import INF, Request
from tests.reference.schedulers import Scheduler

TURNS = 4  # a request's tier moves on by one each iteration, modulo this
ABSENT = -1.0
STEPS_PER_S = 64.0  # times count in steps of this


@kernel
def all_of_tasks(engine, tasks):
    """A whole number that all it can know of tasks goes into."""
    total = 0
    for slot in range(tasks.shape[0]):
        task = tasks[slot]
        if task.length > 0:
            one = 3 * task.leader + 5 * task.length + 7 * task.tokens + int(task.estimate_s * STEPS_PER_S)
            total += one + int(task.executed_s * STEPS_PER_S) + 11
            if slot == engine.running_task:
                total += 13 * one
    return total


@scheduler
def random_scheduler(context, ranks, limits):
    turn = context.engine.iterations
    if context.parameters[19] > 0:
        turn += all_of_tasks(context.engine, context.state.tasks)
    decide(context, ranks, limits, turn)


@scheduler
def without_tasks(context, ranks, limits):
    decide(context, ranks, limits, context.engine.iterations)


@kernel
def decide(context, ranks, limits, turn):
    requests, queue, parameters = context.requests, context.queue, context.parameters
    for position in range(queue.shape[0]):
        index = queue[position]
        tier = (index * 7 + turn) % TURNS
        ranks[position].tier = LEAVE_OUT if parameters[0] == tier else tier
        ranks[position].key = left_of(requests[index]) if is_decoding(requests[index]) else -float(index % 5)
        ranks[position].headroom_blocks = index % (int(parameters[1]) + 1)
    if parameters[3] >= 0:
        limits.max_num_batched_tokens = int(parameters[3])
    if parameters[4] >= 0:
        limits.chunk_tokens = int(parameters[4])
    if parameters[5] >= 0:
        limits.sequence_budget = int(parameters[5])
    if parameters[6] >= 0:
        limits.max_num_seqs = int(parameters[6])
    if parameters[7] >= 0:
        limits.time_budget_s = parameters[7]
    if parameters[8] >= 0:
        limits.watermark_blocks = int(parameters[8])
    limits.smallest_chunk_tokens = int(parameters[9])
    limits.untimed_prefill_tokens = int(parameters[10])
    limits.untimed_decodes = int(parameters[11])
    limits.whole_prompts = int(parameters[12])
    limits.reserve_context = int(parameters[13])
    limits.phase = int(parameters[14])
    limits.misfit = int(parameters[15])
    limits.evict_for = int(parameters[16])
    limits.preemptible = int(parameters[17])
    if parameters[18] >= 0:
        limits.slice_s = parameters[18]
    if parameters[20] >= 0:
        limits.most_drafts = int(parameters[20])
    limits.step_tokens = int(parameters[21])


@victims
def anybody(context, ranks, limits):
    engine, queue, parameters = context.engine, context.queue, context.parameters
    for position in range(queue.shape[0]):
        ranks[position].victim_tier = (queue[position] * 3 + engine.iterations) % 2
        ranks[position].victim_key = float(queue[position] % 3)
        ranks[position].keep_tokens = int(parameters[2])


def parameter(name: str, default: float, high: float = 1e6) -> Parameter:
    return Parameter(name, default, "see types.py", low=ABSENT, high=high, integer=not name.endswith("_s"))


POLICY = Policy(
    "random-scheduler", "scheduler", "Ranks that change from batch to batch.", "made up", random_scheduler, anybody,
    parameters=(
        parameter("leave_out", ABSENT), parameter("headroom", 0), parameter("keep_tokens", 0),
        *(parameter(name, ABSENT) for name in (
            "max_num_batched_tokens", "chunk_tokens", "sequence_budget", "max_num_seqs", "time_budget_s",
            "watermark_blocks",
        )),
        parameter("smallest_chunk_tokens", 1), parameter("untimed_prefill_tokens", 0),
        *(parameter(name, 0, 1) for name in ("untimed_decodes", "whole_prompts")), parameter("reserve_context", 1, 1),
        *(parameter(name, 0, 2) for name in ("first_decides", "misfit_ends_filling", "evict_for", "preemptible")),
        parameter("slice_s", ABSENT), parameter("looks", 0, 1), parameter("most_drafts", ABSENT),
        parameter("step_tokens", 0),
    ),
    state=StateFields(tasks=True),
)  # fmt: skip
WITHOUT_TASKS = dataclasses.replace(POLICY, function=without_tasks, state=StateFields())


class RandomScheduler(Scheduler):
    """The same, of the reference simulator."""

    def __init__(
        self, leave_out: int = -1, headroom: int = 0, keep_tokens: int = 0, looks: int = 0, **limits: Any
    ) -> None:
        super().__init__(**limits)
        self.leave_out, self.headroom, self.keep, self.looks = leave_out, headroom, keep_tokens, looks

    def all_of_tasks(self) -> int:
        total = 0
        running = [self.engine.work] if self.engine.work is not None and self.engine.work.is_task else []
        for task in [*self.engine.suspended, *running]:
            one = 3 * task.leader.index + 5 * len(task.batch) + 7 * task.tokens + int(task.estimate_s * STEPS_PER_S)
            total += one + int(task.executed_s * STEPS_PER_S) + 11
            total += 13 * one if task is self.engine.work else 0
        return total

    def ranks(self, queue: list[Request], now_s: float) -> list[Rank]:
        ranks: list[Rank] = []
        turn = self.engine.iterations + (self.all_of_tasks() if self.looks else 0)
        for r in queue:
            tier = (r.index * 7 + turn) % TURNS
            ranks.append((LEFT_OUT if tier == self.leave_out else tier, r.left if r.decoding else -(r.index % 5)))
        return ranks

    def victim_ranks(self, queue: list[Request]) -> list[Rank]:
        return [((r.index * 3 + self.engine.iterations) % 2, r.index % 3) for r in queue]

    def keep_tokens(self, queue: list[Request]) -> list[int]:
        return [self.keep] * len(queue)

    def headroom_blocks(self, queue: list[Request]) -> list[int]:
        return [r.index % (self.headroom + 1) for r in queue]


def random_settings(random: Any) -> dict[str, Any]:
    """Each limit absent half of the time."""

    def one_of(*values: Any) -> Any:
        return values[int(random.integers(len(values)))]

    whole = one_of(0, 0, 1)
    settings = {
        "leave_out": one_of(-1, -1, 0, 2), "headroom": one_of(0, 0, 3, 20), "keep_tokens": one_of(0, 7, 50, 1000),
        "max_num_batched_tokens": one_of(-1, 16, 100), "chunk_tokens": one_of(-1, -1, 5, 40),
        "sequence_budget": one_of(-1, 1, 4), "max_num_seqs": one_of(-1, 2, 6),
        "time_budget_s": one_of(-1.0, 0.0, 0.012, 0.02, 0.03), "watermark_blocks": one_of(-1, 0, 4),
        "smallest_chunk_tokens": one_of(1, 1, 12), "untimed_prefill_tokens": one_of(0, 0, 20, 64),
        "step_tokens": one_of(0, 2, 8), "untimed_decodes": one_of(0, 1), "whole_prompts": whole,
        "reserve_context": one_of(0, 1), "first_decides": one_of(0, 1), "misfit_ends_filling": one_of(0, 1),
        "evict_for": one_of(0, 1, 2),
    }  # fmt: skip
    return settings


def random_tasks(random: Any) -> dict[str, Any]:
    """Settings of preemptible batches beside those."""
    return {
        "preemptible": int(random.integers(1, 3)),
        "slice_s": float(random.choice([ABSENT, ABSENT, 0.0, 2.0**-7, 2.0**-4])),
        "looks": int(random.integers(2)),
    }


def reference_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """As the reference takes them."""
    absent = dict.fromkeys(
        ("max_num_batched_tokens", "chunk_tokens", "sequence_budget", "max_num_seqs", "time_budget_s"), INF
    )
    absent["watermark_blocks"] = None  # type: ignore[assignment]
    absent["slice_s"] = absent["most_drafts"] = INF
    given = {name: absent[name] if name in absent and value < 0 else value for name, value in settings.items()}
    if "preemptible" in settings:
        given["preemptible"] = (None, "operators", "layers")[settings["preemptible"]]
    return given | {"evict_for": ("decodes", "running", "all")[settings["evict_for"]]}


assert set(Limits.__dataclass_fields__) <= {p.name for p in POLICY.parameters}, "a limit that is not tried"
