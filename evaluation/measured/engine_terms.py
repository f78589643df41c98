"""Times that an engine adds to those of its batches, term by term. 0: not known."""

from __future__ import annotations

from dataclasses import dataclass

from servegym.latency_models.model import LatencyModel


@dataclass(frozen=True)
class EngineTerms:
    """step_cpu_s: in which the device waits, every step; step_cpu_per_request_s: for each request in it.

    asynchronous: the next batch is formed while one runs (docs/feature_rules.md). before_s: from the client to the
    queue. after_s, after_s_per_token: from the engine to the client, once, and for each output token. None depends on a
    run's result.
    """

    name: str
    source: str
    step_cpu_s: float = 0.0
    asynchronous: bool = False
    before_s: float = 0.0
    after_s: float = 0.0
    after_s_per_token: float = 0.0
    step_cpu_per_request_s: float = 0.0

    @property
    def of_steps(self) -> EngineTerms:
        """Only the terms that affect when batches are formed and how long they take."""
        step_cpu_s, by_request_s = self.step_cpu_s, self.step_cpu_per_request_s
        return EngineTerms("", "", step_cpu_s, self.asynchronous, step_cpu_per_request_s=by_request_s)

    def device(self, alone: LatencyModel) -> LatencyModel:
        """The device model with the CPU's time of a step in it."""
        if self.step_cpu_per_request_s:
            alone = alone.plus_per_request(self.step_cpu_per_request_s)
        return alone.plus_constant(self.step_cpu_s)
