"""vLLM's V1 schedulers, sync and async, with a servegym policy (`--scheduler-cls`).

Each step, the policy plans a batch (decision.py), vLLM is set up so that its own `schedule` forms that batch
(enforce.py), and the mirror is updated with what vLLM did. Without a plan, vLLM decides as it always does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler

from servegym.adapters.vllm.plugin import Plugin
from servegym.errors import ServegymError

logger = init_logger("vllm.servegym")


class PolicyMixin:
    """The methods of both schedulers, a base class before vLLM's. Its only own attribute is `servegym`, a Plugin."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            self.servegym = Plugin(self, lambda line: logger.warning("servegym: %s", line))
        except ServegymError as error:
            logger.error("servegym: %s", error)
            raise
        logger.info("servegym: %s decides", self.servegym.decisions.label)

    def use_clock(self, clock: Callable[[], float], origin_s: float = 0.0) -> None:
        """Read the time, on the scale of Request.arrival_time, from `clock`, for an engine on a virtual clock.

        Call it before the first request. origin_s: the time that the policy sees as 0.
        """
        self.servegym.clock, self.servegym.origin_s = clock, origin_s

    def add_request(self, request: Any) -> None:
        this: Any = self
        known = request.request_id in this.requests
        super().add_request(request)  # type: ignore[misc]
        if known:  # a streaming session with more input counts as a new request
            self.servegym.leave([request.request_id], finished=False)
        if not self.servegym.is_gone(request.request_id):
            self.servegym.enter(this.requests[request.request_id])

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: Any) -> Any:
        if request_ids is None:
            ids = list(self.servegym.row_of)
        elif isinstance(request_ids, str):
            ids = [request_ids]
        else:
            request_ids = ids = list(request_ids)
        result = super().finish_requests(request_ids, finished_status)  # type: ignore[misc]
        self.servegym.leave([request_id for request_id in ids if self.servegym.is_gone(request_id)], finished=False)
        return result

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        decided = self.servegym.before()
        try:
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.servegym.enforcer.restore()
        if decided is not None:
            self.servegym.after(output, *decided)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        result = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        self.servegym.ended(scheduler_output, result)
        return result


class Scheduler(PolicyMixin, VllmScheduler):
    """vLLM's scheduler with a servegym policy, for `--no-async-scheduling`."""


class AsyncScheduler(PolicyMixin, VllmAsyncScheduler):
    """vLLM's async scheduler (its default) with a servegym policy: a step is scheduled while the last one runs."""
