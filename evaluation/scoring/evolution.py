"""A score as evolution frameworks ask for it: evaluate(program_path), of a task that is a folder.

`task.yaml` of a task: `panel`, and optionally `baselines` and the limits `least`, `limit_s`, `memory_gib` of
`servegym.score`. Its evaluator.py is three lines (docs/scoring.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from servegym.errors import ExperimentError, PolicyError
from servegym.evaluation.scoring.scoring import score
from servegym.evaluation.shipped_files import load_mapping

SETTINGS = ("panel", "baselines", "least", "limit_s", "memory_gib")
# Each has a class EvaluationResult(metrics, artifacts).
RESULT_MODULES = ("skydiscover.evaluation.evaluation_result", "openevolve.evaluation_result")
Evaluate = Callable[[str], Any]


def evaluator(file: str | Path) -> Evaluate:
    """Return the function that a framework calls, for the task in the folder of a file.

    It returns a dictionary: "combined_score", to be maximised, each figure of `Score.metrics` by its name, and
    "artifacts", texts that help to improve the program. If OpenEvolve or SkyDiscover is loaded, it returns the
    EvaluationResult of that framework instead. A program that is refused has a combined_score of 0, the least possible,
    and the reason as feedback; no error is raised for it.

    Raises ExperimentError, ServegymError for an invalid task.
    """
    folder = Path(file).resolve().parent
    settings = settings_of(folder)

    def evaluate(program_path: str) -> Any:
        return answer(evaluated(program_path, settings))

    return evaluate


def settings_of(folder: Path) -> dict[str, Any]:
    """Return the settings in task.yaml as arguments of `score`. The file of a panel may lie beside it."""
    if not (folder / "task.yaml").is_file():
        raise ExperimentError(
            f"{folder} has no task.yaml; an evaluator's folder has one, with panel: score, or another"
        )
    document, path = load_mapping(folder / "task.yaml", folder, "task", "panel", ExperimentError)
    for name in document:
        if name not in SETTINGS:
            raise ExperimentError(f"{path.name}: a task has no {name}; it has {', '.join(SETTINGS)}")
    beside = folder / str(document.get("panel"))
    return dict(document) | ({"panel": beside} if beside.is_file() else {})


def evaluated(program_path: str | Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Score a program, and return the result as a dictionary."""
    try:
        found = score(Path(program_path), **settings)
    except PolicyError as error:
        return {"combined_score": 0.0, "refused": 1.0, "artifacts": {"feedback": str(error)}}
    numbers = {name: float(value) for name, value in found.metrics.items()}
    return {"combined_score": found.combined_score, "refused": 0.0, **numbers, "artifacts": found.artifacts}


def answer(result: dict[str, Any]) -> Any:
    """Return the result in the form of the framework that is loaded."""
    module = next((sys.modules[name] for name in RESULT_MODULES if name in sys.modules), None)
    if module is None:
        return result
    metrics = {name: value for name, value in result.items() if name != "artifacts"}
    return module.EvaluationResult(metrics=metrics, artifacts=result["artifacts"])
