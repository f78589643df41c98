"""What Ray costs beside threads: a comparison's runs in both, on as many cores.

    python -m experiments.benchmarks.runners --seeds 20

The cluster is started and its workers have run once before the clock starts; starting and stopping it is told apart.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

import typer

from experiments.benchmarks.machine import describe
from servegym.evaluation.compared import COMPARED
from servegym.evaluation.comparing import run_comparison
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.ray_running import RayRunner
from servegym.evaluation.running import Runner, ThreadRunner, cores


def seconds(comparison: Comparison, runner: Runner) -> float:
    """That all runs of a comparison take, from a ledger that is empty."""
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.perf_counter()
        run_comparison(comparison, Path(folder), runner=runner)
        return time.perf_counter() - begin_s


def measure(seeds: int, requests: int | None, repeats: int) -> dict[str, float | int | str]:
    """Medians over the repeats, in which threads and Ray take turns."""
    comparison, jobs = Comparison(COMPARED.replaced(requests=requests), seeds), cores()
    threads, runs = ThreadRunner(jobs), len(comparison.cells)
    seconds(Comparison(seeds=1), threads)
    begin_s = time.perf_counter()
    with RayRunner(jobs=jobs) as cluster:
        started_s = time.perf_counter() - begin_s
        begin_s = time.perf_counter()
        seconds(Comparison(seeds=1), cluster)
        first_s = time.perf_counter() - begin_s
        taken = [(seconds(comparison, threads), seconds(comparison, cluster)) for _ in range(repeats)]
        begin_s = time.perf_counter()
    stopped_s = time.perf_counter() - begin_s
    in_threads, on_ray = (statistics.median(times) for times in zip(*taken, strict=True))
    return {
        "machine": describe(), "cores_used": jobs, "runs": runs, "requests_of_a_run": comparison.requests_per_run,
        "threads_s": in_threads, "ray_s": on_ray, "ray_to_threads": on_ray / in_threads,
        "run_on_ray_s": on_ray / runs * jobs, "start_s": started_s, "first_comparison_s": first_s, "stop_s": stopped_s,
    }  # fmt: skip


def main(seeds: int = 20, requests: int | None = None, repeats: int = 3) -> None:
    print(json.dumps(measure(seeds, requests, repeats), indent=2))


if __name__ == "__main__":
    typer.run(main)
