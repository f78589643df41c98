"""A scheduler plug-in for vLLM: a servegym policy decides in its V1 scheduler (docs/vllm.md).

    SERVEGYM_POLICY=policy.json vllm serve MODEL --scheduler-cls servegym.adapters.vllm.AsyncScheduler

`Scheduler` and `AsyncScheduler` are defined on first access, as they derive from vLLM's, which has to be installed.
"""

from typing import Any

from servegym.errors import VllmError

__all__ = ["AsyncScheduler", "Scheduler", "VllmError"]


def __getattr__(name: str) -> Any:
    if name not in ("Scheduler", "AsyncScheduler"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from servegym.adapters.vllm.versions import check_version

    check_version()
    from servegym.adapters.vllm import scheduler

    return getattr(scheduler, name)
