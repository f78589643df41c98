"""The memory of a long run, in a process of its own: `python -m experiments.benchmarks.memory REQUESTS`."""

import subprocess
import sys

from experiments.benchmarks.figures import Figure
from experiments.benchmarks.peak_memory import peak_bytes
from experiments.benchmarks.scenarios import Sizes, scenario, workload
from servegym.errors import ExperimentError
from servegym.simulator.runs.simulation import Simulation


def measure(sizes: Sizes) -> list[Figure]:
    command = [sys.executable, "-P", "-m", __name__, str(sizes.memory_requests)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ExperimentError(f"the process whose memory is measured ended with status {done.returncode}")
    return [
        Figure(
            "million_requests_rss_mb",
            int(done.stdout) / 1e6,
            f"peak of a process that makes, serves and sums up {sizes.memory_requests:,} requests",
            at_most=1500,
        )
    ]


def peak_of_run_bytes(requests: int) -> int:
    """Peak resident memory of this process after a run to the end and its summary."""
    result = Simulation(scenario(workload(requests))).run()
    finished = result.summary["finished"]
    if finished != requests:
        raise ExperimentError(f"{finished} of {requests} requests finished")
    return peak_bytes()


if __name__ == "__main__":
    print(peak_of_run_bytes(int(sys.argv[1])))
