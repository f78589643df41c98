"""Check a file of policies before it is used, with bounds checks on small scenarios, in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from servegym.errors import PolicyError

LIMIT_S = 60  # limit of one small scenario, which takes about a second
FOLDER = "checked"  # folder in the cache with an empty file for each text that has passed


def check_policy(path: Path | str, again: bool = False, limit_s: int = LIMIT_S) -> None:
    """Check the policies that a Python file registers, as `--load-policies` does.

    They are compiled with bounds checks and run on small scenarios (`scenes.py`), with junk in place of everything that
    they may not read (`guards.py`), in a process that may crash or hang. A file that has passed is not checked again
    until it or the simulator changes.

    again: check it even so. limit_s: most seconds of one scenario. Raises PolicyError with what a policy did, and
    where.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise PolicyError(f"{file.name}: there is no such file in {file.parent}")
    if not again and has_passed(file):
        return
    advance_ready()
    command = [sys.executable, "-P", "-m", "servegym.evaluation.policy_checks.worker", str(file), str(limit_s)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONFAULTHANDLER": "0"})
    steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    problem = problem_of(steps, done.returncode, done.stderr, limit_s)
    if problem is not None:
        raise PolicyError(f"{file.name} did not pass its check {problem}")
    mark_passed(file)


def problem_of(steps: list[dict[str, Any]], status: int, errors: str, limit_s: float) -> str | None:
    """Describe the fault that a checking process reported or ended with; None if there was none."""
    at = next((step["at"] for step in reversed(steps) if "at" in step), "before any policy was run")
    refused = next((step["refused"] for step in steps if "refused" in step), None)
    if refused is not None:
        return f"({at}): {refused}"
    if status == -signal.SIGALRM:
        return f"({at}): no end in {limit_s} s; its loops should end, and a decision take microseconds"
    if status < 0:
        name = signal.Signals(-status).name
        return f"({at}): the process was ended by {name}; it should read and write only what it is given"
    if status != 0:
        return f"({at}): {(errors.strip().splitlines() or ['it printed no error'])[-1]}"
    return None


def has_passed(file: Path) -> bool:
    """Return whether this text of a file has passed the check of this code."""
    return _mark_of(file).exists()


def mark_passed(file: Path) -> None:
    """Remember that this text of a file has passed."""
    passed = _mark_of(file)
    passed.parent.mkdir(parents=True, exist_ok=True)
    passed.touch()


def advance_ready() -> None:
    """Compile the event loop into the cache for the other process."""
    from servegym.simulator.runs.loops import WHOLE

    WHOLE.entry  # noqa: B018


def _mark_of(file: Path) -> Path:
    """Return the file that marks a policy file as passed, named after its text and the code that checked it."""
    from servegym.simulator.compilation.cache import cache_root
    from servegym.simulator.compilation.digests import source_digest
    from servegym.simulator.runs.loops import WHOLE

    digest = hashlib.sha256(file.read_bytes() + str(file).encode() + (source_digest(WHOLE) or "").encode())
    for checker in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(checker.read_bytes())
    return cache_root() / FOLDER / digest.hexdigest()[:20]
