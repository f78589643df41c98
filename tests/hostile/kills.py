"""Kills, in numbers: `python -m tests.hostile.kills [--number 50] [--seed 0]`.

Each command runs once to its end; then again and again, in a folder of its own, it is killed (SIGKILL) at a random
moment and given once more: it has to finish, with the result of the run that nobody killed, and with all it had kept.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.hostile.damage import POLICY

LIMIT_S = 900.0
SMALL = ["--requests", "200", "--jobs", "1"]


class Command(NamedTuple):
    """arguments; kept: how much of its work a folder holds; result: what a run has to say, whoever was killed."""

    arguments: list[str]
    kept: Callable[[Path], int]
    result: Callable[[Path, str], Any]
    again: list[str] = []  # noqa: RUF012  (arguments that go on with it, where they are others)


def lines(pattern: str) -> Callable[[Path], int]:
    return lambda folder: sum(path.read_bytes().count(b"\n") for path in folder.glob(pattern))


def files(pattern: str) -> Callable[[Path], int]:
    return lambda folder: len(list(folder.glob(pattern)))


def trials(folder: Path) -> int:
    """Number of complete trials in a study's journal."""
    journal = folder / "out/study.journal"
    return journal.read_bytes().count(b'"state":1,') if journal.exists() else 0


def printed(*dropped: str) -> Callable[[Path, str], Any]:
    """The JSON document on standard output, but for what depends on the time it took."""

    def of(folder: Path, stdout: str) -> Any:
        del folder
        return without(json.loads(stdout), {"took_s", "wall_s", "elapsed_s", "seconds", "created", "when", *dropped})

    return of


def without(document: Any, dropped: set[str]) -> Any:
    if isinstance(document, dict):
        kept = {key: value for key, value in document.items() if key.partition(" of ")[0] not in dropped}
        return {key: without(value, dropped) for key, value in kept.items()}
    return [without(one, dropped) for one in document] if isinstance(document, list) else document


def cells(folder: Path, stdout: str) -> Any:
    """The rows of a comparison, whatever the order in which they ended."""
    del stdout
    return sorted(row for path in folder.glob("out/**/cells.jsonl") for row in path.read_text().splitlines()[1:])


def has_policy(folder: Path, stdout: str) -> Any:
    del stdout
    return (folder / "out/policy.json").exists()


COMMANDS = {
    "score": Command(
        ["score", "good.py", "--json", "-"], files("none"),
        printed("check_cpu_s", "run_cpu_s", "round_us", "artifacts"),  # artifacts: figures in words, times among them
    ),
    "compare": Command(
        ["compare", "--scheduler", "edf", "--load", "1", "--seeds", "12", "--out", "out", *SMALL],
        lines("out/cells.jsonl"), cells,
    ),
    "evaluate": Command(
        ["evaluate", "--scheduler", "edf", "--scheduler", "sjf", "--trace", "azure-code", "--load", "1", "--seeds", "4",
         "--out", "out", *SMALL],
        lines("out/runs/*/cells.jsonl"), cells,
    ),
    "tune": Command(
        ["tune", "--scheduler", "slide-batching", "--tune", "gamma", "--trials", "12", "--out", "out", "--requests",
         "100", "--jobs", "1"],
        trials, lambda folder, stdout: (folder / "out/slide-batching/outcome.json").read_text(),
    ),
    "train": Command(
        ["train", "cma-engine-batching", "--steps", "3000", "--out", "out"], files("out/checkpoints/0*"), has_policy,
        again=["train", "--resume", "out"],
    ),
}  # fmt: skip


def command_line(arguments: list[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "servegym", *arguments]


def finish(arguments: list[str], folder: Path) -> tuple[str, str]:
    """(standard output, what is wrong) of a run to its end."""
    done = subprocess.run(command_line(arguments), cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    wrong = (
        "" if done.returncode == 0 and "Traceback" not in done.stderr else done.stderr[-400:] or str(done.returncode)
    )
    return done.stdout, wrong


def killed(command: Command, folder: Path, after_s: float) -> int:
    """Kill it then; how much of its work is kept."""
    process = subprocess.Popen(
        command_line(command.arguments), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return command.kept(folder)


def kill_and_go_on(name: str, whole: Any, took_s: float, draw: random.Random) -> str:
    """What is wrong after one kill; "" where nothing is."""
    command = COMMANDS[name]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "good.py").write_bytes(POLICY)
        kept = killed(command, folder, draw.uniform(0.0, 1.0) * took_s)
        goes_on = command.again if command.again and (folder / "out").exists() and kept else command.arguments
        stdout, wrong = finish(goes_on, folder)
        if wrong:
            return f"{name}, {kept} kept: {wrong}"
        if command.kept(folder) < kept:
            return f"{name}: {kept} were kept, and {command.kept(folder)} are there now"
        return "" if command.result(folder, stdout) == whole else f"{name}, {kept} kept: another result"


def whole_run(name: str) -> tuple[Any, float]:
    """(result, seconds) of a run that nobody kills. Raises AssertionError where it fails."""
    command = COMMANDS[name]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "good.py").write_bytes(POLICY)
        finish(command.arguments, folder)  # compiles
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "good.py").write_bytes(POLICY)
        began_s = time.monotonic()
        stdout, wrong = finish(command.arguments, folder)
        assert not wrong, f"{name}: {wrong}"
        return command.result(folder, stdout), time.monotonic() - began_s


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.kills", description=__doc__)
    parser.add_argument("--number", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", choices=COMMANDS, action="append")
    asked = parser.parse_args()
    draw, names, found = random.Random(asked.seed), asked.command or list(COMMANDS), []
    wholes = {}
    for name in names:
        wholes[name] = whole_run(name)
        print(f"{name}: {wholes[name][1]:.0f} s for the run that is not killed", flush=True)
    for turn in range(asked.number):
        name = names[turn % len(names)]
        found.append(kill_and_go_on(name, *wholes[name], draw))
        print(f"{turn + 1} of {asked.number}: {name}: {found[-1] or 'as without'}", flush=True)
    wrong = [one for one in found if one]
    print(f"{len(found)} kills, {len(wrong)} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
