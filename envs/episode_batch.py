"""A batch of episodes, stepped in one compiled call: the core of single environments and of vectors."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

import numpy as np

from servegym.envs.episodes import EPISODE, SHOWN
from servegym.envs.interface import Interface
from servegym.envs.rings import UPWARDS, ring_of
from servegym.envs.stepping import Handlers, step_episodes, within_bounds
from servegym.envs.work_sharing import Part, WorkSharing, worker_threads
from servegym.errors import ActionError, EnvError
from servegym.simulator.compilation.failures import Failure, call
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.statuses import DECISION, DONE, PAUSED, YIELDED
from servegym.simulator.runs.simulation import Simulation

SETTINGS = ("every", "shaping", "discount")  # fields of EPISODE that belong to the environment, not to the episode


@dataclasses.dataclass(frozen=True, eq=False)
class EpisodeState:
    """A copy of an episode at one of its decisions, from which any number of environments can continue.

    kind: class of the interface. simulation, episode: copies. observation, mask, base: what the agent saw there.
    """

    kind: type[Interface]
    simulation: Simulation
    episode: np.ndarray
    observation: np.ndarray
    mask: np.ndarray
    base: np.ndarray


class EpisodeBatch:
    """n episodes of one interface.

    observations: float32[n, size]. masks: int8[n, choices]. bases: float64[n, numbers], the base policy's actions.
    actions: float64[n, numbers], to be written before `step`. shown: float64[len(SHOWN), n], the fields SHOWN of all
    episodes after the last step, with a view of each (now_s, gain, ...); status and ideal_gain are such views too.
    episodes: EPISODE[n]. simulations: one for each place; None before its first episode.
    repeat, shaping, discount: as in the environment. threads: the most that share the work; None: one a core.
    sharing: divides the episodes among threads.
    """

    def __init__(
        self,
        interface: Interface,
        n: int,
        repeat: int = 1,
        shaping: float = 0.0,
        discount: float = 1.0,
        threads: int | None = None,
    ):
        self.interface = interface
        self.observations = np.zeros((n, interface.layout.size), "f4")
        self.masks = np.zeros((n, interface.choices), "i1")
        self.bases = np.zeros((n, interface.action_numbers))
        self.actions = np.zeros((n, interface.action_numbers))
        self._bounds, self._within_bounds = interface.action_bounds, within_bounds.entry
        self.episodes = np.zeros(n, EPISODE)
        self.episodes["stop_at"] = interface.stop_at
        self.episodes["every"], self.episodes["shaping"], self.episodes["discount"] = repeat, shaping, discount
        self.episodes["status"] = DONE
        # Views of the fields that each step reads: an attribute of a record costs a microsecond.
        self.status, self.ideal_gain = self.episodes["status"], self.episodes["ideal_gain"]
        self.shown = self.episodes.view("f8").reshape(n, -1)[:, -len(SHOWN) :].T
        self.now_s, self.gain, self.tdg_ratio, self.gain_reward, self.shaping_reward, self.reward = self.shown
        self.simulations: list[Simulation | None] = [None] * n
        self._handlers = Handlers(interface.observe, interface.act)
        self._step = step_episodes.entry
        self.sharing = WorkSharing(n, threads)

    def start(self, i: int, scenario: Scenario) -> None:
        """Begin a new episode in place i and run it to its first decision. Raises EnvError for what is no scenario."""
        if not isinstance(scenario, Scenario):
            raise EnvError(f"the source of scenarios gave a {type(scenario).__name__}; it should give a Scenario")
        simulation = Simulation(self.interface.prepare(scenario), watched=True)
        self.simulations[i] = simulation
        self._handlers.provide(simulation.loop)
        episode = self.episodes[i]
        self.interface.begin(simulation, episode)
        episode.until_s = scenario.until_s
        # A later turn of a session, whose time of arrival is unknown (NaN), counts as arriving.
        arriving = ~(simulation.arrays.outcomes["ready_s"] > scenario.until_s)
        episode.ideal_gain = scenario.gain.ideal(scenario.workload)[arriving].sum() or 1.0
        episode.rewarded = episode.potential = 0.0
        episode.left = 1
        self._park(i)
        self.episodes["stepping"] = 0
        self._run(i)
        self.episodes["stepping"] = 1
        # The gain before the first decision is part of the first reward.
        episode.gain_reward = episode.shaping_reward = episode.reward = episode.rewarded = 0.0
        episode.steps = 0

    def step(self) -> int:
        """Apply `actions` and run every episode to its next decision or its end.

        Returns the number of episodes that stopped elsewhere than at a decision; 0: none is over. Raises ActionError,
        before anything is applied, for an action outside the action space.
        """
        if not self._within_bounds(self._bounds, self.actions):
            wrong = self.actions[~self.interface.contains(self.actions)][0]
            raise ActionError(f"action {wrong.tolist()}: it should be in {self.interface.action_space}")
        parts = self.sharing.begin()
        others = [worker_threads(os.getpid()).submit(self._step_timed, part) for part in parts[1:]]
        stopped, took_s = self._step_timed(parts[0])
        for other in others:
            more, more_s = other.result()
            stopped, took_s = stopped + more, took_s + more_s
        if self.sharing.timed:
            self.sharing.record(took_s)
        if stopped:
            self._continue_stopped()
        return stopped

    def info_of(self, i: int) -> dict[str, Any]:
        """The entries of `info` that every environment has, for the episode in place i."""
        now_s, gain, tdg_ratio, gain_reward, shaping_reward, _ = self.shown[:, i].tolist()
        terms = {"gain": gain_reward, "shaping": shaping_reward}
        return {"now_s": now_s, "gain": gain, "tdg_ratio": tdg_ratio, "reward_terms": terms}

    def clone_state(self, i: int) -> EpisodeState:
        """Copy the episode in place i. Raises EnvError before the first reset."""
        simulation = self.simulations[i]
        if simulation is None:
            raise EnvError("there is no episode before the first reset")
        seen = (array[i].copy() for array in (self.observations, self.masks, self.bases))
        return EpisodeState(type(self.interface), simulation.copy(), self.episodes[i : i + 1].copy(), *seen)

    def restore_state(self, i: int, state: EpisodeState) -> None:
        """Continue from a state in place i. Raises EnvError for a state of another class of environments, or none."""
        if not isinstance(state, EpisodeState):
            raise EnvError(f"a state of type {type(state).__name__}; it should be one that clone_state returned")
        seen = ((self.observations, state.observation), (self.masks, state.mask), (self.bases, state.base))
        if state.kind is not type(self.interface) or any(array[i].shape != saved.shape for array, saved in seen):
            raise EnvError(
                f"a state of {state.kind.__name__} with {len(state.observation)} numbers in an observation; it should "
                f"be one of {type(self.interface).__name__} with {self.observations.shape[1]}"
            )
        self.simulations[i] = simulation = state.simulation.copy()
        self._handlers.provide(simulation.loop)
        own = {name: self.episodes[name][i] for name in SETTINGS}
        self.episodes[i] = state.episode[0]
        for name, value in {**own, "stepping": 1}.items():
            self.episodes[name][i] = value
        for array, saved in seen:
            array[i] = saved
        self._park(i)

    def is_over(self, i: int) -> bool:
        """Whether the episode in place i has ended. One without decisions still has one step, for its reward."""
        return self.status.item(i) in (DONE, PAUSED) and self.episodes["steps"].item(i) > 0

    def _step_timed(self, part: Part) -> tuple[int, float]:
        """Step a thread's part. Returns what `step_episodes` returns, and processor seconds if this step is timed.

        Wall-clock time would call for more threads on a busy machine, exactly when it has no core for them.
        """
        if not self.sharing.timed:
            return self._step_part(*part), 0.0
        begin_s = time.thread_time()
        stopped = self._step_part(*part)
        return stopped, time.thread_time() - begin_s

    def _step_part(self, ring: np.ndarray, downwards: bool = False) -> int:
        """Step the episodes of a ring from one of its ends; returns how many stopped elsewhere than at a decision."""

        def note(failure: Failure) -> None:
            simulation = self.simulations[ring[UPWARDS + downwards]]
            assert simulation is not None
            simulation.note_failure(failure)

        return call(
            note, self._step, self._handlers.address, self.episodes, ring, downwards, self.actions, self.observations,
            self.masks, self.bases,
        )  # fmt: skip

    def _run(self, i: int) -> None:
        self.episodes["stepping"][i] = 1
        self._step_part(ring_of(i, i + 1))
        self._continue_stopped()

    def _continue_stopped(self) -> None:
        """Step episodes that stopped before a decision, after enlarging arrays that were too short, until all are at a
        decision or over. Raises the errors of simulations."""
        stepping = self.episodes["stepping"].copy()
        while again := [i for i in self._stopped() if not self._end_or_enlarge(i)]:
            self.episodes["stepping"] = 0
            self.episodes["stepping"][again] = 1
            self._step_part(ring_of(0, len(self.episodes)))
        self.episodes["stepping"] = stepping

    def _stopped(self) -> list[int]:
        """Places of the episodes being stepped that are not at a decision."""
        return np.flatnonzero((self.status != DECISION) & (self.episodes["stepping"] == 1)).tolist()

    def _end_or_enlarge(self, i: int) -> bool:
        """Whether the episode in place i, which is not at a decision, is over; if not, it is prepared to continue."""
        status, simulation = int(self.status[i]), self.simulations[i]
        assert simulation is not None
        if status in (DONE, PAUSED):
            simulation.ended = True
            if status == DONE:
                self.observations[i] = 0.0
                self.masks[i] = 1
                self.bases[i] = 0.0
            return True
        if status != YIELDED:
            simulation.make_room(status)
            self._park(i)
        return False

    def _park(self, i: int) -> None:
        simulation = self.simulations[i]
        assert simulation is not None
        self.episodes["address"][i] = simulation.parked()
