"""Vectors of environments beside `simulate`, in turns: the same scenarios, whole, and the same decisions.

Agents play the base's action, so that every episode is the run that `simulate` makes of its scenario. Stepping has all
in it that a learner waits for: observations, infos, summaries of what has ended, new episodes. Of `simulate` only the
event loop counts. Each of the 64 environments begins another of the scenarios, and they are stepped until as many
decisions have been taken as all scenarios have; where one ends early its place goes on with the next.

Two figures: steps a second by the clock, on as many threads as the vector uses by itself, beside `simulate` on as many
at once (two that run beside each other are slower than one, each); and the share by processor time, which says the same
on a busy machine, but for the time that threads wait.
"""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from experiments.benchmarks.figures import Figure
from servegym.envs.vector import ServingVectorEnv
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.statuses import AT_ROUTES
from servegym.simulator.runs.simulation import Simulation

ENVIRONMENTS, SEED = 64, 0
SHARE = 0.8  # of what simulate decides that is to be left


class Turn(NamedTuple):
    """One turn: what was decided, and what it took."""

    decisions: int
    wall_s: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        return self.decisions / self.wall_s

    def share_of(self, other: Turn) -> float:
        """Decisions in a second of processor time, over those of another."""
        return self.decisions / self.cpu_s / (other.decisions / other.cpu_s)


class InTurn:
    """A source that hands out scenarios one after the other, again and again."""

    def __init__(self, scenarios: list[Scenario]) -> None:
        self._left = itertools.cycle(scenarios)

    def __call__(self, rng: np.random.Generator) -> Scenario:
        return next(self._left)


class Beside:
    """A kind of environment, and simulations of the same scenarios, ready to take turns."""

    def __init__(self, name: str, spec: ServingSpec, environments: int = ENVIRONMENTS, **arguments: Any) -> None:
        scenarios = [spec(np.random.default_rng(SEED + i)) for i in range(environments)]
        self.env = vector(name, InTurn(scenarios), environments, **arguments)
        interface = self.env.interface
        self.by_request = bool(interface.stop_at & AT_ROUTES)
        self.simulations = [Simulation(interface.prepare(scenario)) for scenario in scenarios]
        self.threads = 1  # the most that a step has had
        self.decisions = self.simulate().decisions

    def simulate(self) -> Turn:
        """All scenarios, each thread some, one after the other."""
        for simulation in self.simulations:
            simulation.reset()
            simulation.parked()
        with ThreadPoolExecutor(self.threads) as pool:
            begin_s, cpu_s = time.perf_counter(), time.process_time()
            done = [pool.submit(run_all, self.simulations[first :: self.threads]) for first in range(self.threads)]
            for one in done:
                one.result()
            wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
        arrays = [simulation.arrays for simulation in self.simulations]
        decided = [len(one.requests) if self.by_request else int(one.engines["iterations"].sum()) for one in arrays]
        return Turn(sum(decided), wall_s, cpu_s)

    def step(self) -> Turn:
        """From the start of each scenario, as many decisions as they have."""
        _, info = self.env.reset()
        calls = -(-self.decisions // self.env.num_envs)
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(calls):
            *_, info = self.env.step(info["base_action"])
            self.threads = max(self.threads, self.env.episode_batch.sharing.threads)
        return Turn(calls * self.env.num_envs, time.perf_counter() - begin_s, time.process_time() - cpu_s)

    def queued(self) -> int:
        """Requests at all engines now."""
        simulations = [one for one in self.env.episode_batch.simulations if one is not None]
        return sum(int(one.arrays.engines["queue_length"].sum()) for one in simulations)


def run_all(simulations: list[Simulation]) -> None:
    for simulation in simulations:
        simulation.run()


def vector(name: str, source: Any, environments: int = ENVIRONMENTS, **arguments: Any) -> ServingVectorEnv:
    made = gym.make_vec(
        f"servegym:{name}", num_envs=environments, vectorization_mode="vector_entry_point", scenario=source, **arguments
    )
    env = made.unwrapped
    assert isinstance(env, ServingVectorEnv)
    env.reset(seed=SEED)
    return env


def beside_simulate(names: tuple[str, str], kind: str, beside: Beside, repetitions: int, share: float) -> list[Figure]:
    """The figures of a kind of environment. names: of steps a second, and of the share. share: what it should be."""
    beside.step()  # compiles
    engines = sum(len(one.arrays.engines) for one in beside.simulations)
    what = f"{kind}, n = {beside.env.num_envs}, {beside.queued() / engines:.0f} queued an engine at the end"
    turns = [(beside.step(), beside.simulate()) for _ in range(repetitions)]
    threads = beside.threads
    speeds, shares = [step.per_s for step, _ in turns], [step.share_of(whole) for step, whole in turns]
    simulated = median(whole.per_s for _, whole in turns)
    return [
        Figure.of(
            names[0],
            speeds,
            f"{what}; bound: {share:g} x {simulated:,.0f}, simulate's on {threads} thread{'s' * (threads > 1)}",
            at_least=share * simulated,
        ),
        Figure.of(names[1], shares, "the same by processor time, over simulate's", at_least=share),
    ]
