"""`servegym.score`: a policy file checked, run on a few scenarios, then on all, in processes that may crash or hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from servegym.errors import PolicyError
from servegym.evaluation.policy_checks.checking import advance_ready, check_policy
from servegym.evaluation.scoring.results import Score, score_of

LIMIT_S, MEMORY_GIB = 120.0, 4.0
LEAST = 0.5  # of the score on a few scenarios, below which the others are not run


def score(
    path: Path | str,
    panel: Path | str | None = None,
    name: str | None = None,
    least: float = LEAST,
    limit_s: float = LIMIT_S,
    memory_gib: float = MEMORY_GIB,
) -> Score:
    """How good the scheduler or router in a Python file is, as one number with what is under it (docs/scoring.md).

        servegym.score("my_policy.py").combined_score

    It is checked first (`check_policy`), then run on the scenarios of the highest load, and if it comes to `least` there,
    on all. panel: a name or a file (None: `score`, of a router `score_routers`); `name`: of the policy, where the file
    registers several. limit_s: for everything after the check; memory_gib: of its process.

    Raises PolicyError, with what the policy did, for one that does not pass its check, crashes, hangs or takes too much
    memory; ExperimentError for a panel there is not, ServegymError for what else is wrong.
    """
    path = Path(path).resolve()
    check_policy(path)
    advance_ready()
    request = {
        "path": str(path), "panel": None if panel is None else str(panel), "name": name, "memory_gib": memory_gib,
    }  # fmt: skip
    lines = run_worker(request, path.name, limit_s, least)
    refused = next((line["refused"] for line in lines if "refused" in line), None)
    if refused is not None:
        raise PolicyError(refused)
    return score_of(lines)


def run_worker(request: dict[str, Any], file: str, limit_s: float, least: float) -> list[dict[str, Any]]:
    """The lines that it says, up to its end, or until what it says of the quick stage is too little to go on."""
    with tempfile.TemporaryDirectory() as folder:
        asked, said = Path(folder) / "request.json", Path(folder) / "errors.txt"
        asked.write_text(json.dumps(request), encoding="utf-8")
        with said.open("w", encoding="utf-8") as errors:
            worker = subprocess.Popen(
                [sys.executable, "-m", "servegym.evaluation.scoring.worker", str(asked)],
                stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
            timer = _killed_after(worker, limit_s)
            lines: list[dict[str, Any]] = []
            try:
                assert worker.stdout is not None
                for text in worker.stdout:
                    if text.startswith("{"):
                        lines.append(json.loads(text))
                    if lines and lines[-1].get("stage") == "full" and score_of(lines).combined_score < least:
                        lines.pop()  # not begun
                        return lines
                status = worker.wait()
            finally:
                timer.cancel()
                _kill(worker)
        problem = _problem(status, timer.fired, limit_s, request, said.read_text(encoding="utf-8"))
        if problem is not None and not any("refused" in line for line in lines):
            raise PolicyError(f"{file} {_at(lines)}: {problem}")
    return lines


def _problem(status: int, late: bool, limit_s: float, request: dict[str, Any], errors: str) -> str | None:
    """What went wrong, by how the process ended; None: nothing did."""
    if late:
        return f"no end in {limit_s:g} s; it should be faster, or --limit larger"
    if status == 0:
        return None
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    last = (errors.strip().splitlines() or ["nothing was said"])[-1]
    if "MemoryError" in errors or "Cannot allocate memory" in errors:
        return f"it takes more than {request['memory_gib']:g} GiB of memory; it should do with less"
    return last


def _at(lines: list[dict[str, Any]]) -> str:
    """How far it came."""
    runs = [line["run"] for line in lines if "run" in line]
    if not runs:
        return "before the first run" if any("policy" in line for line in lines) else "while it was loaded"
    return f"after {len(runs)} runs, the last on {where(runs[-1])}"


def where(run: dict[str, Any]) -> str:
    return f"{run['trace']}, {run['device']}, load {run['load']:g}, seed {run['seed']}"


class _killed_after:
    """Ends a process, and all it has started, after so many seconds."""

    def __init__(self, worker: subprocess.Popen[str], limit_s: float):
        import threading

        self.fired, self._worker = False, worker
        self._timer = threading.Timer(limit_s, self._fire)
        self._timer.daemon = True
        self._timer.start()

    def _fire(self) -> None:
        self.fired = True
        _kill(self._worker)

    def cancel(self) -> None:
        self._timer.cancel()


def _kill(worker: subprocess.Popen[str]) -> None:
    try:
        os.killpg(worker.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    worker.wait()
