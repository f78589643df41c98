"""A plug-in with which a servegym policy decides in SGLang's scheduler (entry point `sglang.srt.plugins`).

    SERVEGYM_POLICY=policy.json python -m sglang.launch_server --enable-mixed-chunk --disable-overlap-schedule ...

Before each batch the policy plans it (with the mirror and the packer of the vLLM plug-in), and SGLang's own code is
made to form it (imposing.py). Without a plan, SGLang decides as it always does. See docs/sglang.md.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from servegym.adapters.sglang.following import Follower
from servegym.adapters.sglang.imposing import adder_class, put_first, retract, with_one_cut
from servegym.adapters.vllm.decision import decisions_for
from servegym.adapters.vllm.metrics import Metrics
from servegym.adapters.vllm.mirror import Plan
from servegym.adapters.vllm.settings import PREFIX, read_settings
from servegym.errors import ServegymError
from servegym.simulator.records.types import NO_LIMIT

LOG = logging.getLogger("servegym.sglang")
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


def register() -> None:
    """SGLang's hook for plug-ins: registers this one if SERVEGYM_POLICY names a policy."""
    if not os.environ.get(PREFIX + "POLICY"):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{SCHEDULER}.init_internal_state", _begin, HookType.AFTER)
    for name, hook in (
        ("_get_new_batch_prefill_raw", _around_prefill), ("get_prefill_adder_class", _around_adder_class),
        ("_add_request_to_queue", _around_add), ("get_next_batch_to_run", _around_next),
        ("process_batch_result", _around_result),
    ):  # fmt: skip
        HookRegistry.register(f"{SCHEDULER}.{name}", hook, HookType.AROUND)


def what_is_unfit(scheduler: Any) -> str | None:
    """Say why the plug-in cannot decide for this scheduler; None if it can."""
    reasons = {
        "it schedules a batch ahead of results (start it with --disable-overlap-schedule)": scheduler.enable_overlap,
        "it runs prefills apart from decodes (start it with --enable-mixed-chunk)": not scheduler.is_mixed_chunk,
        "it uses speculative decoding": not scheduler.spec_algorithm.is_none(),
        "prefill and decode are disaggregated": scheduler.disaggregation_mode.name != "NULL",
        "its model has windows or states": scheduler.is_hybrid_swa or scheduler.is_hybrid_ssm,
        "it keeps KV in tiers (hierarchical cache)": scheduler.enable_hierarchical_cache,
        "it serves a diffusion model": scheduler.dllm_config is not None,
    }
    return next((why for why, so in reasons.items() if so), None)


class Plugin:
    """The plug-in of one scheduler, kept in its attribute `servegym`.

    Raises ServegymError for a policy that cannot decide here.
    """

    def __init__(self, scheduler: Any):
        self.clock: Callable[[], float] = time.monotonic
        self.on = True
        self.plan: Plan | None = None
        self.metrics = Metrics()
        settings = read_settings(None)
        page = scheduler.page_size
        blocks = scheduler.max_total_num_tokens // page
        self.decisions = decisions_for(settings, self.metrics, blocks, page, 0, lambda line: LOG.warning("%s", line))
        self.follower = Follower(self.decisions, scheduler.max_req_len)
        self.planned: dict[str, int] = {}  # rid -> planned tokens

    def decide(self, scheduler: Any, running_batch: Any) -> None:
        """Plan the next batch, and retract the plan's victims."""
        now_s, chunked = self.clock(), scheduler.chunked_req
        here = [*scheduler.waiting_queue, *running_batch.reqs, *([chunked] if chunked is not None else [])]
        self.follower.meet(here, now_s)
        self.plan, self.planned = None, {}
        if not here:
            return
        free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
        begin = time.perf_counter()
        plan = self.decisions.plan(
            now_s, free // scheduler.page_size, int(NO_LIMIT), int(NO_LIMIT), scheduler.max_running_requests
        )
        if plan is None:
            return
        self.metrics.decided(time.perf_counter() - begin)
        reqs = self.follower.req_of
        retract(scheduler, running_batch, {reqs[row].rid for row in plan.evicted.tolist()})
        self.plan = plan
        wanted = {reqs[s].rid: n for s, n in zip(plan.rows.tolist(), plan.tokens.tolist(), strict=True)}
        left_of = {
            req.rid: len(req.origin_input_ids) + len(req.output_ids) - (req.extend_end if req is chunked else 0)
            for req in [*scheduler.waiting_queue, *([chunked] if chunked is not None else [])]
        }
        self.planned = with_one_cut(wanted, left_of, None if chunked is None else chunked.rid)

    def settle(self, scheduler: Any, batch: Any) -> None:
        """Update the mirror with the batch that SGLang has formed, and count where it differs from the plan."""
        evicted = self.follower.ran_out(scheduler.waiting_queue)
        if self.plan is not None:  # in the order of their eviction
            order = {row: number for number, row in enumerate(self.plan.evicted.tolist())}
            evicted.sort(key=lambda row: order.get(row, len(order)))
        done = self.follower.scheduled(batch, evicted, self.clock())
        if self.plan is not None and batch is not None:
            planned = dict(zip(self.plan.rows.tolist(), self.plan.tokens.tolist(), strict=True))
            if planned != done or set(self.plan.evicted.tolist()) != set(evicted):
                both = planned.keys() | done.keys()
                self.metrics.add("deviating_steps")
                self.metrics.add("deviating_tokens", sum(abs(planned.get(s, 0) - done.get(s, 0)) for s in both))

    def guard(self, method: Callable[..., None], *arguments: Any) -> None:
        """Call one of the methods above; after an error SGLang continues without the plug-in."""
        if not self.on:
            return
        try:
            method(*arguments)
        except Exception:
            self.on, self.plan, self.planned = False, None, {}
            self.metrics.add("broken")
            LOG.exception("servegym: an error in the plug-in; SGLang decides alone from now on")


