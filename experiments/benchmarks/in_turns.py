"""Two versions of this project beside each other: what `servegym bench` measures of both, in turns, as ratios.

    git worktree add ../before v0.1.0
    python -m experiments.benchmarks.in_turns ../before .
    python -m experiments.benchmarks.in_turns ../before . --processes 12 --only reset env.reset

A machine's speed drifts by more than a version changes it, within minutes. So a process of each version runs beside
one of the other, and they take turns of a tenth of a second or so: one pair (before, after), the next the other way
round. The ratio of a pair of processes is the median over its turns. Two processes of one version differ too, by up to
3 %, so fresh pairs follow. Reported is the mean over pairs of processes with its 95 % interval (Student's t).
Processor time counts, of all threads. Each tree compiles into a cache of its own, timed first, one after the other.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import track

from experiments.benchmarks.scenarios import RATE_PER_S, TRACE
from servegym.errors import ExperimentError
from servegym.evaluation.intervals import student_interval

Turns = list[tuple[float, float]]  # processor seconds before and after
CASES = Path(__file__).with_name("in_turns_cases.py")
# Whole processes, in turns as well: what they are called, their arguments, whether memory is asked for instead of time.
SIMULATE = ("-m", "servegym", "simulate", "--trace", TRACE, "--rate", str(RATE_PER_S), "--requests", "1000")
PROCESSES = {"servegym simulate": (*SIMULATE, "--json", "-"), "import servegym": ("-c", "import servegym")}
PROCESS_SHARE = 4  # a pair of whole processes for so many of the others
MEMORY_REQUESTS = "1000000"


class Tree:
    """One version: its environment, and the process that runs its cases.

    Raises ExperimentError if there is no such tree, or its cases cannot be run.
    """

    def __init__(self, root: Path, cache: str) -> None:
        source = root.resolve() / "src"
        if not (source / "servegym").is_dir():
            raise ExperimentError(f"{root} is no tree of servegym: there is no {source / 'servegym'}")
        self.root = root
        paths = os.pathsep.join([str(source), str(root.resolve())])
        self.environment = os.environ | {"PYTHONPATH": paths, "SERVEGYM_CACHE": cache}
        within = (source / "servegym" / "experiments").exists()  # a tree from before the studies left the package
        self.studies = "servegym.experiments" if within else "experiments"
        self.process: subprocess.Popen[str] | None = None

    def prepare(self, wanted: Sequence[str]) -> tuple[list[str], float]:
        """Begin a fresh process of cases: their names, and the processor seconds to compile and prepare them."""
        self.close()
        command = [sys.executable, "-P", str(CASES), *wanted]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, env=self.environment, text=True, stdin=pipe, stdout=pipe, stderr=nowhere
        )
        answer = self.answer()
        return answer["names"], answer["prepared_s"]

    def case(self, name: str) -> float:
        """Processor seconds of one turn of a case."""
        assert self.process is not None and self.process.stdin is not None
        print(name, file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> Any:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ExperimentError(f"{self.root} cannot run {CASES.name}: try PYTHONPATH={self.root}/src python {CASES}")
        return json.loads(line)

    def whole(self, *arguments: str) -> tuple[float, str]:
        """Processor seconds of a process from its start to its end, and what it printed."""
        before = children_s()
        done = subprocess.run([sys.executable, "-P", *arguments], env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise ExperimentError(f"{self.root} failed: {done.stderr.strip().splitlines()[-1]}")
        return children_s() - before, done.stdout

    def peak_bytes(self, requests: str) -> float:
        """The most memory of a process that serves so many requests."""
        return float(self.whole("-m", f"{self.studies}.benchmarks.memory", requests)[1])

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compare(before: Path, after: Path, processes: int, pairs: int, wanted: Sequence[str]) -> list[str]:
    """The lines of a table: of each case the milliseconds of both, the ratio and its interval.

    processes: pairs of processes. pairs: of turns in each. wanted: names of cases; none: all of them, whole processes
    too. Raises ExperimentError.
    """
    with ExitStack() as stack:
        caches = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)]
        trees = [Tree(root, cache) for root, cache in zip((before, after), caches, strict=True)]
        for tree in trees:
            stack.callback(tree.close)
        once = {} if wanted else {"first simulate ever, s": [tree.whole(*SIMULATE)[0] for tree in trees]}
        (names, first_s), (_, second_s) = [tree.prepare(wanted) for tree in trees]
        once["all cases compiled, s"] = [first_s, second_s]
        taken: dict[str, list[Turns]] = {name: [] for name in (*names, *({} if wanted else PROCESSES))}
        for process in track(range(processes), "pairs of processes", console=Console(stderr=True)):
            for tree in trees if process % 2 == 0 else trees[::-1]:
                tree.prepare(wanted)
            for name, found in taken.items():
                turns = max(1, pairs // PROCESS_SHARE) if name in PROCESSES else pairs
                found.append([pair_of(trees, name, process + k) for k in range(turns)])
        if not wanted:
            once["1,000,000 requests, MB"] = [tree.peak_bytes(MEMORY_REQUESTS) / 1e6 for tree in trees]
    lines = [f"{'case':<26}{'before':>10}{'after':>10}{'ratio':>8}  95 % interval, pairs of processes"]
    lines += [f"{name:<26}{old:>10.1f}{new:>10.1f}{new / old:>8.2f}" for name, (old, new) in once.items()]
    return [*lines, *(case_line(name, found) for name, found in taken.items())]


def pair_of(trees: list[Tree], name: str, k: int) -> tuple[float, float]:
    """Seconds of a case before and after; every other pair begins with the latter."""
    turns = {}
    for i in (0, 1) if k % 2 == 0 else (1, 0):
        turns[i] = trees[i].whole(*PROCESSES[name])[0] if name in PROCESSES else trees[i].case(name)
    return turns[0], turns[1]


def case_line(name: str, found: list[Turns]) -> str:
    """Format a line of the table. found: the turns of each pair of processes."""
    before, after = (1e3 * median(turn[k] for turns in found for turn in turns) for k in (0, 1))
    ratio = student_interval([median(new / old for old, new in turns) for turns in found])
    times = f"{name + ', ms':<26}{before:>10.2f}{after:>10.2f}"
    return f"{times}{ratio.mean:>8.3f}  {ratio.bounds('.3f')}, {len(found)}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of one version")
    parser.add_argument("after", type=Path, help="of the other")
    parser.add_argument("--processes", type=int, default=8, help="pairs of processes (8)")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of turns of each case in a pair of processes (8)")
    parser.add_argument("--only", nargs="+", metavar="CASE", default=(), help='"reset" "env.reset"; by default all')
    given = parser.parse_args(arguments)
    try:
        print("\n".join(compare(given.before, given.after, given.processes, given.pairs, given.only)))
    except ExperimentError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
