"""An emulated device for vLLM: vLLM's own frontend, engine core and scheduler, with steps timed by a latency profile.

    SERVEGYM_DEVICE=a100-llama3-8b vllm serve MODEL --distributed-executor-backend servegym.adapters.emulation.Executor

See docs/emulation.md. vLLM is imported on the first access to `Executor` or `Platform`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "Executor":
        from servegym.adapters.emulation.executor import Executor

        return Executor
    if name == "Platform":
        from servegym.adapters.emulation.platform import Platform

        return Platform
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register_platform() -> str | None:
    """vLLM's hook for platforms (entry point vllm.platform_plugins): returns ours if SERVEGYM_DEVICE is set."""
    import os

    return f"{__name__}.Platform" if os.environ.get("SERVEGYM_DEVICE") else None
