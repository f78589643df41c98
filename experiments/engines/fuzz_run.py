"""A run of the fuzz (fuzz.py): a scene drawn from its seed, served step by step and looked at after each.

After each step: limits of tokens and sequences are kept and vLLM's own are back, every block is either free or
held, and the plug-in knows which requests vLLM has, and has not given up. In the end: each request has its tokens,
in turn, and all memory is free. What the policy wants in a step runs within MOST_TURNS steps in which it is wanted.
"""

import dataclasses
import itertools
from collections import Counter, deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.engines.fuzz_requests import FEATURES, Asked, FakeGrammar, Maker, answer, check_answer, draw, prepare
from experiments.engines.vllm_driving import Limits, make_scheduler
from servegym.baselines.artifact import Artifact, save_artifact
from servegym.errors import VllmError
from servegym.evaluation.assumptions import estimator_of
from servegym.latency_models.profile import load_profile
from servegym.simulator.policies.policy import get_policy

POLICIES = (
    "slide-batching", "expected-gain", "vllm-v1:max_num_batched_tokens=256", "sarathi-fcfs:max_num_batched_tokens=128",
    "weighted-vtc:max_num_batched_tokens=256", "fastserve-mlfq", "edf:max_num_batched_tokens=256",
)  # fmt: skip
SETTINGS = ("asynchronous", "prefix caching", "priority", "no chunked prefill", "order only", "failing policy")
STEP_S = 0.02
DRAFT = 9  # the id of all drafts
MOST_IDLE_STEPS = 50  # in a row with requests that wait for nothing else
MOST_TURNS = 100  # in a row in which a request is wanted by the policy and not run


@dataclasses.dataclass(frozen=True)
class Scene:
    """What a run has, all of it from its seed."""

    seed: int
    policy: str
    limits: Limits
    parts: frozenset[str]  # of SETTINGS and FEATURES
    asked: tuple[Asked, ...]

    @property
    def title(self) -> str:
        return (
            f"seed {self.seed}: {self.policy}, {self.limits.blocks} blocks, {', '.join(sorted(self.parts)) or 'plain'}"
        )


def scene_of(seed: int, only: frozenset[str] | None = None) -> Scene:
    """only: what the scene has; None: anything."""
    random = np.random.default_rng(seed)
    parts = frozenset(part for part in (*SETTINGS, *FEATURES) if random.random() < 0.4)
    parts = parts if only is None else only
    limits = Limits(
        int(random.choice([46, 60, 120, 400])),
        max_num_batched_tokens=2048,
        max_num_seqs=int(random.choice([4, 16, 64])),
        scheduling_policy="priority" if "priority" in parts else "fcfs",
        max_model_len=900,
        async_scheduling="asynchronous" in parts,
        prefix_caching="prefix caching" in parts,
        chunked_prefill="no chunked prefill" not in parts,
        drafts=3 if "drafts" in parts else 0,
    )
    asked = draw(random, parts, int(random.integers(10, 40)), float(random.choice([20.0, 200.0])))
    return Scene(seed, str(random.choice(POLICIES)), limits, parts, tuple(asked))


class Step(NamedTuple):
    """A step under way. numbers: of the token that comes of it, of each request; None: none comes."""

    output: Any
    numbers: dict[str, int | None]


