"""Makes vLLM's own scheduler form a planned batch.

`enforce` sets queue order, token budget and caps before vLLM's `schedule`; `restore` sets vLLM's own limits after it.
There are two enforcements:

exact   each request gets the planned chunk (or none), and victims are preempted before vLLM schedules
order   public attributes only: the order of waiting and of running requests, the token budget and the cap on requests
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.request import RequestStatus

from servegym.adapters.vllm.hits import Hits
from servegym.adapters.vllm.lora import Adapters
from servegym.adapters.vllm.mirror import Plan
from servegym.adapters.vllm.versions import Parts, preempt, watch_chunks


class Enforcer:
    """Enforces plans on a vLLM scheduler.

    parts: private parts of this release's scheduler. exact: the enforcement, exact or order. own_order: sort keys of
    vLLM's own order, (of a waiting request, of a running one). adapters: counts LoRA adapters. hits: if exact, makes
    vLLM find the planned prefix-cache hits; None: plans do not look into the prefix cache.
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
        self.drafts = int(getattr(scheduler, "num_spec_tokens", 0) or 0)  # draft tokens of a decode
        self.adapters, self.hits = adapters, hits if exact else None
        self.own_policy = scheduler.policy
        self.cap = "max_num_active_reqs" if hasattr(scheduler, "max_num_active_reqs") else "max_num_running_reqs"
        self.disordered = False
        self.chunks: dict[int, int] | None = None  # most tokens of each request, by id(); None: no limit
        self.hidden: list[Any] = []
        self.saved: list[tuple[Any, str, Any]] = []
        watch_chunks(scheduler, parts, self.chunk)

    @property
    def most_tokens(self) -> int:
        """vLLM's own max_num_batched_tokens; read it outside of a step."""
        return int(self.scheduler.max_num_scheduled_tokens)

    @property
    def most_running(self) -> int:
        return int(getattr(self.scheduler, self.cap))

    def enforce(self, plan: Plan | None, request_of: Mapping[int, Any], blocked: Mapping[str, Any]) -> None:
        """Set up vLLM's scheduler for a plan; None: for vLLM's own order.

        blocked: requests that wait for something else (a grammar), which vLLM tries first. One that has become ready is
        admitted if it fits; with exact enforcement, only once it is planned.
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
        # One set of vLLM's running list costs less than a look at the status of each request.
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
        # Held hits make free blocks fewer than when the packer applied the rules of admission: do not apply them twice.
        applied = self.hits is not None
        self._set(scheduler, "scheduler_reserve_full_isl", plan.reserve_context and not applied)
        self._set(scheduler.kv_cache_manager, "watermark_blocks", 0 if applied else plan.watermark_blocks)

    def restore(self) -> None:
        """Set vLLM's own limits again."""
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
        """Return the tokens that a request may get of the `tokens` that vLLM would give it."""
        if self.chunks is not None:
            planned = self.chunks.get(id(request), 0)
            tokens = min(tokens, planned + self.drafts if planned == 1 else planned)
        return tokens if tokens > 0 and self.adapters.admits(request) else 0

    def _set(self, owner: Any, name: str, value: Any) -> None:
        if hasattr(owner, name):
            self.saved.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    def _hold_hits(self, hits: Hits, plan: Plan, request_of: Mapping[int, Any]) -> None:
        """Hold the planned prefix-cache hits of requests that are admitted."""
        given = hits.are_given_memory(plan)
        for row, tokens in zip(plan.rows[given].tolist(), plan.cached[given].tolist(), strict=True):
            hits.hold(row, request_of[row].request_id, tokens)

    def _evict(self, plan: Plan, request_of: Mapping[int, Any]) -> None:
        """Preempt the plan's victims now, as vLLM admits no request in a step in which its own code has preempted."""
        again = set(plan.rows.tolist()) if len(plan.evicted) else set()
        for row in plan.evicted.tolist():
            request = request_of[row]
            if request.status is RequestStatus.RUNNING:
                self.scheduler.running.remove(request)
                preempt(self.scheduler, self.parts, request, resumes=row in again)

    def _order_running(
        self, running: list[Any], admitted: list[Any], plan: Plan, request_of: Mapping[int, Any]
    ) -> None:
        """Sort running requests: the batch first, in its order; last the request to preempt first."""
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
            # Requests in this list get tokens before any waiting request.
            scheduler.running[:] = running
            self.hidden = others
            return
        victims = [request_of[row] for row in plan.evicted[::-1].tolist()]
        last = set(victims)
        scheduler.running[:] = running + [r for r in others if r not in last] + [v for v in victims if v in others]

    def _put_cut_last(self, running: list[Any], tokens: Mapping[int, int], request_of: Mapping[int, Any]) -> None:
        """Move running prefills whose planned chunk is not all they have left to the end, where the token budget cuts
        them."""
        cut = [
            request for row, n in tokens.items()
            if (request := request_of[row]).status is RequestStatus.RUNNING
            and n < request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
        ]  # fmt: skip
        for request in cut:
            running.remove(request)
            running.append(request)

    def _order_waiting(self, first: list[Any]) -> None:
        """Put these requests at the head of the waiting queue, in this order."""
        waiting = self.scheduler.waiting
        skipped = getattr(self.scheduler, "skipped_waiting", None)
        if skipped:  # vLLM 0.28 tries skipped requests first
            waiting.extendleft(reversed(skipped))
            skipped.clear()
        if all(a is b for a, b in zip(first, waiting, strict=False)) and len(waiting) >= len(first):
            return
        ahead = set(first)
        rest = [r for r in waiting if r not in ahead]
        if len(rest) + len(first) != len(waiting):  # some of `first` are in another queue of vLLM
            present = set(waiting)
            first = [r for r in first if r in present]
        waiting.clear()
        waiting.extend(first)
        waiting.extend(rest)

    def _take_order(self) -> None:
        """Take over the order of waiting requests: replace vLLM's heap by priority, if it has one, by a plain queue."""
        self.disordered = True
        if self.scheduler.policy is not SchedulingPolicy.FCFS:
            self._use(SchedulingPolicy.FCFS)

    def _give_back_order(self) -> None:
        """Put waiting and running requests back into vLLM's own order."""
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
        """Set vLLM's queue policy and move its waiting requests into such a queue."""
        scheduler = self.scheduler
        scheduler.policy = policy
        for name in ("waiting", "skipped_waiting", "kv_holding_waiting"):
            if hasattr(scheduler, name):
                queue = create_request_queue(policy)
                for request in getattr(scheduler, name):
                    queue.add_request(request)
                setattr(scheduler, name, queue)
