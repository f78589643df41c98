"""Other simulators beside ours: each runs in the Python of an environment of its own, on the same requests."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from servegym.errors import ExperimentError


def run_script(name: str, python: str, script: str, *arguments: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """What a script prints as JSON, in a process of that Python; -I, or it would see this folder's modules as its own.

    name: of the other simulator. settings: environment variables. Raises ExperimentError if the script fails.
    """
    done = subprocess.run(
        [python, "-I", script, *arguments], capture_output=True, text=True, env={**os.environ, **settings}
    )
    if done.returncode:
        raise ExperimentError(f"{python}: {name}'s replay failed ({done.returncode}): {done.stderr}")
    return json.loads(done.stdout)


def check_same_work(name: str, done: Mapping[str, Any], table: np.ndarray, ours: Mapping[str, Any]) -> None:
    """Raises ExperimentError unless both served every request, and every token of it.

    done: requests, prompt_tokens and output_tokens that the other one served. ours: summary of our run.
    """
    work = {
        "requests": len(table),
        "prompt_tokens": int(table["prompt_tokens"].sum()),
        "output_tokens": int(table["output_tokens"].sum()),
    }
    served = {field: done[field] for field in work}
    if served != work or (ours["finished"], ours["tokens_emitted"]) != (work["requests"], work["output_tokens"]):
        raise ExperimentError(f"not the same work: {name} served {served} of {work}")


def paired_ratio(theirs_s: Sequence[float], ours_s: Sequence[float]) -> float:
    """Their seconds over ours, median of the pairs: what else the machine does touches both runs of a pair alike."""
    return median(other_s / own_s for other_s, own_s in zip(theirs_s, ours_s, strict=True))
