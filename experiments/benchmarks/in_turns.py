"""Two versions of this project beside each other: the event loop of both in turns, as ratios.

    git worktree add ../before v0.1.0
    python -m servegym.experiments.benchmarks.in_turns ../before .

A machine's speed drifts by more than a version changes it. So the versions take turns, each turn a process of its own
that runs every case several times; of a turn the least processor time of the thread counts, and what is reported is the
median of the ratios of neighbouring turns, and their range. Each tree compiles into a cache of its own, timed first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from servegym.errors import ExperimentError

CASES = ("sarathi-fcfs", "slide-batching", "vllm-v1")
# Runs in both trees: only of names that have been there since the benchmarks began.
TURN = """
import json, sys, time
begin = time.process_time()
from servegym.experiments.benchmarks.scenarios import scenario, workload
from servegym.simulator.simulation import Simulation
repetitions, names = int(sys.argv[1]), sys.argv[2:]
served = workload(4000)
simulations = {name: Simulation(scenario(served, name)) for name in names}
for simulation in simulations.values():
    simulation.run()
found = {"compile": time.process_time() - begin}
for name, simulation in simulations.items():
    times = []
    for _ in range(repetitions):
        simulation.reset()
        start = time.thread_time()
        simulation.run()
        times.append(time.thread_time() - start)
    found[name] = min(times)
print(json.dumps(found))
"""


def turn(tree: Path, cache: str, repetitions: int) -> dict[str, float]:
    """Processor seconds of a tree's cases, and of all that comes before the first of them is timed ("compile").

    Raises ExperimentError if the tree cannot run them.
    """
    source = tree.resolve() / "src"
    if not (source / "servegym").is_dir():
        raise ExperimentError(f"{tree} is no tree of servegym: there is no {source / 'servegym'}")
    environment = os.environ | {"PYTHONPATH": str(source), "SERVEGYM_CACHE": cache}
    done = subprocess.run(
        [sys.executable, "-c", TURN, str(repetitions), *CASES], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise ExperimentError(f"{tree} failed: {done.stderr.strip().splitlines()[-1]}")
    return {name: float(value) for name, value in json.loads(done.stdout).items()}


def compare(before: Path, after: Path, turns: int, repetitions: int) -> list[str]:
    """The lines of a table: of each case the milliseconds of both, and their ratio."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        trees = ((before, one), (after, other))
        first = [turn(tree, cache, 1)["compile"] for tree, cache in trees]
        pairs = [[turn(tree, cache, repetitions) for tree, cache in trees] for _ in range(turns)]
    lines = [f"{'case':<16}{'before':>10}{'after':>10}{'ratio':>8}  range over turns"]
    lines.append(f"{'first compile, s':<16}{first[0]:>10.1f}{first[1]:>10.1f}{first[1] / first[0]:>8.2f}")
    for name in CASES:
        ratios = [new[name] / old[name] for old, new in pairs]
        least = [1e3 * min(pair[k][name] for pair in pairs) for k in (0, 1)]
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        lines.append(f"{name + ', ms':<16}{least[0]:>10.2f}{least[1]:>10.2f}{median(ratios):>8.3f}  {spread}")
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of one version")
    parser.add_argument("after", type=Path, help="of the other")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=20, help="runs of each case in a turn")
    given = parser.parse_args(arguments)
    try:
        print("\n".join(compare(given.before, given.after, given.turns, given.repetitions)))
    except ExperimentError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
