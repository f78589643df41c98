"""Rewards of a training: those of the environment less the base policy's, and the objective's terms at the end.

The arrivals of an episode change its rewards far more than decisions do. The base policy is run on the same requests,
and its gain up to the same time is subtracted: a control variate that depends on the requests alone (Mao and others,
"Variance Reduction for Reinforcement Learning in Input-Driven Environments", 2019). The rewards of an episode sum to
its TDG ratio less the base's.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.envs.sb3 import Sb3VecEnv
from servegym.envs.vector import ServingVectorEnv
from servegym.simulator.records.state import SimulationState
from servegym.simulator.runs.simulation import Simulation
from servegym.simulator.runs.slos import attained
from servegym.tuners.decision_head import DecisionHead
from servegym.tuners.objective import GAIN_ALONE, Objective


@dataclasses.dataclass
class Episode:
    """A running episode. attainment: weight of requests that attain their SLOs. base: float64[requests], the rewards of
    requests under the base; 0 if rewards are not paired. begin: first step of the rollout whose decision has no reward
    yet."""

    simulation: Simulation
    ideal_gain: float
    attainment: float = 0.0
    base: np.ndarray | float = 0.0
    begin: int = 0

    def earned(self, run: SimulationState) -> np.ndarray:
        """float64[requests]: the rewards of requests so far, in a run of the same requests."""
        earned: np.ndarray = run.outcomes["gain"] / self.ideal_gain
        if self.attainment > 0:
            earned = earned + self.attainment * attained(run, self.simulation.scenario.workload) / len(earned)
        return earned


class Credits:
    """Assigns rewards of requests to decisions, in n environments, rollout by rollout."""

    def __init__(self, n: int):
        self._episodes: list[Episode | None] = [None] * n
        self._requests: list[list[int]] = []  # [step][environment]: the request that the decision is about
        self._settled: list[tuple[int, slice, np.ndarray]] = []  # environment, steps, rewards

    def begin(self, i: int, episode: Episode) -> None:
        """Begin a new episode of environment i, after the end of the last one."""
        if self._episodes[i] is not None:
            self._settle(i, is_over=True)
        self._episodes[i] = dataclasses.replace(episode, begin=len(self._requests))

    def decide(self) -> None:
        """Record the requests that the decisions of a step are about."""
        self._requests.append(
            [one.simulation.arrays.status["deciding_request"].item() for one in self._episodes if one is not None]
        )

    def rewards(self) -> np.ndarray:
        """Return the rewards of the decisions since the last call, float32[steps, n]."""
        for i in range(len(self._episodes)):
            self._settle(i, is_over=False)
        found = np.zeros((len(self._requests), len(self._episodes)), np.float32)
        for i, steps, rewards in self._settled:
            found[steps, i] = rewards
        self._requests.clear()
        self._settled.clear()
        return found

    def _settle(self, i: int, is_over: bool) -> None:
        """Reward the decisions of an episode with the gains known so far."""
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


POINTS = 1024  # points of a base run's gain over time, evenly spaced


class TrainingVecEnv(Sb3VecEnv):
    """`Sb3VecEnv` with the rewards of an objective. head: has the base policy that is run for comparison."""

    def __init__(
        self, venv: ServingVectorEnv, head: DecisionHead, objective: Objective = GAIN_ALONE, reward_scale: float = 1.0
    ):
        super().__init__(venv, reward_scale)
        self.head, self.objective = head, objective
        self._gains, self._ends_s = np.zeros((self.num_envs, POINTS)), np.ones(self.num_envs)
        self._had = np.zeros(self.num_envs)  # of the base, so far
        self.credits = Credits(self.num_envs) if objective.by_request else None

    def reset(self) -> np.ndarray:
        observations = super().reset()
        self._begin(range(self.num_envs))
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        super().step_async(actions)
        if self.credits is not None:
            self.credits.decide()

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict]]:
        observations, rewards, dones, infos = super().step_wait()
        ended = np.flatnonzero(dones).tolist()
        if self.objective.by_request:
            rewards = np.zeros_like(rewards)  # `late_rewards`
        elif self.objective.paired:
            has = self._at(self.venv.episode_batch.now_s)
            has[dones] = self._gains[dones, -1]
            rewards = rewards - (self.reward_scale * (has - self._had)).astype(np.float32)
            self._had = has
        for i in ended:
            summary = infos[i]["summary"]
            if self.objective.by_request:  # which of them attain their SLOs is in `late_rewards`
                rewards[i] -= self.reward_scale * self.objective.cost_of(summary)
            else:
                rewards[i] += self.reward_scale * self.objective.beside_gain(summary)
        if ended:
            self._begin(ended)
        return observations, rewards, dones, infos

    def late_rewards(self) -> np.ndarray | float:
        return 0.0 if self.credits is None else self.reward_scale * self.credits.rewards()

    def _begin(self, episodes: list[int] | range) -> None:
        """Run the base on the requests of episodes that have just begun."""
        if self.credits is not None:
            return self._begin_credits(self.credits, episodes)
        if not self.objective.paired:
            return
        batch = self.venv.episode_batch
        for i in episodes:
            simulation = batch.simulations[i]
            assert simulation is not None
            times_s, gains = gain_over_time(Simulation(self.head.with_policy(simulation.scenario)))
            self._ends_s[i] = max(times_s[-1], 1e-9)
            self._gains[i] = np.interp(np.linspace(0.0, self._ends_s[i], POINTS), times_s, gains)
            self._gains[i] /= batch.ideal_gain[i]
        self._had[list(episodes)] = 0.0

    def _begin_credits(self, credits: Credits, episodes: list[int] | range) -> None:
        batch = self.venv.episode_batch
        for i in episodes:
            simulation = batch.simulations[i]
            assert simulation is not None
            episode = Episode(simulation, batch.ideal_gain.item(i), self.objective.attainment)
            if self.objective.paired:
                base = Simulation(self.head.with_policy(simulation.scenario)).run()
                episode.base = episode.earned(base.arrays)
            credits.begin(i, episode)

    def _at(self, now_s: np.ndarray) -> np.ndarray:
        """float64[n]: the base's gain up to these times, as shares of the ideal gain."""
        place = np.clip(now_s / self._ends_s, 0.0, 1.0) * (POINTS - 1)
        first = np.minimum(place.astype(int), POINTS - 2)
        rows = np.arange(self.num_envs)
        below, above = self._gains[rows, first], self._gains[rows, first + 1]
        return below + (place - first) * (above - below)


def gain_over_time(simulation: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays float64[batches + 1]: time, s, and gain before each batch of a run and at its end."""
    status, seen = simulation.arrays.status, []
    while simulation.step():
        seen.append((status["now_s"].item(), status["gain"].item()))
    status = simulation.arrays.status
    seen.append((status["now_s"].item(), status["gain"].item()))
    times_s, gains = np.array(seen).T
    return times_s, gains
