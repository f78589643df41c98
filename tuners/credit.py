"""Credit: the gain of a request is the reward of the decision about it, whenever that gain comes.

A route pays off while its request is served, hundreds of decisions later, among the gains of all the others. Here the
reward of a decision is the gain of the request that it was about, as a share of the episode's ideal gain; paired, less
the same request's gain under the base; and, with a weight, whether the request attains its SLOs. What it cost requests
that came later is in their rewards.

    earned(r) = gain(r) / ideal gain + attainment x attained(r) / requests
    reward(t) = earned(r(t)) - earned by the base(r(t))              r(t): the request that decision t was about

It is known when the request has been served, so it is told at a rollout's end. A request that is still under way then
counts for nothing: rollouts should be as long as episodes.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.simulator.records.state import SimulationState
from servegym.simulator.runs.simulation import Simulation
from servegym.simulator.runs.slos import attained


@dataclasses.dataclass
class Episode:
    """That is going on. attainment: weight of requests that attain their SLOs. base: float64[requests], what they earn
    under the base; 0, where rewards are not paired. begin: the step of the rollout from which on its decisions have not
    been settled."""

    simulation: Simulation
    ideal_gain: float
    attainment: float = 0.0
    base: np.ndarray | float = 0.0
    begin: int = 0

    def earned(self, run: SimulationState) -> np.ndarray:
        """float64[requests]: what each has earned so far in a run of the same requests."""
        earned: np.ndarray = run.outcomes["gain"] / self.ideal_gain
        if self.attainment > 0:
            earned = earned + self.attainment * attained(run, self.simulation.scenario.workload) / len(earned)
        return earned


class Credits:
    """Of n environments side by side, for one rollout after the other."""

    def __init__(self, n: int):
        self._episodes: list[Episode | None] = [None] * n
        self._requests: list[list[int]] = []  # of each step, of each environment: which the decision is about
        self._settled: list[tuple[int, slice, np.ndarray]] = []  # environment, steps, rewards

    def begin(self, i: int, episode: Episode) -> None:
        """Begin a new episode of environment i; the one before is over."""
        if self._episodes[i] is not None:
            self._settle(i, is_over=True)
        self._episodes[i] = dataclasses.replace(episode, begin=len(self._requests))

    def decide(self) -> None:
        """A step begins: every environment decides."""
        self._requests.append(
            [one.simulation.arrays.status["deciding_request"].item() for one in self._episodes if one is not None]
        )

    def rewards(self) -> np.ndarray:
        """float32[steps, n]: of the decisions since the last call."""
        for i in range(len(self._episodes)):
            self._settle(i, is_over=False)
        found = np.zeros((len(self._requests), len(self._episodes)), np.float32)
        for i, steps, rewards in self._settled:
            found[steps, i] = rewards
        self._requests.clear()
        self._settled.clear()
        return found

    def _settle(self, i: int, is_over: bool) -> None:
        """Reward the decisions of an episode as far as their gains are known."""
        episode = self._episodes[i]
        assert episode is not None
        steps = slice(episode.begin, len(self._requests))
        requests = np.array([row[i] for row in self._requests[steps]], int)
        run = episode.simulation.arrays
        ended = np.isfinite(run.outcomes["finish_s"]) | np.isfinite(run.outcomes["refused_s"])
        known = is_over | ended[requests]
        rewards = np.where(known, (episode.earned(run) - episode.base)[requests], 0.0)
        self._settled.append((i, steps, rewards))
        episode.begin = 0  # of the next rollout
