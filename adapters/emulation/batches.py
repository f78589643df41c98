"""Converts steps that vLLM scheduled to BATCH records, which the simulator's device models take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from servegym.simulator.records.batches import add
from servegym.simulator.records.types import BATCH

OUTPUT_TOKENS = "output_tokens"  # key of vllm_xargs: the emulated model ends its answer after so many tokens


@dataclass
class Held:
    """A request that has been scheduled and not finished. output_tokens: 0: the model does not end the answer."""

    prompt_tokens: int
    computed_tokens: int
    num_output_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Step:
    """One batch. sums: BATCH[1]. ids: its requests, in the order scheduled. emitted: output tokens of each after the
    step; 0 for a request that emits none (its prompt is not done). ends: whether its token of this step is its last.
    """

    sums: np.ndarray
    ids: list[str]
    emitted: list[int]
    ends: list[bool]


class Requests:
    """The requests as a worker knows them from the scheduler's outputs, which it gets in order."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}

    def leave(self, scheduled: Any) -> None:
        """Forget the requests that have finished."""
        for name in scheduled.finished_req_ids:
            self.held.pop(name, None)

    def step(self, scheduled: Any) -> Step:
        """Convert a SchedulerOutput to a Step, and update the requests."""
        self.leave(scheduled)
        for new in scheduled.scheduled_new_reqs:
            self.held[new.req_id] = first_seen(new)
        cached = scheduled.scheduled_cached_reqs
        for name, computed, emitted in zip(
            cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            # num_computed_tokens is 0 again after a preemption. With asynchronous scheduling it counts the step before
            # as done; steps arrive here in order, so that step is done.
            request = self.held[name]
            request.computed_tokens, request.num_output_tokens = computed, emitted
        sums = np.zeros(1, BATCH)
        step = Step(sums, list(scheduled.num_scheduled_tokens), [], [])
        for name, tokens in scheduled.num_scheduled_tokens.items():
            request = self.held[name]
            left = request.prompt_tokens + request.num_output_tokens - request.computed_tokens
            add(sums[0], tokens, request.computed_tokens, request.num_output_tokens > 0 and left == 1)
            request.computed_tokens += tokens
            emits = tokens >= left
            request.num_output_tokens += emits
            step.emitted.append(request.num_output_tokens if emits else 0)
            step.ends.append(emits and 0 < request.output_tokens <= request.num_output_tokens)
        return step


def first_seen(new: Any) -> Held:
    """Convert a NewRequestData. vLLM's second model runner gets preempted requests as new ones with output tokens."""
    prompt = len(new.prompt_token_ids or ())
    context = getattr(new, "prefill_token_ids", None)
    emitted = 0 if context is None else len(context) - prompt
    arguments = (new.sampling_params.extra_args or {}) if new.sampling_params is not None else {}
    return Held(prompt, new.num_computed_tokens, emitted, _output_tokens(arguments))


def _output_tokens(arguments: Mapping[str, Any]) -> int:
    """Read the client's `output_tokens`; a value that is not a number of tokens is ignored."""
    value = arguments.get(OUTPUT_TOKENS)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 2**31:
        return 0
    return int(value)
