"""Having vLLM's own scheduler come to a batch that was decided elsewhere.

`enforce` sets up order, budget and caps before vLLM's `schedule`, `restore` puts vLLM's own limits back after it. Two
ways:

exact   each request gets the chunk that was decided (or none), and what gives up memory does so beforehand
order   public attributes only: the order of the waiting and of the running, the token budget and the cap on requests
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.request import RequestStatus

from servegym.adapters.vllm.compatibility import preempt, watch_chunks
from servegym.adapters.vllm.hits import Hits
from servegym.adapters.vllm.lora import Adapters
from servegym.adapters.vllm.mirror import Plan
from servegym.adapters.vllm.versions import Parts


class Enforcer:
    """Enforces decisions on one of vLLM's schedulers.

    parts: of this vLLM's scheduler. exact: which of the two ways. own_order: the sort keys of vLLM's own order, (of a
    waiting request, of a running one). adapters: that requests have. hits: where exact, has vLLM find in its prefix
    cache what was planned; None: plans do not go by what is there.
    """

    def __init__(
        self,
        scheduler: Any,
        parts: Parts,
        exact: bool,
        own_order: tuple[Callable[[Any], Any], Callable[[Any], Any]],
        adapters: Adapters,
        hits: Hits | None = None,
    ):
        self.scheduler, self.parts, self.exact, self.own_order = scheduler, parts, exact, own_order
        self.drafts = int(getattr(scheduler, "num_spec_tokens", 0) or 0)  # beside the one token of a decode
        self.adapters, self.hits = adapters, hits if exact else None
        self.own_policy = scheduler.policy
        self.cap = "max_num_active_reqs" if hasattr(scheduler, "max_num_active_reqs") else "max_num_running_reqs"
        self.disordered = False
        self.chunks: dict[int, int] | None = None  # tokens that requests, by id(), may get; None: whatever vLLM gives
        self.hidden: list[Any] = []
        self.saved: list[tuple[Any, str, Any]] = []
        watch_chunks(scheduler, parts, self.chunk)

    @property
    def most_tokens(self) -> int:
        """vLLM's own limits, outside of a step."""
        return int(self.scheduler.max_num_scheduled_tokens)

    @property
    def most_running(self) -> int:
        return int(getattr(self.scheduler, self.cap))

    def enforce(self, plan: Plan | None, request_of: Mapping[int, Any], blocked: Mapping[str, Any]) -> None:
        """Set up vLLM's scheduler for this batch (None: for its own order).

        blocked: requests that wait for something else (a grammar); vLLM looks at them first. One that turns out to be
        ready is admitted if it fits; where exact not before it is planned.
        """
        scheduler = self.scheduler
        if plan is None:
            self._give_back_order()
            return
        self._take_order()
        if self.hits is not None:
            self._hold_hits(self.hits, plan, request_of)
        if self.exact:
            self._evict(plan, request_of)
        batch, tokens = list(map(request_of.__getitem__, plan.rows.tolist())), plan.tokens.tolist()
        running, admitted = batch, []
        # What runs is in vLLM's list: to look there costs less than to look at each request.
        if batch != scheduler.running and not (ran := set(scheduler.running)).issuperset(batch):
            running, admitted = [r for r in batch if r in ran], [r for r in batch if r not in ran]
        budget = sum(tokens) + self.drafts * tokens.count(1)
        if self.exact:
            self.chunks = dict(zip(map(id, batch), tokens, strict=True))
        elif running:
            self._put_cut_last(running, dict(zip(plan.rows.tolist(), tokens, strict=True)), request_of)
        self._order_running(running, admitted, plan, request_of)
        if admitted or blocked:
            self._order_waiting([*(r for r in blocked.values() if r.status.name != "RUNNING"), *admitted])
        most = self.most_tokens if blocked else min(budget, self.most_tokens)
        self._set(scheduler, "max_num_scheduled_tokens", most)
        places = len(scheduler.running) + len(admitted) + len(blocked) + scheduler.num_waiting_for_streaming_input
        self._set(scheduler, self.cap, max(min(places, self.most_running), len(scheduler.running)))
        # With hits held, free blocks are fewer than when the packer applied these rules, in its order: once is enough.
        applied = self.hits is not None
        self._set(scheduler, "scheduler_reserve_full_isl", plan.reserve_context and not applied)
        self._set(scheduler.kv_cache_manager, "watermark_blocks", 0 if applied else plan.watermark_blocks)

    def restore(self) -> None:
        """vLLM's own limits again."""
        for owner, name, value in self.saved:
            setattr(owner, name, value)
        self.saved.clear()
        self.chunks = None
        if self.hits is not None:
            self.hits.release()
        if self.hidden:
            self.scheduler.running.extend(self.hidden)
            self.hidden = []

    def chunk(self, request: Any, tokens: int) -> int:
        """Tokens that a request may get of those that vLLM would give it."""
        if self.chunks is not None:
            planned = self.chunks.get(id(request), 0)
            tokens = min(tokens, planned + self.drafts if planned == 1 else planned)
        return tokens if tokens > 0 and self.adapters.admits(request) else 0

    def _set(self, owner: Any, name: str, value: Any) -> None:
        if hasattr(owner, name):
            self.saved.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    def _hold_hits(self, hits: Hits, plan: Plan, request_of: Mapping[int, Any]) -> None:
        """Those that are given memory find what they are planned to find."""
        given = hits.are_given_memory(plan)
        for row, tokens in zip(plan.rows[given].tolist(), plan.cached[given].tolist(), strict=True):
            hits.hold(row, request_of[row].request_id, tokens)

    def _evict(self, plan: Plan, request_of: Mapping[int, Any]) -> None:
        """Those that give up their memory do so now: vLLM admits none in a step in which it has preempted itself."""
        again = set(plan.rows.tolist()) if len(plan.evicted) else set()
        for row in plan.evicted.tolist():
            request = request_of[row]
            if request.status is RequestStatus.RUNNING:
                self.scheduler.running.remove(request)
                preempt(self.scheduler, self.parts, request, resumes=row in again)

    def _order_running(
        self, running: list[Any], admitted: list[Any], plan: Plan, request_of: Mapping[int, Any]
    ) -> None:
        """The batch first, in its order; at the end what gives up memory first."""
        scheduler = self.scheduler
        if len(running) == len(scheduler.running):
            if running != scheduler.running:
                scheduler.running[:] = running
            return
        taken = set(running)
        others = [r for r in scheduler.running if r not in taken]
        if self.exact:
            scheduler.running[:] = running + others
            return
        if admitted and not len(plan.evicted):
            # What is shown here gets tokens before anything that waits.
            scheduler.running[:] = running
            self.hidden = others
            return
        victims = [request_of[row] for row in plan.evicted[::-1].tolist()]
        last = set(victims)
        scheduler.running[:] = running + [r for r in others if r not in last] + [v for v in victims if v in others]

    def _put_cut_last(self, running: list[Any], tokens: Mapping[int, int], request_of: Mapping[int, Any]) -> None:
        """A running prefill that gets but a part of what it has left goes last: it takes what the budget has left."""
        cut = [
            request for row, n in tokens.items()
            if (request := request_of[row]).status is RequestStatus.RUNNING
            and n < request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
        ]  # fmt: skip
        for request in cut:
            running.remove(request)
            running.append(request)

    def _order_waiting(self, first: list[Any]) -> None:
        """These requests at the head of the waiting ones, in this order."""
        waiting = self.scheduler.waiting
        skipped = getattr(self.scheduler, "skipped_waiting", None)
        if skipped:  # vLLM 0.28 looks at them first
            waiting.extendleft(reversed(skipped))
            skipped.clear()
        if all(a is b for a, b in zip(first, waiting, strict=False)) and len(waiting) >= len(first):
            return
        ahead = set(first)
        rest = [r for r in waiting if r not in ahead]
        if len(rest) + len(first) != len(waiting):  # some are in another of vLLM's queues
            present = set(waiting)
            first = [r for r in first if r in present]
        waiting.clear()
        waiting.extend(first)
        waiting.extend(rest)

    def _take_order(self) -> None:
        """From now on the order is ours: where vLLM keeps a heap by priority, a plain queue takes its place."""
        self.disordered = True
        if self.scheduler.policy is not SchedulingPolicy.FCFS:
            self._use(SchedulingPolicy.FCFS)

    def _give_back_order(self) -> None:
        """Waiting and running requests in vLLM's own order."""
        if not self.disordered:
            return
        self.disordered = False
        scheduler = self.scheduler
        waiting_key, running_key = self.own_order
        scheduler.running.sort(key=running_key)
        ordered = sorted(scheduler.waiting, key=waiting_key)
        scheduler.waiting.clear()
        scheduler.waiting.extend(ordered)
        if self.own_policy is not SchedulingPolicy.FCFS:
            self._use(self.own_policy)

    def _use(self, policy: Any) -> None:
        """Have vLLM queue by this policy."""
        scheduler = self.scheduler
        scheduler.policy = policy
        for name in ("waiting", "skipped_waiting", "kv_holding_waiting"):
            if hasattr(scheduler, name):
                queue = create_request_queue(policy)
                for request in getattr(scheduler, name):
                    queue.add_request(request)
                setattr(scheduler, name, queue)
