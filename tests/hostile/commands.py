"""Bad commands, in numbers: `python -m tests.hostile.commands [--number 2000] [--seed 0] [--real 50]`.

Each command line is one that works, with damage of some kind. It has to end with status 2 and one line that begins
with "servegym: ", or with 0 where there is nothing wrong with it (`--accepted` lists these), or to say what it is at;
without a traceback, a Python path or a file that has changed. Each runs in a fork of this process, which has imported
what commands need, in a folder of its own; a sample (`--real`) in processes of their own.
"""

import argparse
import collections
import contextlib
import importlib
import os
import pkgutil
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from typer.main import get_command

import servegym
from servegym.baselines import registry
from servegym.cli.app import app, run
from tests.hostile.damage import FILES, WORDS, fill, state

CPU_S = 20  # by then a command that works on has said so
LIMIT_S = 120.0  # where it only waits
TAKES_LONG = {"bench", "leaderboard", "score", "train", "validate"}  # for them: what is wrong shows at once
LITTLE_CPU_S, LITTLE_S = 5, 30.0
MAY_SAY_1 = {"reproduce", "leaderboard", "validate", "score", "bench"}  # what is measured does not hold
FEW = ["--requests", "5"]
ONE = ["--scheduler", "edf"]
ROUTER = ["--router", "min-load", "--device", "h100-llama3-8b"]
WORKS: dict[str, list[str]] = {
    "simulate": FEW, "compare": [*FEW, *ONE, "--seeds", "1", "--load", "1"],
    "goodput": [*ONE, "--duration", "5", "--seeds", "1"], "plan": ["--rate", "2", "--duration", "5", "--seeds", "1"],
    "tune": ["--scheduler", "slide-batching", "--tune", "gamma", "--trials", "1", *FEW],
    "train": ["cma-engine-batching", "--minutes", "0.01"], "dataset": ["--episodes", "1", *FEW],
    "evaluate": [*FEW, *ONE, "--seeds", "1", "--trace", "azure-code", "--load", "1"], "score": ["good.py"],
    "headroom": [*FEW, *ONE, "--budget", "1"], "export": ["good.json", "--target", "vllm", "--out", "out"],
    "reproduce": ["--list"], "devices": [], "validate": [], "calibrate": ["good.csv"],
    "recommend": ["azure-conv", "--rate", "9", "--requests", "40", *ONE, "--router", "min-load"],
    "replay": ["--endpoint", "http://127.0.0.1:1", *FEW],
    "proxy": [*ROUTER, "--backend", "http://127.0.0.1:1", "--port", "PORT"],
    "endpoint-picker": [*ROUTER, "--backend", "http://127.0.0.1:1", "--port", "PORT", "--metrics-port", "0"],
    "shadow": ["good.jsonl", *ROUTER],
    "switch": ["http://127.0.0.1:1", "--router", "min-load"], "bench": ["--quick"],
    "leaderboard": ["verify", "nobody"], "trace inspect": ["good.csv"], "trace convert": ["good.csv", "out.csv"],
    "trace generate": ["azure-conv", "out.csv"], "profile from-config": ["object.json", "--gpu", "h100"],
}  # fmt: skip


class Trial(NamedTuple):
    arguments: list[str]
    closed: str = ""  # what is wrong with standard output: "closed" or "full"


class Ended(NamedTuple):
    status: int | None  # None: still running
    stdout: str
    stderr: str


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    group = group or get_command(app)
    if not getattr(group, "commands", None):
        yield " ".join(path), group
        return
    for name, command in group.commands.items():
        yield from commands(command, (*path, name))


def without(arguments: list[str], option: str) -> list[str]:
    """The arguments of a command that works, but for this option and its value."""
    if option not in arguments:
        return arguments
    at = arguments.index(option)
    return arguments[:at] + arguments[at + 2 :]


def damaged(name: str, command: Any, draw: random.Random) -> Trial:
    """A command line with some damage."""
    works = WORKS.get(name, [])
    options = [p for p in command.params if p.opts and p.opts[0].startswith("--") and p.name != "help"]
    values = [p for p in options if not p.is_flag]
    kind = draw.choice(
        ["value"] * 12 + ["two"] * 4 + ["file"] * 12 + ["argument"] * 4 + ["flags", "slip", "none", "twice", "stdout"]
    )
    value = draw.choice(FILES if kind in ("file", "argument") else WORDS)
    if kind in ("value", "file", "two") and values:
        for option in draw.sample(values, min(len(values), 2 if kind == "two" else 1)):
            works = [*without(works, option.opts[0]), option.opts[0], value]
            value = draw.choice(WORDS)
    elif kind == "argument":
        works = [value, *works[1:]] if works and not works[0].startswith("--") else [*works, value]
    elif kind == "flags":
        works = [*works, *(p.opts[0] for p in draw.sample(options, min(3, len(options))) if p.is_flag)]
    elif kind == "slip" and options:
        works = [*works, draw.choice(options).opts[0][:-1] + draw.choice(["", "x", "-"])]
    elif kind == "none" and values:
        works = [*works, draw.choice(values).opts[0]]
    elif kind == "twice" and values:
        option = draw.choice(values).opts[0]
        works = [*works, option, draw.choice(WORDS), option, draw.choice(WORDS)]
    closed = draw.choice(["closed", "full"]) if kind == "stdout" else ""
    return Trial([*name.split(), *works], closed)