class Run:
    """A scene on one scheduler. Raises VllmError where something is not as it should be."""

    def __init__(self, scene: Scene, scheduler: Any):
        self.scene, self.scheduler, self.now_s = scene, scheduler, 0.0
        self.steps = self.preempted = 0
        prepare(scheduler, scene.parts)
        self.asked = {one.request_id: one for one in scene.asked}
        self.waiting = deque(scene.asked)
        self.got: dict[str, list[int]] = {one.request_id: [] for one in scene.asked}
        self.taken_back: set[str] = set()
        self.under_way: deque[Step] = deque()
        self.maker = Maker(scheduler.block_size, scene.limits.prefix_caching)
        self.plugin: Any = getattr(scheduler, "servegym", None)
        self.random = np.random.default_rng((1, scene.seed))
        self.missed: Counter[str] = Counter()
        self.wanted: dict[str, int] = {}  # tokens that each request was to get in this step
        self.deviations: Counter[str] = Counter()  # requests that got something else, by what became of them
        self.own_limits = self._limits()
        if self.plugin is not None:
            scheduler.use_clock(lambda: self.now_s)
            self._watch_plans()

    def serve(self) -> None:
        idle = 0
        while self.waiting or self.scheduler.has_unfinished_requests() or self.under_way:
            while self.waiting and self.waiting[0].arrival_s <= self.now_s:
                self.scheduler.add_request(self.maker.request(self.waiting.popleft()))
            self._grammars()
            ran = self._schedule()
            if self.under_way and (len(self.under_way) == (2 if self.scene.limits.async_scheduling else 1) or not ran):
                self._take_in(self.under_way.popleft())
            elif not ran:
                self.now_s += STEP_S
            idle = 0 if ran or self.under_way or self._only_blocked() else idle + 1
            if idle > MOST_IDLE_STEPS:
                raise VllmError(f"{len(self.scheduler.requests)} requests wait, and {idle} steps scheduled nothing")
        for request_id, one in self.asked.items():
            check_answer(one, self.got[request_id], request_id in self.taken_back)
        free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        if free != self.scene.limits.blocks:
            raise VllmError(f"{free} of {self.scene.limits.blocks} blocks are free after the last request")
        if self.plugin is not None and (self.plugin.row_of or self.plugin.mirror.queue_length):
            raise VllmError(f"the plug-in has {list(self.plugin.row_of)} after the last request")

    def _schedule(self) -> bool:
        output = self.scheduler.schedule()
        scheduled, requests = output.num_scheduled_tokens, self.scheduler.requests
        self._check(scheduled)
        self._see_deviations(output)
        self.preempted += len(output.preempted_req_ids or ())
        if not scheduled:
            return False
        numbers: dict[str, int | None] = {}
        for request_id in scheduled:
            request = requests[request_id]
            number = request.num_output_tokens + request.num_output_placeholders
            number -= request.num_output_placeholders > 0  # it counts this one where placeholders are kept
            numbers[request_id] = None if request.is_prefill_chunk else number
        self.under_way.append(Step(output, numbers))
        self.steps += 1
        return True

    def _take_in(self, step: Step) -> None:
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import RequestStatus

        self.now_s += STEP_S
        ids = list(step.numbers)
        ran = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={i: n for n, i in enumerate(ids)},
            sampled_token_ids=[self._sampled(step, i) for i in ids],
        )  # fmt: skip
        over: list[str] = []
        for outputs in self.scheduler.update_from_output(step.output, ran).values():
            for result in outputs.outputs:
                one, got = self.asked[result.request_id], self.got[result.request_id]
                got += result.new_token_ids
                if one.stops in ("string", "abort") and len(got) >= (one.ends_after or 0):
                    self.taken_back.add(result.request_id)  # accepted drafts may go beyond, up to max_tokens
                    if not result.finish_reason:
                        over.append(result.request_id)
        if over:
            self.scheduler.finish_requests(over, RequestStatus.FINISHED_ABORTED)
        if self.scene.limits.drafts and not self.scene.limits.async_scheduling:
            from vllm.v1.outputs import DraftTokenIds

            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, [[DRAFT] * self.scene.limits.drafts for _ in ids]))

    def _sampled(self, step: Step, request_id: str) -> list[int]:
        """The tokens of a request that come of a step; of drafts some are accepted."""
        number, one = step.numbers[request_id], self.asked[request_id]
        if number is None:
            return []
        drafts = len(step.output.scheduled_spec_decode_tokens.get(request_id, ()))
        if self.scene.limits.drafts and request_id in self.scheduler.requests:
            number = self.scheduler.requests[request_id].num_output_tokens  # how many were accepted is known only now
        return [answer(one, number + k) for k in range(1 + int(self.random.integers(drafts + 1)))]

    def _grammars(self) -> None:
        for request_id, request in self.scheduler.requests.items():
            ready_s = self.asked[request_id].grammar_s
            if ready_s is not None and ready_s <= self.now_s and request.structured_output_request.grammar is None:
                request.structured_output_request.grammar = FakeGrammar()

    def _only_blocked(self) -> bool:
        return all(request.status.name.startswith("WAITING_FOR") for request in self.scheduler.requests.values())

    def _limits(self) -> tuple[Any, ...]:
        names = ("max_num_scheduled_tokens", "max_num_running_reqs", "scheduler_reserve_full_isl")
        return tuple(getattr(self.scheduler, name, None) for name in names)

    def _check(self, scheduled: dict[str, int]) -> None:
        limits, scheduler = self.scene.limits, self.scheduler
        if sum(scheduled.values()) > limits.max_num_batched_tokens or min(scheduled.values(), default=1) < 1:
            raise VllmError(f"a step of {scheduled} tokens; it may have {limits.max_num_batched_tokens}")
        if len(scheduler.running) > limits.max_num_seqs:
            raise VllmError(f"{len(scheduler.running)} requests run; {limits.max_num_seqs} may")
        held: set[int] = set()
        for request_id in scheduler.requests:
            held |= {block.block_id for block in scheduler.kv_cache_manager.get_blocks(request_id).blocks[0]}
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        if len(held - {0}) + free != limits.blocks:
            raise VllmError(f"{len(held)} blocks are held and {free} free, of {limits.blocks}")
        if self.plugin is None:
            return
        if self.plugin.broken:
            raise VllmError("the plug-in has given up")
        if set(self.plugin.row_of) != set(scheduler.requests):
            raise VllmError(f"the plug-in has {sorted(self.plugin.row_of)}, and vLLM {sorted(scheduler.requests)}")
        if self._limits() != self.own_limits:
            raise VllmError(f"vLLM's limits are {self._limits()}; they were {self.own_limits}")
        for request_id in self.wanted:
            self.missed[request_id] = 0 if request_id in scheduled else self.missed[request_id] + 1
            if self.missed[request_id] > MOST_TURNS and not self.scene.parts & {"LoRA", "images"}:
                raise VllmError(f"request {request_id} is wanted and has not run for {MOST_TURNS} steps")

    def _see_deviations(self, output: Any) -> None:
        """Count what became of requests that got other tokens than the policy had decided."""
        drafts, preempted = output.scheduled_spec_decode_tokens, output.preempted_req_ids or ()
        got = {i: n - len(drafts.get(i, ())) for i, n in output.num_scheduled_tokens.items()}
        for request_id, wanted in self.wanted.items():
            tokens = got.pop(request_id, 0)
            if tokens == 0:
                waits = self.scheduler.requests[request_id].status.name != "RUNNING"
                what = "preempted" if request_id in preempted else "not admitted" if waits else "passed over"
            else:
                what = "cut" if tokens < wanted else "longer"
            self.deviations[what] += tokens != wanted
        if self.wanted:
            self.deviations["not wanted"] += len(got)
        self.wanted = {}

    def _watch_plans(self) -> None:
        enforce = self.plugin.enforcer.enforce

        def noting(plan: Any, request_of: Any, blocked: Any) -> None:
            self.wanted = {}
            if plan is not None:
                ids = [request_of[row].request_id for row in plan.rows.tolist()]
                self.wanted = dict(zip(ids, plan.tokens.tolist(), strict=True))
            enforce(plan, request_of, blocked)

        self.plugin.enforcer.enforce = noting


