"""One engine under a load it can serve: the speed of the event loop, and of going back to the start."""

import time
from statistics import median

from experiments.benchmarks.figures import Figure
from experiments.benchmarks.scenarios import Sizes, scenario, workload
from servegym.simulator.runs.simulation import Simulation


def measure(sizes: Sizes) -> list[Figure]:
    simulation = Simulation(scenario(workload(sizes.requests)))
    simulation.run()  # compiles, or reads what was compiled
    runs = [loop_s(simulation) for _ in range(sizes.repetitions)]
    resets = [reset_s(simulation) for _ in range(10 * sizes.repetitions)]
    return [
        Figure(
            "simulate_requests_per_s",
            sizes.requests / median(runs),
            f"{sizes.requests:,} requests at 6/s, sarathi-fcfs, event loop only",
            at_least=100_000,
        ),
        Figure("reset_ms", 1e3 * median(resets), "a fresh episode on a prepared scenario", at_most=2),
    ]


def loop_s(simulation: Simulation) -> float:
    """Seconds in the event loop of one run from start to end."""
    simulation.reset()
    return simulation.run().wall_s


def reset_s(simulation: Simulation) -> float:
    begin = time.perf_counter()
    simulation.reset()
    return time.perf_counter() - begin
