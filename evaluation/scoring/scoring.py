"""`servegym.score`: read a policy's file, check it, run it on a few scenarios and then on all, in other processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servegym.errors import ExperimentError, PolicyError
from servegym.evaluation.policy_checks import checking
from servegym.evaluation.scoring.client import JobOutput, ask
from servegym.evaluation.scoring.results import Score, score_of, where
from servegym.evaluation.scoring.source_rules import check_source

LIMIT_S, MEMORY_GIB = 60.0, 4.0
LEAST = 0.5  # share on a few scenarios below which the others are not run
CHECK_S = 1200.0  # limit of a whole check, compilation included
READY_S = 1800.0  # limit of compiling the loop, drawing a panel's scenarios and running its baselines, once a process


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
    """Score a scheduler or router: one number, and the figures behind it (docs/scoring.md).

        servegym.score("my_policy.py").combined_score

    policy: a Python file, or the name of a policy ("slide-batching:gamma=2", "learned:PATH"). A file is read
        (`check_source`), checked (`check_policy`), run on the scenarios of the highest load and, if its share there is
        at least `least`, on all.
    panel: a name or a file; None: `score`, for a router `score_routers`.
    name: of the policy, if the file registers several.
    baselines: two or more policies of its kind, which are run too.
    kind: of a named policy, if a scheduler and a router have that name.
    least: a score from 0 to 1. limit_s: of its runs. memory_gib: of its process.

    Raises PolicyError, with what the policy did and where, if its file contains what it may not, or if it fails its
    check, crashes, hangs, writes or reads outside its arrays, or takes too much memory; ExperimentError, SpecError for
    an invalid panel.
    """
    file = _file_of(policy)
    _check(None if file else str(policy), panel, baselines, kind, least)
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
        output = ask(job | {"do": "score", "kind": kind or _kind_of(str(policy))}, READY_S + limit_s)
        problem = _problem(output, job)
    if problem is not None:
        of_input = output.lines and output.lines[0].keys() == {"refused"}  # such as a panel that is not there
        raise PolicyError(problem if of_input else f"{file.name if file else policy} {_at(output)}: {problem}")
    found = score_of(output.lines)
    return dataclasses.replace(found, metrics=found.metrics | {"check_cpu_s": cpu_s, "run_cpu_s": output.cpu_s})


def _file_of(policy: Path | str) -> Path | None:
    """Return the file of a policy; None: it is named. Raises PolicyError for a missing file."""
    if not isinstance(policy, str | os.PathLike):
        raise PolicyError(f"a policy of type {type(policy).__name__}; it should be a file, or the name of a policy")
    path = Path(policy)
    if path.suffix != ".py":
        return None
    if not path.is_file():
        raise PolicyError(f"{path.name}: there is no such file in {path.resolve().parent}")
    return path.resolve()


def _check(
    policy: str | None, panel: Path | str | None, baselines: Sequence[str], kind: str | None, least: float
) -> None:
    """Raise as `score` for names and numbers that are wrong, before processes are started. policy: if it is named."""
    from servegym.baselines import registry
    from servegym.evaluation.panels.panel import load_panel

    if not 0 <= least <= 1:
        raise ExperimentError(f"least is {least:g}; it should be a score from 0 to 1")
    if isinstance(baselines, str):
        raise ExperimentError(f"baselines is {baselines!r}; it should be several names, two or more")
    if len(set(baselines)) == 1:
        raise ExperimentError(f"{baselines[0]} is the only baseline; name two or more, or none")
    kind = kind or (_kind_of(policy) if policy else None)
    for text in [*baselines, *([policy] if policy else [])]:
        {"scheduler": registry.scheduler, "router": registry.router}[kind or _kind_of(text)](text)
    if panel is not None:
        if not isinstance(panel, str | os.PathLike):
            raise ExperimentError(f"a panel of type {type(panel).__name__}; it should be a name or a file")
        load_panel(panel)


def _kind_of(text: str) -> str:
    """Return the kind of a named policy: a scheduler, unless only a router has the name."""
    from servegym.baselines import registry

    name = text.partition(":")[0]
    return "router" if name in registry.router_names() and name not in registry.scheduler_names() else "scheduler"


def _checked(file: Path, job: dict[str, Any]) -> tuple[str, float]:
    """Check a file unless it has passed already; return the kind of its policy, and processor seconds of the check."""
    passed = checking.has_passed(file)
    of_check = {"do": "load" if passed else "check", "check_s": checking.LIMIT_S, "limit_s": CHECK_S}
    output = ask(job | of_check, READY_S)
    problem = checking.problem_of(output.lines, output.status, _errors(job), checking.LIMIT_S)
    if problem is not None:
        raise PolicyError(f"{file.name} did not pass its check {problem}")
    if not passed:
        checking.mark_passed(file)
    return str(next(line["kind"] for line in output.lines if "kind" in line)), output.cpu_s


def _problem(output: JobOutput, job: dict[str, Any]) -> str | None:
    """Describe what went wrong, by the output and exit status of a job; None: nothing."""
    refused = next((line["refused"] for line in output.lines if "refused" in line), None)
    if refused is not None:
        return str(refused)
    if output.killed or output.status == -signal.SIGALRM:
        return f"no end in {job['limit_s']:g} s; it should be faster, or the limit larger"
    if output.status == 0:
        return None
    if output.status < 0:
        return f"the process was ended by {signal.Signals(-output.status).name}"
    errors = _errors(job)
    if "MemoryError" in errors or "Cannot allocate memory" in errors:
        return f"it takes more than {job['memory_gib']:g} GiB of memory; it should do with less"
    return (errors.strip().splitlines() or ["it printed no error"])[-1]


def _errors(job: dict[str, Any]) -> str:
    """Return what the processes of a job printed."""
    file = Path(job["errors"])
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _at(output: JobOutput) -> str:
    """Describe how far a job came."""
    runs = [line["run"] for line in output.lines if "run" in line and line["run"]["judged"]]
    if not runs:
        return "before its first run ended" if any("stage" in line for line in output.lines) else "before it was run"
    return f"after {len(runs)} runs, the last on {where(runs[-1])}"