def plugged_in(scene: Scene, folder: Path) -> Any:
    from servegym.adapters.vllm import AsyncScheduler, Scheduler

    path = folder / f"{scene.seed}.json"
    terms = {"ttft_slo_s": 1.0, "tpot_slo_s": 0.05, "first_token_weight": 4.0}
    save_artifact(
        Artifact(
            {"scheduler": get_policy("scheduler", scene.policy)}, estimator_of(load_profile("a100-llama3-8b")), terms
        ),
        path,
    )
    section = {
        "policy": str(path), "decision_limit_s": 60.0, "enforce": "order" if "order only" in scene.parts else "exact",
    }  # fmt: skip
    ours = AsyncScheduler if scene.limits.async_scheduling else Scheduler
    made = make_scheduler(ours, scene.limits, {"servegym": section})
    if "failing policy" in scene.parts:
        fail_now_and_then(made.servegym.mirror, 11)
    return made


def fail_now_and_then(mirror: Any, each: int) -> None:
    """Let a plug-in's plan raise ZeroDivisionError at one call of so many."""
    plan, calls = mirror.plan, itertools.count(1)

    def now_and_then(*arguments: Any) -> Any:
        if next(calls) % each == 0:
            raise ZeroDivisionError("on purpose")
        return plan(*arguments)

    mirror.plan = now_and_then
