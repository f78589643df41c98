"""The event loops side by side: what a run would pay for what it has not, and what compiling that takes."""

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

from experiments.benchmarks.budgets import RESET, process_s
from experiments.benchmarks.figures import Figure
from experiments.benchmarks.scenarios import RATE_PER_S, Sizes, scenario, workload
from servegym.baselines.registry import router
from servegym.envs.registration import NAMES
from servegym.errors import ExperimentError
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.loops import WHOLE
from servegym.simulator.runs.simulation import Simulation

ENGINES = 4
COMPILE = "import time; from servegym.simulator.runs import loops; loops.{}.entry; print(time.process_time())"


def measure(sizes: Sizes) -> list[Figure]:
    alone = scenario(workload(sizes.requests))
    four = dataclasses.replace(
        scenario(workload(2 * sizes.requests, ENGINES * RATE_PER_S)),
        deployment=deployment_of(ServingSpec().replaced(device=alone.deployment.name, engines=ENGINES)),
        router=router("min-tokens"),
    )
    plain, fleet = ratio(alone, sizes), ratio(four, sizes)
    return [
        Figure("plain_loop_ratio", plain, "the whole loop's time over the plain one's, one engine", at_least=1),
        Figure("fleet_loop_ratio", fleet, f"over that for fleets, {ENGINES} engines", at_least=1),
        Figure(
            "plain_compile_ratio",
            compile_s("WHOLE") / compile_s("PLAIN"),
            "processor time to compile the whole loop, over that of the plain one",
            at_least=1.5,
        ),
        Figure(
            "environments_compile_s",
            environments_s(),
            "processor time to the first `reset` of each environment, in turn, in a cache that is empty at first",
            at_most=180,
        ),
    ]


def environments_s() -> float:
    """Processor time of a process for each environment. Raises ExperimentError."""
    with tempfile.TemporaryDirectory() as empty:
        return sum(process_s(("-c", RESET.format(name)), SERVEGYM_CACHE=empty) for name in NAMES)


def ratio(served: Scenario, sizes: Sizes) -> float:
    """The whole loop's time over that of the loop that the scenario gets: median of pairs, in turns."""
    own, whole = Simulation(served), Simulation(served)
    whole.loop = WHOLE
    for simulation in (own, whole):
        loop_thread_s(simulation)  # compiles, or reads what was compiled
    return median(loop_thread_s(whole) / loop_thread_s(own) for _ in range(4 * sizes.repetitions))


def loop_thread_s(simulation: Simulation) -> float:
    """Processor time of one run from start to end."""
    simulation.reset()
    begin = time.thread_time()
    simulation.run()
    return time.thread_time() - begin


def compile_s(loop: str) -> float:
    """Processor time of a process that compiles a loop, with an empty cache. Raises ExperimentError."""
    with tempfile.TemporaryDirectory() as empty:
        command = [sys.executable, "-P", "-c", COMPILE.format(loop)]
        environment = os.environ | {"SERVEGYM_CACHE": empty}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ExperimentError(f"compiling {loop} failed ({done.returncode}): {done.stderr}")
    return float(done.stdout)
