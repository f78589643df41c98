"""LoRA adapters: keeps the number of running ones within the limit of a vLLM step.

vLLM asserts that a step has `max_loras` adapters at most, and counts those in the step when it admits; for it skips no
running request. A policy does, and those that are skipped may all come to be in one step. So all that run count here.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.request import RequestStatus


class Adapters:
    """Of the requests of one of vLLM's schedulers, by the mirror's row."""

    def __init__(self, scheduler: Any):
        self.scheduler, self.counting = scheduler, True
        self.of_row: dict[int, int] = {}
        self.running: set[int] = set()  # of those that run, or are admitted in this step

    def enter(self, row: int, request: Any) -> None:
        if request.lora_request is not None:
            self.of_row[row] = request.lora_request.lora_int_id

    def leave(self, row: int) -> None:
        self.of_row.pop(row, None)

    def look(self) -> None:
        """A step begins."""
        if self.of_row:
            running = self.scheduler.running
            self.running = {r.lora_request.lora_int_id for r in running if r.lora_request is not None}

    def barred(self) -> list[int]:
        """Rows of those that could not be admitted now, for no adapter can be added.

        If they were planned nevertheless, a policy might choose only these, step after step, and running requests never
        end.
        """
        if not self.of_row or len(self.running) < self.scheduler.lora_config.max_loras:
            return []
        return [row for row, adapter in self.of_row.items() if adapter not in self.running]

    def admits(self, request: Any) -> bool:
        """Whether a request may have tokens in this step; if it is admitted by that, its adapter counts."""
        if request.lora_request is None or request.status is RequestStatus.RUNNING or not self.counting:
            return True
        adapter = request.lora_request.lora_int_id
        if adapter not in self.running and len(self.running) >= self.scheduler.lora_config.max_loras:
            return False
        self.running.add(adapter)
        return True

    def stop(self) -> None:
        """Stop limiting: vLLM decides alone from now on."""
        self.counting = False
