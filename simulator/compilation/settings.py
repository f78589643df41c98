"""Numba's settings that compiled code depends on, without importing Numba where they are not set."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# Each setting with its variable and Numba's default.
SETTINGS = {
    "BOUNDSCHECK": ("NUMBA_BOUNDSCHECK", None), "OPT": ("NUMBA_OPT", 3), "DEBUGINFO_DEFAULT": ("NUMBA_DEBUGINFO", 0),
    "LOOP_VECTORIZE": ("NUMBA_LOOP_VECTORIZE", 1), "SLP_VECTORIZE": ("NUMBA_SLP_VECTORIZE", 0),
    "EXTEND_VARIABLE_LIFETIMES": ("NUMBA_EXTEND_VARIABLE_LIFETIMES", 0), "DISABLE_JIT": ("NUMBA_DISABLE_JIT", 0),
    "CPU_NAME": ("NUMBA_CPU_NAME", None), "CPU_FEATURES": ("NUMBA_CPU_FEATURES", None),
}  # fmt: skip
FILE = Path(".numba_config.yaml")  # in the working folder
# Those that are part of the digest of a kernel's sources; the processor is part of the name of its file.
OF_CODE = ("BOUNDSCHECK", "OPT", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "EXTEND_VARIABLE_LIFETIMES")


def setting(name: str) -> Any:
    """Return one of Numba's `SETTINGS`."""
    variable, default = SETTINGS[name]
    if name == "DISABLE_JIT" and os.environ.get(variable) in ("0", "1") and not FILE.exists():
        return int(os.environ[variable])
    if "numba" not in sys.modules and variable not in os.environ and not FILE.exists():
        return default
    import numba

    return getattr(numba.config, name, default)


def check_bounds() -> None:
    """Compile kernels with bounds checks from now on. The cache keeps them apart from those without."""
    import numba

    config: Any = numba.config
    config.BOUNDSCHECK = 1


def code_settings() -> str:
    """Return the settings `OF_CODE` as text, for digests."""
    values = {name: setting(name) for name in OF_CODE}
    if getattr(values["OPT"], "is_opt_max", False):
        values["OPT"] = "max"
    return ", ".join(f"{name}={int(value) if isinstance(value, int) else value}" for name, value in values.items())


JIT_DISABLED = bool(setting("DISABLE_JIT"))
