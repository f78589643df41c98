"""An emulated device for vLLM: its frontend, engine core and scheduler as they are, steps timed by a latency profile.

    SERVEGYM_DEVICE=a100-llama3-8b vllm serve MODEL --distributed-executor-backend servegym.adapters.emulation.Executor

See docs/emulation.md. Nothing here imports vLLM until `Executor` or `Platform` is asked for.
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
    """vLLM's hook for platforms (entry point vllm.platform_plugins): ours where a device is to be emulated."""
    import os

    return f"{__name__}.Platform" if os.environ.get("SERVEGYM_DEVICE") else None
