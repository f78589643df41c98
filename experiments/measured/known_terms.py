"""What the measured engines add to the times of their batches, each term with its source."""

import dataclasses

from servegym.evaluation.measured.engine_terms import EngineTerms

ASYNCHRONOUS_FROM = (0, 14)
SYNCHRONOUS_CPU_S = 0.0009
SYNCHRONOUS_CPU_PER_REQUEST_S = 50e-6

SYNCHRONOUS = EngineTerms(
    "synchronous",
    "CPU time of a step: what vLLM 0.11.0 took for Qwen3-8B on an H100 beyond the composed device time, 0.9 ms "
    "(experiments/profiles/engine_overhead.py; none of these runs)",
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


def step_terms(terms: EngineTerms) -> EngineTerms:
    """Return only the terms that affect when batches are formed and how long they take."""
    return dataclasses.replace(terms, name="", source="", before_s=0.0, after_s=0.0, after_s_per_token=0.0)


def default_terms(version: str) -> EngineTerms:
    """Terms of a vLLM version, by the defaults in its release notes; without a version: synchronous."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return ASYNCHRONOUS if numbers >= ASYNCHRONOUS_FROM else SYNCHRONOUS
