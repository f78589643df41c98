"""What creeps: what a process takes from its start to its first result, the wheel's size, lines of code.

Processor time of whole processes, as a ratio to a process that imports numpy and gymnasium, in turns: that says the
same on a machine that is slow or busy.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from experiments.benchmarks.figures import Figure
from experiments.benchmarks.in_turns import SIMULATE, children_s
from experiments.benchmarks.scenarios import Sizes
from servegym.envs.registration import NAMES
from servegym.errors import ExperimentError

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "wheels"
STUDIES = ("tests", "experiments")
RESET = "import gymnasium; gymnasium.make('servegym:{}').reset(seed=0)"
BESIDE = ("-c", "import numpy, gymnasium")
# name: arguments of Python, the bound of the ratio, what it is
STARTS: dict[str, tuple[Sequence[str], float, str]] = {
    "import_ratio": (("-c", "import servegym"), 1.2, "`import servegym`"),
    "simulate_start_ratio": (SIMULATE, 8, "`servegym simulate` of 1,000 requests, once compiled"),
    "env_start_ratio": (("-c", RESET.format(NAMES[0])), 7, f"`gym.make` and `reset` of {NAMES[0]}, once compiled"),
}
MOST_LINES = {"package_lines": 78_000, "study_lines": 100_000}
MOST_WHEEL_MB = 40
MOST_FIRST_RESET_S = 90


def measure(sizes: Sizes) -> list[Figure]:
    return [*starts(sizes.process_repetitions), *sizes_of_wheels(WHEELS), *lines(ROOT)]


def measure_all(sizes: Sizes) -> list[Figure]:
    """These, and what each environment takes from an empty cache to its first reset: minutes."""
    return [*measure(sizes), *(first_reset(name) for name in NAMES)]


def starts(repetitions: int) -> list[Figure]:
    figures = []
    for name, (arguments, most, meaning) in STARTS.items():
        process_s(arguments)  # compiles, if nothing has before
        ratios = [process_s(arguments) / process_s(BESIDE) for _ in range(repetitions)]
        meaning = f"processor time of {meaning}, over that of `import numpy, gymnasium`"
        figures.append(Figure(name, median(ratios), meaning, at_most=most))
    return figures


def first_reset(environment: str) -> Figure:
    with tempfile.TemporaryDirectory() as empty:
        seconds = process_s(("-c", RESET.format(environment)), SERVEGYM_CACHE=empty)
    name = f"{environment.replace('-', '_').lower()}_first_reset_s"
    return Figure(name, seconds, "processor time of the first `reset` ever", at_most=MOST_FIRST_RESET_S)


def process_s(arguments: Sequence[str], **environment: str) -> float:
    """Processor seconds of a Python process from its start to its end. Raises ExperimentError if it fails.

    It may keep bytecode, as processes do by default: without, it compiles some 290 modules of this package.
    """
    before = children_s()
    command = [sys.executable, "-P", *arguments]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, env=variables | environment, capture_output=True, text=True)
    if done.returncode:
        raise ExperimentError(f"python {' '.join(arguments)} failed ({done.returncode}): {done.stderr.strip()}")
    return children_s() - before


def sizes_of_wheels(folder: Path) -> list[Figure]:
    """Of those that `make wheel` and `make wheels` have left; none where they have not run."""
    sizes = [path.stat().st_size / 1e6 for path in folder.glob("servegym-*.whl")]
    return [Figure("wheel_mb", max(sizes), "the largest wheel in build/wheels", at_most=MOST_WHEEL_MB)] if sizes else []


def lines(root: Path) -> list[Figure]:
    """Lines of Python of the package, and of its tests and studies."""
    package = [folder.resolve() for folder in (root / "src" / "servegym").iterdir() if folder.is_dir()]
    counted = {
        "package_lines": (lines_in([*package, root / "src" / "servegym"]), "Python that is installed"),
        "study_lines": (lines_in([root / name for name in STUDIES]), "Python of tests and studies"),
    }
    return [
        Figure(name, count, f"lines of {meaning}", at_most=MOST_LINES[name])
        for name, (count, meaning) in counted.items()
    ]


def lines_in(folders: Sequence[Path]) -> int:
    """Lines of the Python files below these folders, each file once."""
    files = {path.resolve() for folder in folders for path in folder.rglob("*.py")}
    return sum(len(path.read_bytes().splitlines()) for path in files)
