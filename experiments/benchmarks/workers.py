"""Many runs at once: what a second worker adds to a comparison and to a trial of a tuning, in turns with one alone.

A comparison is `servegym compare` as it is without its process: requests made, saturation looked for, kernels compiled
(they are), runs, ledger. Its share that no worker takes part in is what it does before the first run. By the clock it
says something on an idle machine only; what two workers cost more than one, in processor time, on any.
"""

import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from experiments.benchmarks.figures import Figure
from experiments.benchmarks.scenarios import Sizes
from servegym.evaluation.compared import COMPARED
from servegym.evaluation.comparing import compile_kernels, run_comparison
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.running import ThreadRunner
from servegym.tuners.studies.instances import Job, run_job
from servegym.tuners.studies.reading import DEFAULT, load_tuning
from servegym.tuners.studies.search import Search

WORKERS, SPEEDUP = 2, 1.8


class Taken(NamedTuple):
    """What something took; before_cpu_s: of that, what came before any worker had something to do."""

    wall_s: float
    cpu_s: float
    before_cpu_s: float = 0.0


def measure(sizes: Sizes) -> list[Figure]:
    spec = COMPARED.with_overrides({"requests": sizes.requests})
    config = load_tuning(DEFAULT)
    search = Search(config, next(iter(config.studies)))
    jobs = [Job(search.config.panel, index, dict(search.policies)) for index in search.order]
    first = Comparison(spec)
    compile_kernels(first)
    search.instances.compile(search.policies)
    comparing = f"compare: {len(first.cells)} runs of {sizes.requests} requests, their requests made before"
    return [
        *beside_one("compare", comparing, lambda workers: compared(Comparison(spec), workers), sizes),
        *beside_one("trial", f"a trial: {len(jobs)} runs of the default tuning", lambda n: tried(jobs, n), sizes),
    ]


def compared(comparison: Comparison, workers: int) -> Taken:
    """A whole comparison, nothing of it kept from another."""
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    _ = comparison.identity  # with requests and saturation
    before_cpu_s = time.process_time() - cpu_s
    with tempfile.TemporaryDirectory() as folder:
        run_comparison(comparison, folder, runner=ThreadRunner(workers))
    return Taken(time.perf_counter() - begin_s, time.process_time() - cpu_s, before_cpu_s)


def tried(jobs: list[Job], workers: int) -> Taken:
    """The runs of a trial."""
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in ThreadRunner(workers).run(run_job, jobs):
        pass
    return Taken(time.perf_counter() - begin_s, time.process_time() - cpu_s)


def beside_one(name: str, what: str, work: Callable[[int], Taken], sizes: Sizes) -> list[Figure]:
    """The figures of a piece of work, done by one worker and by two in turns."""
    work(1)  # what is made once in a process
    pairs = [(work(1), work(WORKERS)) for _ in range(sizes.repetitions)]
    speedups = [one.wall_s / more.wall_s for one, more in pairs]
    serial = median(one.before_cpu_s / one.cpu_s for one, _ in pairs)
    costs = [more.cpu_s / one.cpu_s for one, more in pairs]
    return [
        Figure.of(f"{name}_speedup", speedups, f"{what}; {WORKERS} workers over one, by the clock", at_least=SPEEDUP),
        Figure(f"{name}_cpu_ratio", median(costs), "processor time of two workers over that of one"),
        Figure(
            f"{name}_possible_speedup",
            1 / (median(costs) * ((1 - serial) / WORKERS + serial)),
            f"were {WORKERS} cores idle: from that ratio and the {serial:.1%} before the first run",
        ),
    ]