def trials(number: int, seed: int) -> Iterator[Trial]:
    """Commands in turns, each with damage of a random kind."""
    draw, known = random.Random(seed), list(commands())
    for turn in range(number):
        yield damaged(*known[turn % len(known)], draw)


def forked(trial: Trial, folder: Path) -> Ended:
    """The command in a fork of this process, which gets only so much time."""
    cpu_s, limit_s = (LITTLE_CPU_S, LITTLE_S) if trial.arguments[0] in TAKES_LONG else (CPU_S, LIMIT_S)
    out, err = folder.parent / "stdout", folder.parent / "stderr"
    process = os.fork()
    if process == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open("/dev/full" if trial.closed == "full" else out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        if trial.closed == "closed":
            os.close(1)
        sys.argv = ["servegym", *trial.arguments]
        end_as_python_does()
    return waited(process, out, err, limit_s)


def end_as_python_does() -> None:
    status = 120  # Python's own, where standard output cannot be written at the end
    try:
        run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        status = status or 120
    sys.stderr.flush()
    os._exit(status)


def waited(process: int, out: Path, err: Path, limit_s: float) -> Ended:
    end_s, status = time.monotonic() + limit_s, None
    while time.monotonic() < end_s:
        done, code = os.waitpid(process, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
            break
        time.sleep(0.01)
    if status is None:
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
    read = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
    return Ended(status, *read)


def in_a_process(trial: Trial, folder: Path) -> Ended:
    command = [sys.executable, "-P", "-m", "servegym", *trial.arguments]
    with open("/dev/full" if trial.closed else folder.parent / "stdout", "w+") as out:
        try:
            done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE,
                                  text=True, timeout=LIMIT_S)  # fmt: skip
        except subprocess.TimeoutExpired as error:
            return Ended(None, "", (error.stderr or b"").decode(errors="replace"))
    return Ended(done.returncode, "", done.stderr)


def wrong(trial: Trial, ended: Ended) -> str:
    """What is wrong with how a command ended; "" where nothing is."""
    lines = ended.stderr.strip().splitlines()
    said = [line for line in lines if line.startswith("servegym: ")]
    if "Traceback" in ended.stderr or "Exception ignored" in ended.stderr:
        return f"a traceback: {lines[-1][:200]}"
    if any(".py:" in line and not line.startswith("servegym: ") for line in lines):
        return f"a warning with a Python path: {next(line for line in lines if '.py:' in line)[:200]}"
    if ended.status in (None, -signal.SIGXCPU):
        long = trial.arguments[0] in TAKES_LONG
        return "" if long or ended.stderr or ended.stdout else "nothing is said, and it does not end"
    if ended.status == 0 or (ended.status == 1 and trial.arguments[0] in MAY_SAY_1):
        return ""
    if ended.status != 2:
        return f"status {ended.status}: {ended.stderr[-200:]}"
    if not lines or not lines[-1].startswith("servegym: ") or len(lines[-1]) < 20:
        return f"status 2 without a line that says why: {ended.stderr[-200:]!r}"
    ends = [line for line in said if not line.startswith("servegym: compil")]
    return "" if len(ends) == 1 else f"{len(ends)} lines: {ended.stderr[-300:]!r}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.commands", description=__doc__)
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", type=int, default=50, help="of these, how many in processes of their own")
    parser.add_argument("--accepted", action="store_true", help="list commands that ended with status 0")
    asked = parser.parse_args()
    import_all()
    counts: collections.Counter[str] = collections.Counter()
    every = max(1, asked.number // max(asked.real, 1))
    for place, trial in enumerate(trials(asked.number, asked.seed)):
        said, status = tried(trial, own_process=bool(asked.real) and place % every == 0)
        counts[f"status {status}" if not said else "WRONG"] += 1
        print(f"\r{place + 1} of {asked.number}", end="", file=sys.stderr, flush=True)
        if said or (asked.accepted and status == 0):
            print(
                f"{place}: servegym {' '.join(map(repr, trial.arguments))[:300]} {trial.closed}\n    {said}", flush=True
            )
    print(file=sys.stderr)
    for what, count in counts.most_common():
        print(f"{count:7,} {what}")
    return int("WRONG" in counts)


def import_all() -> None:
    """What commands import when they run, imported once before the forks; torch takes too long."""
    registry.load()
    wanted = tuple(
        f"servegym.{name}." for name in ("cli", "evaluation", "scenarios", "traces", "latency_models", "export")
    )
    for module in pkgutil.walk_packages(servegym.__path__, "servegym.", onerror=lambda name: None):
        if module.name.startswith(wanted) and not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


def tried(trial: Trial, own_process: bool = False) -> tuple[str, int | None]:
    """What is wrong with how a command ended, and its status."""
    with tempfile.TemporaryDirectory() as above, socket.create_server(("127.0.0.1", 0)) as taken:
        folder = Path(above) / "given"
        folder.mkdir()
        fill(folder)
        port = str(taken.getsockname()[1])
        trial = trial._replace(arguments=[port if word == "PORT" else word for word in trial.arguments])
        before = state(folder)
        ended = in_a_process(trial, folder) if own_process else forked(trial, folder)
        said = wrong(trial, ended)
        if not said and state(folder) != before and ended.status != 0:
            said = "it failed, and a file that it was given has changed"
        return said, ended.status


if __name__ == "__main__":
    sys.exit(main())
