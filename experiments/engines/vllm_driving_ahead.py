"""Driving vLLM's AsyncScheduler alone as its engine core does: the next step is scheduled while one runs.

The device runs one step at a time; a step is scheduled when the one before it starts, after that before has ended and
its output has been taken in. The clock is virtual, and steps take what a device model says.
"""

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from experiments.engines.vllm_driving import MOST_IDLE_STEPS, Drive, Step, block_hasher, make_request, token_ids
from servegym.errors import VllmError
from servegym.simulator.inputs.deployment import LatencyModel
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.batches import add
from servegym.simulator.records.types import BATCH

DEPTH = 2  # steps of which one runs and the others wait for it: vLLM's, without pipeline parallelism


class Scheduled(NamedTuple):
    """A step that vLLM has scheduled. sampled: the tokens that come of it. seconds: what the device takes."""

    output: Any
    sampled: dict[str, list[int]]
    seconds: float
    preempted: set[int]
    cached_tokens: dict[int, int]


class Ahead:
    """One scheduler and the workload it serves. (An engine core in virtual time.)"""

    def __init__(self, scheduler: Any, workload: Workload, device: LatencyModel):
        self.scheduler, self.workload, self.device = scheduler, workload, device
        self.now_s, self.arrived, self.steps = 0.0, 0, list[Step]()
        self.token_s: list[list[float]] = [[] for _ in workload.table]
        manager = scheduler.kv_cache_manager
        self.pool, caching = manager.block_pool, manager.enable_caching
        hashed_tokens = getattr(scheduler, "hash_block_size", scheduler.block_size)
        self.hasher = block_hasher(hashed_tokens) if caching else None
        self.ids_of = [token_ids(workload, i) for i in range(len(workload))] if caching else None
        self.queue: deque[Scheduled] = deque()
        self.preempted: set[int] = set()  # in steps that have scheduled nothing
        if hasattr(scheduler, "use_clock"):
            scheduler.use_clock(lambda: self.now_s)

    def serve(self) -> Drive:
        """Serve it all. Raises VllmError where requests wait and nothing is ever scheduled."""
        table, idle_steps = self.workload.table, 0
        while self.arrived < len(table) or self.scheduler.has_unfinished_requests() or self.queue:
            if not self.queue and not self.scheduler.has_unfinished_requests():
                self.now_s = max(self.now_s, float(table["arrival_s"][self.arrived]))
            self.arrive()
            while len(self.queue) < DEPTH and self.schedule():
                pass
            if self.queue:
                self.end(self.queue[0])
                idle_steps = 0
                continue
            idle_steps += 1
            if idle_steps > MOST_IDLE_STEPS:
                raise VllmError(f"{len(self.scheduler.requests)} requests wait, and nothing is scheduled")
        return Drive(self.steps, self.token_s)

    def arrive(self) -> None:
        table = self.workload.table
        while self.arrived < len(table) and table["arrival_s"][self.arrived] <= self.now_s:
            i = self.arrived
            prompt = None if self.ids_of is None else self.ids_of[i][: int(table["prompt_tokens"][i])]
            self.scheduler.add_request(make_request(table[i], i, prompt, self.hasher))
            self.arrived += 1

    def schedule(self) -> bool:
        """One more step, if vLLM schedules anything."""
        output = self.scheduler.schedule()
        self.preempted |= {int(i) for i in output.preempted_req_ids or ()}
        if not output.num_scheduled_tokens:
            return False
        batch, sampled, cached_tokens = np.zeros(1, BATCH)[0], dict[str, list[int]](), dict[int, int]()
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[request_id]
            emits = not request.is_prefill_chunk
            emitted = request.num_output_tokens + request.num_output_placeholders - emits
            cached = request.num_computed_tokens - tokens
            add(batch, tokens, cached, emitted > 0 and cached == request.num_prompt_tokens + emitted - 1)
            place = request.num_prompt_tokens + emitted
            sampled[request_id] = [7 if self.ids_of is None else self.ids_of[int(request_id)][place]] if emits else []
            cached_tokens[int(request_id)] = cached
        seconds = float(self.device.batch_s(batch, self.device.coefficients))
        self.queue.append(Scheduled(output, sampled, seconds, self.preempted, cached_tokens))
        self.preempted = set()
        return True

    def end(self, step: Scheduled) -> None:
        """The step that runs ends, and its tokens come out."""
        from vllm.v1.outputs import ModelRunnerOutput

        start_s, self.now_s = self.now_s, self.now_s + step.seconds
        used = self.pool.num_gpu_blocks - 1 - self.pool.get_num_free_blocks()
        scheduled = [(int(i), n) for i, n in step.output.num_scheduled_tokens.items()]
        self.steps.append(Step(start_s, self.now_s, scheduled, step.preempted, used, step.cached_tokens))
        ids = list(step.sampled)
        ran = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={i: n for n, i in enumerate(ids)},
            sampled_token_ids=list(step.sampled.values()),
        )  # fmt: skip
        self.queue.popleft()
        for outputs in self.scheduler.update_from_output(step.output, ran).values():
            for result in outputs.outputs:
                self.token_s[int(result.request_id)] += [self.now_s] * len(result.new_token_ids)


def drive_ahead(scheduler: Any, workload: Workload, device: LatencyModel) -> Drive:
    """Serve a workload on an AsyncScheduler of vLLM's, or of ours."""
    return Ahead(scheduler, workload, device).serve()
