"""The vLLM configurations that the plug-in does not support, and the differences between vLLM's releases."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from servegym.adapters.vllm.versions import OVERRIDE, Parts
from servegym.errors import VllmError


def check_compatibility(config: Any) -> None:
    """Raise VllmError for a configuration (VllmConfig) that the mirror cannot follow."""
    found = [
        name
        for name, there in (
            ("a KV connector", config.kv_transfer_config is not None),
            ("pipeline parallelism", config.parallel_config.pipeline_parallel_size > 1),
            ("an encoder-decoder model", config.model_config.is_encoder_decoder),
            ("a pooling model", config.model_config.runner_type == "pooling"),
        )
        if there
    ]
    if found and os.environ.get(OVERRIDE) != "1":
        raise VllmError(
            f"the plug-in does not support {', '.join(found)}; serve without, or set {OVERRIDE}=1 to go on untested"
        )


def watch_chunks(scheduler: Any, parts: Parts, chunk: Callable[[Any, int], int]) -> None:
    """Have vLLM's scheduler call chunk(request, tokens), which returns how many of these tokens the request gets."""
    own = getattr(scheduler, parts.chunk, None)
    if own is None:
        return
    asked = parts.switch is None or getattr(scheduler, parts.switch)

    def call(request: Any, *others: int) -> int:
        return chunk(request, own(request, *others) if asked else others[0])

    setattr(scheduler, parts.chunk, call)
    if parts.switch is not None:
        setattr(scheduler, parts.switch, True)


def preempt(scheduler: Any, parts: Parts, request: Any, resumes: bool) -> None:
    """Preempt a running request. resumes: it runs again in this step, so its token under way has to be dropped."""
    if parts.stale:
        dropped = {"drop_stale_output": True} if resumes else {}
        scheduler._preempt_request(request, time.monotonic(), **dropped)
        return
    scheduler._preempt_request(request, time.monotonic())
    if resumes:  # as vLLM's reset_prefix_cache does; at most one step is under way here
        request.async_tokens_to_discard += request.num_output_placeholders > 0
        request.num_output_placeholders = 0


def counted_on(requests: Sequence[Any], parts: Parts, emitted: np.ndarray) -> list[int]:
    """Output tokens of each request, with those under way.

    vLLM stops counting tokens that were under way when a request was preempted, though it delivers them ("stale"). For
    such a request the mirror's number, `emitted` (int[n]), is returned until they have come, unless they are dropped.
    """
    if not parts.stale:
        return [request.num_output_tokens + request.num_output_placeholders for request in requests]
    return [
        int(known)
        if request.num_stale_output_tokens > 0 and not request.drop_stale_output
        else request.num_output_tokens + request.num_output_placeholders
        for request, known in zip(requests, emitted, strict=True)
    ]
