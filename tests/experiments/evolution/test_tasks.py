"""The tasks that ship: their evaluators load as frameworks load them, their starts pass what is read of them."""

import importlib.util
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import experiments.evolution
from servegym import policy
from servegym.errors import ExperimentError
from servegym.evaluation.panels.panel import load_panel
from servegym.evaluation.scoring import evolution
from servegym.evaluation.scoring.source_rules import check_source
from servegym.simulator.records.types import ENGINE, ENGINE_SNAPSHOT, REQUEST

FOLDER = Path(experiments.evolution.__file__).parent
TASKS = sorted(path.parent.name for path in FOLDER.glob("*/task.yaml"))
SMALL = """
trace: [azure-conv]
device: [a100-llama3-8b]
load: [1.4]
requests: 40
first_seed: 6000000
seeds: 1
"""


def loaded(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("evaluation_module", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_five() -> None:
    assert TASKS == ["admission", "batch_scheduler", "prefill_decode_router", "router", "speculation_depth"]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_complete(task: str) -> None:
    folder = FOLDER / task
    assert callable(loaded(folder / "evaluator.py").evaluate)
    check_source(folder / "initial_program.py")
    settings = evolution.settings_of(folder)
    panel = load_panel(settings["panel"])
    program, words = ((folder / name).read_text("utf-8") for name in ("initial_program.py", "README.md"))
    assert program.count("# EVOLVE-BLOCK-START") == program.count("# EVOLVE-BLOCK-END") == 1
    assert f"{panel.cells}\nscenarios" in words.replace(f"{panel.cells} scenarios", f"{panel.cells}\nscenarios")
    assert f"{settings['limit_s']} s" in words and f"{settings['memory_gib']} GiB" in words


@pytest.mark.parametrize("task", TASKS)
def test_what_a_task_says_can_be_read_is_there(task: str) -> None:
    _, _, words = (FOLDER / task / "README.md").read_text("utf-8").partition("What the program can read")
    named = set(re.findall(r"`(?:[\w.]+\.)?(\w+)(?:\(request\))?`", words)) - {
        "request",
        "engine",
        "estimates",
        "policy",
    }
    records = (REQUEST, ENGINE, ENGINE_SNAPSHOT)
    there = {name for record in records for name in record.names or ()} | set(dir(policy))
    assert len(named) > 8 and named - there <= {"now_s", "exec_s", "constant_s"}


@pytest.fixture
def small_task(tmp_path: Path) -> Path:
    (tmp_path / "panel.yaml").write_text(SMALL, "utf-8")
    (tmp_path / "task.yaml").write_text("panel: panel.yaml\nleast: 0\n", "utf-8")
    for name in ("evaluator.py", "initial_program.py"):
        (tmp_path / name).write_text((FOLDER / "batch_scheduler" / name).read_text("utf-8"), "utf-8")
    return tmp_path


@pytest.mark.slow
def test_an_answer_has_the_form_that_frameworks_take(small_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = loaded(small_task / "evaluator.py").evaluate
    found = evaluate(str(small_task / "initial_program.py"))
    assert found["combined_score"] > 0 and found["refused"] == 0.0
    assert {"feedback", "scenarios"} == found["artifacts"].keys()
    assert all(isinstance(value, float) for name, value in found.items() if name != "artifacts")

    # As OpenEvolve's module is, so far as it matters.
    openevolve = types.ModuleType("openevolve.evaluation_result")
    openevolve.EvaluationResult = types.SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "openevolve.evaluation_result", openevolve)
    (small_task / "bad.py").write_text("import os", "utf-8")
    refused = evaluate(str(small_task / "bad.py"))
    assert refused.metrics == {"combined_score": 0.0, "refused": 1.0}
    assert "bad.py, line 1: imports os" in refused.artifacts["feedback"]


def test_a_task_that_says_what_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"has no task\.yaml; an evaluator's folder has one"):
        evolution.evaluator(tmp_path / "evaluator.py")
    (tmp_path / "task.yaml").write_text("panel: score\nlimits: 3\n", "utf-8")
    with pytest.raises(ExperimentError, match="a task has no limits; it has panel"):
        evolution.evaluator(tmp_path / "evaluator.py")
