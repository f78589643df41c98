"""An engine that cannot keep up: what an iteration costs when thousands of requests are queued.

Poisson arrivals at twice the rate the engine can serve make the queue grow through every length of interest. A
pilot run tells when that is: a length's window goes from the first time the queue is 10 % below it to the first
time it is 10 % above. Timed runs then stop at the ends of the windows, and only the event loop in between counts.
Queued requests are all that have arrived and not finished, the running ones among them, as in a scheduler's queue.
"""

import dataclasses
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from experiments.benchmarks.figures import Figure
from experiments.benchmarks.scenarios import Sizes, scenario, workload
from servegym.errors import ExperimentError
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation

LOAD = 2.0  # of saturation; at 1.4, with the short requests served first, 30,000 arrivals leave 3,100 in the queue
REQUESTS_PER_QUEUED = 4  # arrivals for each by which the queue grows: 3.4 at this load, and some to spare
NEAR = 0.1  # half the width of a window, as a share of its queue length


class Window(NamedTuple):
    """When about `queued` requests are queued, and how many really are, averaged over the time."""

    queued: int
    begin_s: float
    end_s: float
    mean_queued: float


def measure(sizes: Sizes) -> list[Figure]:
    lengths = sorted({sizes.queue_length, *sizes.other_queue_lengths})
    case = overloaded(saturation_per_s(sizes.requests), lengths[-1])
    windows = find_windows(Simulation(case).run(), lengths)
    passes = [iteration_s(Simulation(case), windows) for _ in range(sizes.repetitions)]
    costs_s = [median(costs) for costs in zip(*passes, strict=True)]
    stated = lengths.index(sizes.queue_length)
    per_queued_ns = [1e9 * cost_s / window.mean_queued for cost_s, window in zip(costs_s, windows, strict=True)]
    growth = max(after / before for before, after in pairwise(per_queued_ns))
    return [
        Figure(
            "overload_iterations_per_s",
            1 / costs_s[stated],
            f"slide-batching with about {sizes.queue_length:,} requests queued, event loop only",
            at_least=25_000,
        ),
        Figure("overload_mean_queued_requests", windows[stated].mean_queued, "queued in that window, mean over time"),
        *(
            Figure(f"overload_ns_per_queued_{length}", ns, f"an iteration's cost per request, {length:,} queued")
            for length, ns in zip(lengths, per_queued_ns, strict=True)
        ),
        Figure(
            "overload_cost_growth_ratio",
            growth,
            "cost per queued request, one length to the next, greatest; 1: as the queue",
            at_most=1,
        ),
    ]


def saturation_per_s(requests: int) -> float:
    """Requests per second that sarathi-fcfs serves when all are there from the start."""
    result = Simulation(scenario(workload(requests, rate_per_s=None))).run()
    return result.summary["throughput_requests_per_s"]


def overloaded(saturation_rate_per_s: float, longest_queue: int) -> Scenario:
    """Twice what can be served, until the queue has passed the longest length."""
    arrivals = int(REQUESTS_PER_QUEUED * (1 + NEAR) * longest_queue)
    served = workload(arrivals, LOAD * saturation_rate_per_s)
    return dataclasses.replace(scenario(served, "slide-batching"), until_s=float(served.table["arrival_s"][-1]))


def find_windows(pilot: Result, lengths: list[int]) -> list[Window]:
    """When the queue has each length, in order of time. Raises ExperimentError if it never gets that long."""
    requests = pilot.requests
    arrivals_s = requests["arrival_s"].to_numpy()
    ends_s = np.sort(requests["finish_s"].dropna().to_numpy())
    times_s = np.sort(np.concatenate([arrivals_s, ends_s]))
    queued = np.searchsorted(arrivals_s, times_s, "right") - np.searchsorted(ends_s, times_s, "right")
    windows = []
    for length in lengths:
        if queued.max() < (1 + NEAR) * length:
            raise ExperimentError(f"at most {queued.max()} requests were queued; {length} are to be measured")
        begin, end = (int(np.argmax(queued >= share * length)) for share in (1 - NEAR, 1 + NEAR))
        mean = np.average(queued[begin:end], weights=np.diff(times_s[begin : end + 1]))
        windows.append(Window(length, float(times_s[begin]), float(times_s[end]), float(mean)))
    return windows


def iteration_s(simulation: Simulation, windows: list[Window]) -> list[float]:
    """Seconds in the event loop per iteration, in each window of one run."""
    costs_s = []
    for window in windows:
        before_s, before = run_until(simulation, window.begin_s)
        after_s, after = run_until(simulation, window.end_s)
        costs_s.append((after_s - before_s) / (after - before))
    return costs_s


def run_until(simulation: Simulation, time_s: float) -> tuple[float, int]:
    """Run on to a simulated time; seconds in the event loop and iterations since the start."""
    simulation.scenario = dataclasses.replace(simulation.scenario, until_s=time_s)
    result = simulation.run()
    return result.wall_s, int(result.arrays.engines["iterations"].sum())
