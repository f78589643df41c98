"""Times that an engine adds to those of its batches, term by term, each with its source. 0: not known."""

from __future__ import annotations

from dataclasses import dataclass

from servegym.latency_models.model import LatencyModel

ASYNCHRONOUS_FROM = (0, 14)
SYNCHRONOUS_CPU_S = 0.0009
SYNCHRONOUS_CPU_PER_REQUEST_S = 50e-6


@dataclass(frozen=True)
class EngineTerms:
    """step_cpu_s: in which the device waits, every step; step_cpu_per_request_s: for each request in it.

    asynchronous: the next batch is formed while one runs (docs/async_scheduling.md). before_s: from the client to the
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


SYNCHRONOUS = EngineTerms(
    "synchronous",
    "CPU time of a step: what vLLM 0.11.0 took for Qwen3-8B on an H100 beyond the composed device time, 0.9 ms "
    "(building/engine_overhead.py; none of these runs)",
    step_cpu_s=SYNCHRONOUS_CPU_S,
)
CPU_BY_REQUEST = EngineTerms(
    "CPU by request",
    "beside that 50 us for each request of the batch: fitted to 96 closed loops of vLLM 0.12.0 "
    "(docs/results/measured-closed-loops.md)",
    step_cpu_s=SYNCHRONOUS_CPU_S,
    step_cpu_per_request_s=SYNCHRONOUS_CPU_PER_REQUEST_S,
)
ASYNCHRONOUS = EngineTerms(
    "asynchronous",
    "vLLM 0.14.0 and later schedule a step while the one before it runs (release notes of 0.14.0, #27614: on by "
    "default): the CPU's time is hidden, and a request that comes waits one step more",
    asynchronous=True,
)
FRONT_END_SOURCE = (
    "the source's own fit to runs of this collection, so not independent of it: 9.3 ms before the queue, 1.8 ms and "
    "1.7 us an output token after the engine"
)
FRONT_END = EngineTerms("front end", FRONT_END_SOURCE, before_s=0.0093, after_s=0.0018, after_s_per_token=1.7e-6)


def default_terms(version: str) -> EngineTerms:
    """Terms of a vLLM version, by the defaults in its release notes; without a version: synchronous."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return ASYNCHRONOUS if numbers >= ASYNCHRONOUS_FROM else SYNCHRONOUS
