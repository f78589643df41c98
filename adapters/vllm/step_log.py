"""A log of steps, a line of JSON each: what was planned and what vLLM did."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from servegym.errors import VllmError


class StepLog:
    """Writes steps to a new file; path "": writes nothing. Raises VllmError if the file cannot be written."""

    def __init__(self, path: str):
        self.file: TextIO | None = None
        if path:
            try:
                self.file = open(path, "w")  # noqa: SIM115 (open as long as the engine runs)
            except OSError as error:
                raise VllmError(f"step_log {path} cannot be written: {error.strerror}") from None

    def write(
        self,
        now_s: float,
        planned: Iterable[tuple[str, int]] | None,
        scheduled: Mapping[str, int],
        preempted: Iterable[str],
        decision_s: float,
    ) -> None:
        """Write one step. planned: (request, tokens) in the order of the policy; None: vLLM decided."""
        if self.file is None:
            return
        line: dict[str, Any] = {
            "t": now_s,
            "planned": None if planned is None else list(planned),
            "scheduled": list(scheduled.items()),
            "preempted": list(preempted),
            "decision_us": round(1e6 * decision_s, 1),
        }
        self.file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self.file.flush()
