"""`servegym.score`: a policy file read, checked, run on a few scenarios, then on all, in processes that may crash."""

from __future__ import annotations

import dataclasses
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servegym.errors import PolicyError
from servegym.evaluation.policy_checks import checking
from servegym.evaluation.scoring.client import JobOutput, ask
from servegym.evaluation.scoring.results import Score, score_of, where
from servegym.evaluation.scoring.source_rules import check_source

LIMIT_S, MEMORY_GIB = 60.0, 4.0
LEAST = 0.5  # of the score on a few scenarios, below which the others are not run
CHECK_S = 1200.0  # of a whole check, compiling included
READY_S = 1800.0  # to compile the loop, make a panel's scenarios and run its baselines: once in a process


def score(
    policy: Path | str,
    panel: Path | str | None = None,
    name: str | None = None,
    *,
    baselines: Sequence[str] = (),
    kind: str | None = None,
    least: float = LEAST,
    limit_s: float = LIMIT_S,
    memory_gib: float = MEMORY_GIB,
) -> Score:
    """How good a scheduler or router is, as one number with what is under it (docs/scoring.md).

        servegym.score("my_policy.py").combined_score

    policy: a Python file, or the name of a policy there is ("slide-batching:gamma=2", "learned:PATH"). A file is read
    (`check_source`), checked (`check_policy`), run on the scenarios of the highest load, and if its score comes to
    `least` there, on all. panel: a name or a file (None: `score`, of a router `score_routers`). name: of the policy,
    where the file registers several. baselines: two policies of its kind or more, that are run too. kind: of a policy
    that is named, where a scheduler and a router have the name. limit_s: of its runs, memory_gib: of its process.

    Raises PolicyError, with what the policy did and where, for one that says what it may not, does not pass its check,
    crashes, hangs, writes or reads outside, or takes too much memory; ExperimentError, SpecError for a panel that
    cannot be.
    """
    file = _file_of(policy)
    with tempfile.TemporaryDirectory() as folder:
        job: dict[str, Any] = {
            "path": str(file) if file else None, "name": name if file else str(policy), "limit_s": limit_s,
            "least": least,
            "panel": None if panel is None else str(Path(panel).resolve()) if Path(panel).is_file() else str(panel),
            "baselines": list(baselines), "memory_gib": memory_gib, "errors": str(Path(folder) / "errors.txt"),
        }  # fmt: skip
        cpu_s = 0.0
        if file:
            check_source(file)
            kind, cpu_s = _checked(file, job)
        said = ask(job | {"do": "score", "kind": kind or _kind_of(str(policy))}, READY_S + limit_s)
        problem = _problem(said, job)
    if problem is not None:
        raise PolicyError(f"{file.name if file else policy} {_at(said)}: {problem}")
    found = score_of(said.lines)
    return dataclasses.replace(found, metrics=found.metrics | {"check_cpu_s": cpu_s, "run_cpu_s": said.cpu_s})


def _file_of(policy: Path | str) -> Path | None:
    """The file of a policy; None: it is named. Raises PolicyError for a file there is not."""
    path = Path(policy)
    if path.suffix != ".py":
        return None
    if not path.is_file():
        raise PolicyError(f"{path.name}: there is no such file in {path.resolve().parent}")
    return path.resolve()


def _kind_of(text: str) -> str:
    from servegym.baselines import registry

    name = text.partition(":")[0]
    return "router" if name in registry.router_names() and name not in registry.scheduler_names() else "scheduler"


def _checked(file: Path, job: dict[str, Any]) -> tuple[str, float]:
    """The kind of the policy that is to be scored, once its file has passed, and what that took, processor seconds."""
    passed = checking.has_passed(file)
    of_check = {"do": "load" if passed else "check", "check_s": checking.LIMIT_S, "limit_s": CHECK_S}
    said = ask(job | of_check, READY_S)
    problem = checking.problem_of(said.lines, said.status, _errors(job), checking.LIMIT_S)
    if problem is not None:
        raise PolicyError(f"{file.name} did not pass its check {problem}")
    if not passed:
        checking.mark_passed(file)
    return str(next(line["kind"] for line in said.lines if "kind" in line)), said.cpu_s


def _problem(said: JobOutput, job: dict[str, Any]) -> str | None:
    """What went wrong, by the output and exit status of a job; None: nothing."""
    refused = next((line["refused"] for line in said.lines if "refused" in line), None)
    if refused is not None:
        return str(refused)
    if said.killed or said.status == -signal.SIGALRM:
        return f"no end in {job['limit_s']:g} s; it should be faster, or the limit larger"
    if said.status == 0:
        return None
    if said.status < 0:
        return f"the process was ended by {signal.Signals(-said.status).name}"
    errors = _errors(job)
    if "MemoryError" in errors or "Cannot allocate memory" in errors:
        return f"it takes more than {job['memory_gib']:g} GiB of memory; it should do with less"
    return (errors.strip().splitlines() or ["nothing was said"])[-1]


def _errors(job: dict[str, Any]) -> str:
    file = Path(job["errors"])
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _at(said: JobOutput) -> str:
    """How far it came."""
    runs = [line["run"] for line in said.lines if "run" in line and line["run"]["judged"]]
    if not runs:
        return "before its first run ended" if any("stage" in line for line in said.lines) else "before it was run"
    return f"after {len(runs)} runs, the last on {where(runs[-1])}"
