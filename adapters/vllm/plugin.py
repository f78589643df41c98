"""The plug-in of a vLLM scheduler: keeps track of its requests, the plans, and their results."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from servegym.adapters.vllm.block_log import BlockLog, can_be_followed, chunk_numbers
from servegym.adapters.vllm.caching_mirror import CachingMirror
from servegym.adapters.vllm.decision import Decisions, decisions_for
from servegym.adapters.vllm.enforce import Enforcer
from servegym.adapters.vllm.hits import Hits
from servegym.adapters.vllm.lora import Adapters
from servegym.adapters.vllm.metrics import Metrics
from servegym.adapters.vllm.mirror import Plan
from servegym.adapters.vllm.settings import Settings, read_settings
from servegym.adapters.vllm.step_log import StepLog
from servegym.adapters.vllm.versions import check_compatibility, counted_on, installed_version, parts_of
from servegym.errors import VllmError
from servegym.simulator.records.types import NO_LIMIT

READY = ("WAITING", "RUNNING", "PREEMPTED")  # statuses of requests that wait for nothing but memory and budget
COUNTED = ("gain", "ideal_gain", "tokens_on_time", "tokens")  # in the order of the mirror's sums


def is_ready(request: Any) -> bool:
    """Whether a request waits for nothing but memory and budget.

    vLLM notices that a grammar is compiled only when it tries the request, and ends a request whose grammar failed.
    """
    if request.status.name == "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR":
        grammar = request.structured_output_request.grammar
        return grammar is not None and not isinstance(grammar, Exception)
    return request.status.name in READY


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that vLLM's scheduler calls, so that an error in it does not stop the engine
    (`Plugin.break_off`)."""

    @functools.wraps(method)
    def call(self: Plugin, *arguments: Any, **keywords: Any) -> Any:
        if self.broken:
            return None
        try:
            return method(self, *arguments, **keywords)
        except Exception as error:
            self.break_off(f"{type(error).__name__} in {method.__name__}: {error}")
            return None

    return call


