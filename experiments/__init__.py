"""Studies of servegym: the papers' claims, benchmarks and the pages of results. Not part of the installed package."""

import os
from pathlib import Path

# Processes that studies start do not have the current folder on their path, and find the studies by this.
_ROOT = str(Path(__file__).resolve().parents[1])
_PATHS = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
if _ROOT not in _PATHS:
    os.environ["PYTHONPATH"] = os.pathsep.join([*_PATHS, _ROOT])
