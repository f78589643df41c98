"""Write the tasks in the forms in which other programs take them: folders for SkyDiscover, Harbor and OpenEnv.

    python -m experiments.evolution.forms skydiscover build/skydiscover
    python -m experiments.evolution.forms harbor build/harbor --task router
    python -m experiments.evolution.forms openenv build/openenv

What is written needs this clone no longer: containers install the wheel of servegym that is put beside their
container file (`--wheel`; it is built from the clone unless it is given).
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from servegym.errors import ExperimentError, ServegymError
from servegym.evaluation.scoring.evolution import settings_of
from servegym.evaluation.scoring.scoring import CHECK_S, READY_S

FOLDER = Path(__file__).parent
CLONE = FOLDER.parents[1]
TASKS = tuple(sorted(path.parent.name for path in FOLDER.glob("*/task.yaml")))
SEED, WORDS, NOT_READ = "initial_program.py", "README.md", ("__init__.py", "__pycache__")
# Above every limit of the score itself: SkyDiscover gives a program that it stopped by its own limit the mean of
# {"error": 0, "timeout": 1}, which is above many that run.
TIMEOUT_S = int(CHECK_S + 2 * READY_S)


def skydiscover(task: str, folder: Path) -> None:
    """Write a folder as those of SkyDiscover's benchmarks (ADRS): evaluator, seed program, configuration."""
    shutil.copytree(FOLDER / task, folder, ignore=shutil.ignore_patterns(*NOT_READ))
    config = {
        "max_iterations": 100,
        "llm": {"models": [{"name": "gpt-5", "weight": 1.0}]},
        "search": {"type": "adaevolve"},
        "prompt": {"system_message": (FOLDER / task / WORDS).read_text("utf-8")},
        "evaluator": {"timeout": TIMEOUT_S, "max_retries": 0, "cascade_evaluation": False, "parallel_evaluations": 1},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")


def harbor(task: str, folder: Path, wheel: Path) -> None:
    """Write a Harbor task: instruction, container, verifier, and the seed program as its solution."""
    environment, tests, solution = (folder / name for name in ("environment", "tests", "solution"))
    for part in (environment, tests, solution):
        part.mkdir(parents=True)
    for part in (environment, solution):
        shutil.copy(FOLDER / task / SEED, part / "program.py")
    for name, part in (("Dockerfile", environment), ("test.sh", tests), ("verify.py", tests), ("solve.sh", solution)):
        shutil.copy(FOLDER / "harbor" / name, part)
    shutil.copy(FOLDER / task / "task.yaml", tests)
    shutil.copy(CLONE / "constraints.txt", environment)
    shutil.copy(wheel, environment)
    if (FOLDER / task / "panel.yaml").is_file():
        for part in (environment, tests):
            shutil.copy(FOLDER / task / "panel.yaml", part)
    template = (FOLDER / "harbor" / "task.toml").read_text("utf-8")
    (folder / "task.toml").write_text(template.format(task=task, timeout_s=TIMEOUT_S), "utf-8")
    words = (FOLDER / "harbor" / "instruction.md").read_text("utf-8")
    command = scoring_command(settings_of(FOLDER / task))
    about = (FOLDER / task / WORDS).read_text("utf-8")
    (folder / "instruction.md").write_text(f"{about}\n{words.format(command=command)}", "utf-8")


def scoring_command(settings: dict[str, Any]) -> str:
    """The `servegym score` that gives a program the score of a task."""
    panel = Path(settings["panel"]).name
    words = ["servegym score program.py", f"--panel {panel}"]
    words += [f"--baseline {name}" for name in settings.get("baselines", ())]
    for option, name in (("least", "least"), ("limit", "limit_s"), ("memory", "memory_gib")):
        words += [f"--{option} {settings[name]}"] if name in settings else []
    return " ".join(words)


def openenv(tasks: Sequence[str], folder: Path, wheel: Path) -> None:
    """Write an OpenEnv package: client, models, server with its container file, and the tasks."""
    shutil.copytree(FOLDER / "openenv", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for task in tasks:
        shutil.copytree(FOLDER / task, folder / "tasks" / task, ignore=shutil.ignore_patterns(*NOT_READ))
    shutil.copy(wheel, folder)


def built_wheel(folder: Path) -> Path:
    """A wheel of the clone. Raises ExperimentError with pip's last line."""
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(CLONE)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExperimentError(f"no wheel of servegym: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")
    return next(folder.glob("servegym-*.whl"))


def write(form: str, out: Path, tasks: Sequence[str], wheel: Path | None) -> None:
    """Write tasks in a form below `out`, one folder each (openenv: one for all)."""
    for task in tasks:
        if task not in TASKS:
            raise ExperimentError(f"there is no task {task}; there are {', '.join(TASKS)}")
    if wheel is not None and not wheel.is_file():
        raise ExperimentError(f"there is no wheel {wheel}; `pip wheel --no-deps --wheel-dir dist .` makes one")
    written = [out / ("servegym_search" if form == "openenv" else task) for task in tasks]
    for folder in written:
        if folder.exists():
            raise ExperimentError(f"{folder} is there already; give another folder, or remove it")
    if form == "skydiscover":
        for task, folder in zip(tasks, written, strict=True):
            skydiscover(task, folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        wheel = wheel or built_wheel(Path(temporary))
        if form == "openenv":
            openenv(tasks, written[0], wheel)
        else:
            for task, folder in zip(tasks, written, strict=True):
                harbor(task, folder, wheel)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=("skydiscover", "harbor", "openenv"))
    parser.add_argument("out", type=Path, help="folder to write below")
    parser.add_argument("--task", action="append", help=f"one of {', '.join(TASKS)} (default: all); repeatable")
    parser.add_argument("--wheel", type=Path, help="of servegym, for containers (default: built from the clone)")
    given = parser.parse_args()
    try:
        write(given.form, given.out, given.task or TASKS, given.wheel)
    except ServegymError as error:
        print(f"forms: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
