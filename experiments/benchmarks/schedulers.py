"""What an iteration costs under each registered scheduler, beside sarathi-fcfs, with equally many requests queued.

All serve the same overload, Poisson arrivals at twice saturation. For each a pilot run, stopped at every decision,
tells when the queue first has the wanted length, and when a fixed number of iterations has ended after that. Timed runs
then stop at these two times, and only the event loop in between counts: its seconds of processor time over the
iterations. Scheduler and sarathi-fcfs take turns, and each repetition gives one ratio, so that what else the machine
does touches both alike; that of sarathi-fcfs beside itself, which is 1 but for this, tells how well it works.

What a batch holds is the scheduler's doing, and each request in it costs time, so the mean batch is reported too.
"""

import dataclasses
import time
from statistics import median
from typing import NamedTuple

import numpy as np

from experiments.benchmarks.figures import Figure
from experiments.benchmarks.overload import LOAD, REQUESTS_PER_QUEUED, run_until, saturation_per_s
from experiments.benchmarks.scenarios import Sizes, scenario, workload
from servegym.baselines.registry import scheduler_names
from servegym.errors import ExperimentError
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

REFERENCE = "sarathi-fcfs"
MOST_COST_RATIO = 3.0  # an iteration may cost so many times what it costs under sarathi-fcfs
SLO = "proserve:clients=26"  # several clients, so that fair shares are not one queue


class Stretch(NamedTuple):
    """The iterations that are timed: from begin_s to end_s, with these means."""

    begin_s: float
    end_s: float
    mean_queued: float
    mean_batch: float


class Timed:
    """A scheduler's simulation, and the iterations of it that are timed."""

    def __init__(self, case: Scenario, policy: str, sizes: Sizes):
        self.simulation = Simulation(dataclasses.replace(case, scheduler=scenario(case.workload, policy).scheduler))
        self.stretch = find_stretch(self.simulation, sizes.scheduler_queue_length, sizes.scheduler_iterations)

    def iteration_s(self) -> float:
        """Seconds of processor time in the event loop per iteration."""
        self.simulation.reset()
        _, before = run_until(self.simulation, self.stretch.begin_s)
        begin_s = time.thread_time()
        _, after = run_until(self.simulation, self.stretch.end_s)
        return (time.thread_time() - begin_s) / (after - before)


def measure(sizes: Sizes) -> list[Figure]:
    case = overloaded(sizes)
    reference = Timed(case, REFERENCE, sizes)
    alone_us = 1e6 * median(reference.iteration_s() for _ in range(sizes.repetitions))
    figures = [Figure("sarathi_fcfs_iteration_us", alone_us, meaning("compared with", reference.stretch))]
    for name in scheduler_names():
        timed = Timed(case, name, sizes)
        pairs = [(timed.iteration_s(), reference.iteration_s()) for _ in range(sizes.repetitions)]
        ratios = [own_s / reference_s for own_s, reference_s in pairs]
        figures.append(
            Figure.of(
                f"{name.replace('-', '_')}_iteration_ratio",
                ratios,
                meaning(f"{1e6 * median(own_s for own_s, _ in pairs):.0f} us an iteration", timed.stretch),
                at_most=MOST_COST_RATIO,
            )
        )
    return figures


def meaning(text: str, stretch: Stretch) -> str:
    return f"{text}; {stretch.mean_batch:.0f} requests a batch, {stretch.mean_queued:,.0f} queued"


def overloaded(sizes: Sizes) -> Scenario:
    """Twice what can be served."""
    rate_per_s = LOAD * saturation_per_s(sizes.requests)
    return scenario(workload(REQUESTS_PER_QUEUED * sizes.scheduler_queue_length, rate_per_s, SLO))


def find_stretch(simulation: Simulation, queued: int, iterations: int) -> Stretch:
    """The `iterations` that follow the first decision with so many queued.

    Raises ExperimentError if there is none while requests still arrive.
    """
    simulation.reset()
    status, engine = simulation.arrays.status[0], simulation.arrays.engines[0]
    last_arrival_s = float(simulation.scenario.workload.table["arrival_s"][-1])
    lengths, batches = np.zeros(iterations), np.zeros(iterations)
    begin_s, done = 0.0, -1
    while simulation.step() and status.now_s <= last_arrival_s:
        if done < 0:
            if engine.queue_length < queued:
                continue
            begin_s = float(status.now_s)
        else:
            lengths[done], batches[done] = engine.queue_length, engine.last_batch_length
        done += 1
        if done == iterations:
            return Stretch(begin_s, float(status.now_s), float(lengths.mean()), float(batches.mean()))
    raise ExperimentError(
        f"{simulation.scenario.scheduler.label}: {max(done, 0)} of {iterations} iterations with {queued} requests "
        "queued while requests arrived; fewer are to be queued"
    )