def _begin(result: Any, scheduler: Any) -> None:
    del result
    scheduler.servegym = None
    if (why := what_is_unfit(scheduler)) is not None:
        LOG.error("servegym: SGLang decides alone: %s", why)
        return
    try:
        scheduler.servegym = Plugin(scheduler)
    except ServegymError as error:
        LOG.error("servegym: SGLang decides alone: %s", error)
        return
    LOG.info("servegym: %s decides", scheduler.servegym.decisions.label)


def _around_add(own: Any, scheduler: Any, req: Any, *arguments: Any, **named: Any) -> Any:
    if (plugin := scheduler.servegym) is not None:
        plugin.follower.arrived_s.setdefault(req.rid, plugin.clock())
    return own(scheduler, req, *arguments, **named)


def _around_prefill(own: Any, scheduler: Any, *arguments: Any, running_batch: Any, **named: Any) -> Any:
    plugin = scheduler.servegym
    if plugin is None:
        return own(scheduler, *arguments, running_batch=running_batch, **named)
    plugin.guard(plugin.decide, scheduler, running_batch)
    if plugin.plan is None:
        return own(scheduler, *arguments, running_batch=running_batch, **named)
    decoding = {req.rid for req in running_batch.reqs}
    prefilled = [rid for rid in plugin.planned if rid not in decoding]
    if not prefilled:
        return None, running_batch
    scheduler.waiting_queue = put_first(scheduler.waiting_queue, prefilled)
    running_batch.batch_is_full = False
    cut = scheduler.chunked_req
    batch, running = own(scheduler, *arguments, running_batch=running_batch, **named)
    if cut is not None and batch is not None and cut not in batch.reqs:
        cut.inflight_middle_chunks -= 1  # SGLang counts a partly computed prompt as part of every prefill batch
    return batch, running


def _around_adder_class(own: Any, scheduler: Any) -> Any:
    plugin = scheduler.servegym
    if plugin is None or plugin.plan is None:
        return own(scheduler)
    made = adder_class(own(scheduler))
    made.tokens_of = plugin.planned
    return made


def _around_next(own: Any, scheduler: Any, *arguments: Any, **named: Any) -> Any:
    result = own(scheduler, *arguments, **named)
    if (plugin := scheduler.servegym) is not None:
        plugin.guard(plugin.settle, scheduler, result.batch_to_run)
    return result


def _around_result(own: Any, scheduler: Any, batch: Any, result: Any) -> Any:
    returned = own(scheduler, batch, result)
    if (plugin := scheduler.servegym) is not None:
        plugin.guard(plugin.follower.ended, batch, plugin.clock())
    return returned
