"""LoRA adapters: keeps the number of adapters of running requests within `max_loras`.

vLLM asserts that a step has at most `max_loras` adapters, and counts those of the step when it admits a request, as it
never skips a running request. A policy may skip some, and all of them may run in one later step. So the adapters of all
running requests count here.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.request import RequestStatus


class Adapters:
    """Counts the adapters of a vLLM scheduler's requests, which are given by the mirror's row."""

    def __init__(self, scheduler: Any):
        self.scheduler, self.counting = scheduler, True
        self.of_row: dict[int, int] = {}
        self.running: set[int] = set()  # adapters of requests that run or are admitted in this step

    def enter(self, row: int, request: Any) -> None:
        if request.lora_request is not None:
            self.of_row[row] = request.lora_request.lora_int_id

    def leave(self, row: int) -> None:
        self.of_row.pop(row, None)

    def look(self) -> None:
        """Count the adapters of running requests at the beginning of a step."""
        if self.of_row:
            running = self.scheduler.running
            self.running = {r.lora_request.lora_int_id for r in running if r.lora_request is not None}

    def barred(self) -> list[int]:
        """Return the rows of waiting requests whose adapter would exceed the limit now.

        Plans exclude them: a policy that chose only these, step after step, would keep running requests from ending.
        """
        if not self.of_row or len(self.running) < self.scheduler.lora_config.max_loras:
            return []
        return [row for row, adapter in self.of_row.items() if adapter not in self.running]

    def admits(self, request: Any) -> bool:
        """Whether a request may have tokens in this step; if it may, its adapter counts from now on."""
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