class Plugin:
    """The part of the plug-in behind a vLLM scheduler, which calls it (scheduler.py).

    warn: writes a line to the log. Raises ServegymError for settings, an artifact or a vLLM that it cannot work with.
    """

    def __init__(self, scheduler: Any, warn: Callable[[str], None]):
        self.scheduler, self.warn, self.broken = scheduler, warn, False
        self.settings = settings = read_settings(scheduler.vllm_config.additional_config or None)
        check_compatibility(scheduler.vllm_config)
        self.metrics = Metrics(settings.metrics_port)
        self.step_log = StepLog(settings.step_log)
        # Blocks of different KV cache groups for the same tokens count as one.
        self.groups = max(1, len(scheduler.kv_cache_config.kv_cache_groups))
        self.free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks
        self.decisions = self._decisions(settings, warn)
        self.mirror = self.decisions.mirror
        self.parts = parts_of(installed_version())
        hooks = (self.parts.chunk, "_preempt_request")
        exact = settings.enforce == "exact" and all(hasattr(scheduler, name) for name in hooks)
        if exact != (settings.enforce == "exact"):
            warn(f"this vLLM has no {' or '.join(hooks)}: only order, budget and caps are enforced")
        self.row_of: dict[str, int] = {}
        # With prefix caching that the mirror can follow; else None.
        self.caching = self.mirror if isinstance(self.mirror, CachingMirror) else None
        self.block_log: BlockLog | None = None
        hits = None
        if self.caching is not None:
            self.block_log = BlockLog(scheduler.kv_cache_manager, self.row_of)
            hits = Hits(scheduler.kv_cache_manager, self.caching, scheduler.block_size)
        self.known: dict[int, int] = {}  # row -> number of its blocks whose contents the mirror knows
        self.adapters = Adapters(scheduler)
        self.enforcer = Enforcer(
            scheduler, self.parts, exact, (self.waiting_key, self.running_key), self.adapters, hits
        )
        self.request_of: dict[int, Any] = {}
        self.blocked: dict[str, Any] = {}  # requests that wait for something else: a grammar, more input
        self.number_of: dict[str, int] = {}  # request id -> place in the order of arrival
        self.arrivals = 0
        self.steps: dict[int, tuple[float, float, float]] = {}  # id of a step under way -> start_s, estimate_s, scale
        self.last_end_s = -np.inf
        self.last_decision_s = 0.0
        self.clock, self.origin_s = time.time, time.time()

    def _decisions(self, settings: Settings, warn: Callable[[str], None]) -> Decisions:
        scheduler, groups = self.scheduler, self.groups
        manager = scheduler.kv_cache_manager
        watermark = getattr(manager, "watermark_blocks", 0)
        blocks = (manager.block_pool.num_gpu_blocks - 1) // groups
        chunks = bool(scheduler.scheduler_config.enable_chunked_prefill)
        context_blocks = 0
        if can_be_followed(scheduler):
            context_blocks = -(-scheduler.max_model_len // scheduler.block_size) + 1
        elif manager.enable_caching:
            warn("this KV cache is not one group of full attention: plans do not count prefix-cache hits")
        return decisions_for(
            settings, self.metrics, blocks, scheduler.block_size, watermark // groups, warn, chunks, context_blocks
        )

    def now_s(self) -> float:
        return self.clock() - self.origin_s

    def break_off(self, what: str) -> None:
        """Disable the plug-in after an error of its own: vLLM decides alone from now on."""
        self.broken = True
        self.metrics.add("broken")
        self.warn(f"{what}; this is a defect of the plug-in: vLLM decides alone until it is restarted")
        self.adapters.stop()
        self.enforcer.restore()
        self.enforcer.enforce(None, {}, {})
        if self.block_log is not None:
            self.block_log.stop()

    # Contents of vLLM's blocks

    def _follow_blocks(self) -> None:
        """Replay vLLM's operations on its blocks in the mirror. Raises VllmError if the free blocks then differ."""
        if self.caching is None or self.block_log is None:
            return
        self.caching.replay(self.block_log.take())
        if self.caching.free_blocks != self.free_blocks():
            raise VllmError(f"the mirror has {self.caching.free_blocks} free blocks, and vLLM {self.free_blocks()}")

    def _know_blocks(self, row: int, request: Any) -> None:
        """Tell the mirror the contents of a request's blocks, as far as its tokens are known.

        A request that must not hit the cache (it wants logprobs of its prompt) is treated as sharing no prefix.
        """
        known = self.known.get(row, 0)
        if self.caching is None or len(request.block_hashes) <= known:
            return
        if getattr(request, "skip_reading_prefix_cache", False):
            return
        self.caching.know(row, known, chunk_numbers(request.block_hashes[known:]))
        self.known[row] = len(request.block_hashes)

    # Arrivals and departures

    @guarded
    def enter(self, request: Any) -> None:
        """Add a request that has come to vLLM's scheduler."""
        row = self.decisions.add(request, request.arrival_time - self.origin_s, self.scheduler.max_model_len)
        self.row_of[request.request_id], self.request_of[row] = row, request
        self.adapters.enter(row, request)
        self.arrivals += 1
        self.number_of[request.request_id] = self.arrivals
        self._know_blocks(row, request)
        if is_ready(request):
            self.mirror.join(row)
        else:
            self.blocked[request.request_id] = request

    @guarded
    def leave(self, request_ids: Iterable[str], finished: bool) -> None:
        """Remove requests that are gone from vLLM's scheduler, finished or aborted; unknown ids are ignored."""
        ids = [request_id for request_id in dict.fromkeys(request_ids) if request_id in self.row_of]
        if not ids:
            return
        self._follow_blocks()
        for request_id in ids:
            if self.blocked.pop(request_id, None) is not None:
                self.mirror.join(self.row_of[request_id])  # `leave` removes it from the queue, so it has to be in it
            del self.number_of[request_id]
        rows = [self.row_of.pop(request_id) for request_id in ids]
        for row in rows:
            del self.request_of[row]
            self.known.pop(row, None)
            self.adapters.leave(row)
        self.decisions.mirror.leave(rows, finished)

    def is_gone(self, request_id: str) -> bool:
        request = self.scheduler.requests.get(request_id)
        return request is None or request.is_finished()

    # A step

    @guarded
    def before(self) -> tuple[Plan | None, float]:
        """Make a plan and set vLLM up for it, before vLLM schedules. Returns the plan and its time."""
        if self.blocked:
            for request_id in [i for i, request in self.blocked.items() if is_ready(request)]:
                del self.blocked[request_id]
                self.mirror.join(self.row_of[request_id])
        self._follow_blocks()
        self.adapters.look()
        self.mirror.bar(self.adapters.barred())
        now_s = self.now_s()
        begin = time.perf_counter()
        plan = self._plan(now_s)
        self.enforcer.enforce(plan, self.request_of, self.blocked)
        self.last_decision_s = time.perf_counter() - begin
        if plan is not None:
            self.metrics.decided(self.last_decision_s)
        return plan, now_s

    def _plan(self, now_s: float) -> Plan | None:
        scheduler = self.scheduler
        if self.mirror.queue_length == 0 or scheduler.pause_state.name != "UNPAUSED":
            return None
        chunk = scheduler.scheduler_config.long_prefill_token_threshold
        return self.decisions.plan(
            now_s,
            self.free_blocks() // self.groups,
            self.enforcer.most_tokens,
            chunk if chunk > 0 else int(NO_LIMIT),
            self.enforcer.most_running - scheduler.num_waiting_for_streaming_input,
            under_way=len(self.steps) > 0,
        )

    @guarded
    def after(self, output: Any, plan: Plan | None, now_s: float) -> None:
        """Update the mirror with what vLLM has scheduled, its SchedulerOutput."""
        scheduled = output.num_scheduled_tokens
        if not scheduled and not output.preempted_req_ids:
            return
        rows = list(map(self.row_of.__getitem__, scheduled))
        requests = list(map(self.request_of.__getitem__, rows))
        preempted = self._in_order(output.preempted_req_ids or (), plan)
        evicted = [self.row_of[i] for i in preempted if i in self.row_of]
        if evicted:
            self.mirror.count_on(evicted, self._counted_on(evicted))
        self._follow_blocks()
        batch, tokens = np.array(rows, "i4"), np.array(list(scheduled.values()), "i4")
        computed = np.array([r.num_computed_tokens for r in requests], "i4")
        cached, before = computed - tokens, self.mirror.run.requests["computed_tokens"][batch]
        if evicted:
            before[np.isin(batch, evicted)] = 0
        self.metrics.add("found_tokens", float((cached - before).sum()))
        estimate_s, scale = self.mirror.settle(
            np.array(evicted, "i4"), batch, tokens, computed, np.array(self._counted_on(rows), "i4"), now_s
        )
        if self.block_log is not None:
            had = self.mirror.run.requests["blocks"][batch].tolist()
            for row, request_id, blocks in zip(rows, scheduled, had, strict=True):
                self.block_log.hold(row, request_id, blocks)
        if scheduled:
            self.steps[id(output)] = now_s, estimate_s, scale
        if plan is not None:
            if drafts := output.scheduled_spec_decode_tokens:
                tokens = tokens - np.array([len(drafts.get(i, ())) for i in scheduled], "i4")
            tokens_off, hits_off = plan.differs_by(batch, tokens, cached)
            self.metrics.add("deviating_steps", tokens_off > 0)
            self.metrics.add("deviating_tokens", tokens_off)
            self.metrics.add("deviating_hits", hits_off)
        if self.step_log.file is not None:
            wanted = None
            if plan is not None:
                ids = [self.request_of[row].request_id for row in plan.rows.tolist()]
                wanted = list(zip(ids, plan.tokens.tolist(), strict=True))
            self.step_log.write(now_s, wanted, scheduled, preempted, self.last_decision_s)

    def _counted_on(self, rows: list[int]) -> list[int]:
        """Return the output tokens of requests, with those under way."""
        emitted = self.mirror.run.requests["num_output_tokens"][rows]
        return counted_on(list(map(self.request_of.__getitem__, rows)), self.parts, emitted)

    def _in_order(self, preempted: Iterable[str], plan: Plan | None) -> list[str]:
        """Return the preempted requests in the order of their preemption, as far as the plan tells it."""
        if plan is None or not preempted:
            return sorted(preempted)
        planned = [self.request_of[row].request_id for row in plan.evicted.tolist()]
        return [i for i in planned if i in preempted] + sorted(set(preempted) - set(planned))

    @guarded
    def ended(self, scheduler_output: Any, result: Any) -> None:
        """Take in the output of a step: its duration, its tokens, and the requests that have finished."""
        now_s = self.now_s()
        step = self.steps.pop(id(scheduler_output), None)
        if step is not None:
            start_s, estimate_s, scale = step
            # A step scheduled while another ran began at the end of that one.
            self.mirror.correct(estimate_s, scale, now_s - max(start_s, self.last_end_s))
            self.last_end_s = now_s
            self.metrics.scaled(self.mirror.estimate_scale)
        rows, new_tokens = [], []
        finished: list[str] = []
        if scheduler_output.scheduled_spec_decode_tokens:
            self._take_back_drafts(scheduler_output)
        for outputs in result.values():
            for output in outputs.outputs:
                row = self.row_of.get(output.request_id)
                if row is None:
                    continue
                if output.new_token_ids:
                    if self.caching is not None:
                        self._know_blocks(row, self.request_of[row])
                    rows.append(row)
                    new_tokens.append(len(output.new_token_ids))
                if output.finish_reason is not None:
                    finished.append(output.request_id)
        if rows:
            sums = self.mirror.sums
            sums[:] = 0.0
            batch, emitted = np.array(rows, "i4"), np.array(self._counted_on(rows), "i4")
            self.mirror.deliver(batch, np.array(new_tokens, "i4"), emitted, now_s)
            for name, amount in zip(COUNTED, sums.tolist(), strict=True):
                self.metrics.add(name, amount)
        if finished:
            self.leave([request_id for request_id in finished if self.is_gone(request_id)], finished=True)

    def _take_back_drafts(self, scheduler_output: Any) -> None:
        """Subtract rejected draft tokens, which were counted as computed."""
        requests = [self.scheduler.requests.get(i) for i in scheduler_output.scheduled_spec_decode_tokens]
        there = [request for request in requests if request is not None and request.request_id in self.row_of]
        if there:
            rows = [self.row_of[request.request_id] for request in there]
            self.mirror.recount(rows, [request.num_computed_tokens for request in there])

    # vLLM's own order, for when it decides itself

    def waiting_key(self, request: Any) -> tuple[int, int]:
        """Return the sort key of waiting requests: the last preempted first, then in order of arrival."""
        number = self.number_of.get(request.request_id, self.arrivals)
        if request.status.name != "PREEMPTED" or request.request_id not in self.row_of:
            return 1, number
        return 0, -int(self.mirror.run.requests["evicted"][self.row_of[request.request_id]])

    def running_key(self, request: Any) -> int:
        """Return the sort key of running requests: in order of admission."""
        row = self.row_of.get(request.request_id)
        return 0 if row is None else int(self.mirror.run.requests["admitted"][row])
