"""Names the times that an engine adds to those of its batches. 0: not known."""

from __future__ import annotations

from dataclasses import dataclass

from servegym.latency_models.model import LatencyModel


@dataclass(frozen=True)
class EngineTerms:
    """Adds CPU and client time to a device's, in seconds. None of it depends on a run's result.

    step_cpu_s: the device waits for it in every step. step_cpu_per_request_s: for each request of the step.
    asynchronous: the next batch is formed while one runs (docs/feature_rules.md). before_s: from the client to the
    queue. after_s, after_s_per_token: from the engine to the client, once, and for each output token.
    """

    name: str
    source: str
    step_cpu_s: float = 0.0
    asynchronous: bool = False
    before_s: float = 0.0
    after_s: float = 0.0
    after_s_per_token: float = 0.0
    step_cpu_per_request_s: float = 0.0

    def device(self, alone: LatencyModel) -> LatencyModel:
        """Return the device model `alone` plus the CPU time of a step."""
        if self.step_cpu_per_request_s:
            alone = alone.plus_per_request(self.step_cpu_per_request_s)
        return alone.plus_constant(self.step_cpu_s)
