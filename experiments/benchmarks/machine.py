"""Where a figure was measured: no number of speed means anything without it."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe() -> str:
    """Versions, processor and load, in one line."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("servegym", "numba", "numpy"))
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{packages}, Python {platform.python_version()}; {cpu()}; load average {load}"


def cpu() -> str:
    """Model and number of processors, as far as the system tells."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(encoding="utf-8").splitlines()
        named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = named[0] if named else model
    return f"{model}, {os.cpu_count()} cores"
