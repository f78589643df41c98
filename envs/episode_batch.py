"""Episodes side by side, stepped in one compiled call: what one environment and a vector of them have in common."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

import numpy as np

from servegym.envs.episodes import EPISODE, SHOWN
from servegym.envs.interface import Interface
from servegym.envs.rings import UPWARDS, ring_of
from servegym.envs.stepping import Handlers, all_in, step_episodes
from servegym.envs.work_sharing import Part, Sharing, helpers
from servegym.errors import ActionError, EnvError
from servegym.simulator.compilation.failures import Failure, call
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.statuses import DECISION, DONE, PAUSED, YIELDED
from servegym.simulator.runs.simulation import Simulation

SETTINGS = ("every", "shaping", "discount")  # of EPISODE: of the environment, whatever goes on there


@dataclasses.dataclass(frozen=True, eq=False)
class EpisodeState:
    """An episode at one of its decisions, to go on from as often as one likes; nothing that goes on changes it.

    kind: of the interface. simulation, episode: copies. observation, mask, base: what the agent has seen there.
    """

    kind: type[Interface]
    simulation: Simulation
    episode: np.ndarray
    observation: np.ndarray
    mask: np.ndarray
    base: np.ndarray


class EpisodeBatch:
    """n episodes of one kind.

    observations: float32[n, size]. masks: int8[n, choices]. bases: float64[n, numbers], what the base policy would do.
    actions: float64[n, numbers], to be written before `step`. shown: float64[SHOWN, n], what a step says of each;
    status, ideal_gain, now_s and the others of SHOWN: fields of all episodes. All are of the last step.
    episodes: EPISODE[n]. simulations: of each place; None before its first episode.
    repeat, shaping, discount: as in the environment. threads: at most so many share the work; None: one a core.
    sharing: which thread does what of it.
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
        self._space, self._all_in = interface.action_bounds, all_in.entry
        self.episodes = np.zeros(n, EPISODE)
        self.episodes["stop_at"] = interface.stop_at
        self.episodes["every"], self.episodes["shaping"], self.episodes["discount"] = repeat, shaping, discount
        self.episodes["status"] = DONE
        # Views of what is read at each step: attributes of a record cost a microsecond each.
        self.status, self.ideal_gain = self.episodes["status"], self.episodes["ideal_gain"]
        self.shown = self.episodes.view("f8").reshape(n, -1)[:, -len(SHOWN) :].T
        self.now_s, self.gain, self.tdg_ratio, self.gain_reward, self.shaping_reward, self.reward = self.shown
        self.simulations: list[Simulation | None] = [None] * n
        self._handlers = Handlers(interface.observe, interface.act)
        self._step = step_episodes.entry
        self.sharing = Sharing(n, threads)

    def start(self, i: int, scenario: Scenario) -> None:
        """Begin a new episode in place i, and go on to its first decision."""
        simulation = Simulation(self.interface.prepare(scenario), watched=True)
        self.simulations[i] = simulation
        self._handlers.provide(simulation.loop)
        episode = self.episodes[i]
        self.interface.begin(simulation, episode)
        episode.until_s = scenario.until_s
        # What follows another (NaN: the time is unknown) may arrive.
        arriving = ~(simulation.arrays.outcomes["ready_s"] > scenario.until_s)
        episode.ideal_gain = scenario.gain.ideal(scenario.workload)[arriving].sum() or 1.0
        episode.rewarded = episode.potential = 0.0
        episode.left = 1
        self._park(i)
        self.episodes["stepping"] = 0
        self._run(i)
        self.episodes["stepping"] = 1
        # What is gained before the first decision is in the first reward.
        episode.gain_reward = episode.shaping_reward = episode.reward = episode.rewarded = 0.0
        episode.steps = 0

    def step(self) -> int:
        """Put `actions` into effect and go on, in every episode, to the next decision or its end.

        Returns how many stopped elsewhere than at a decision: 0 when none is over. Raises ActionError for an action
        that is not in the space; nothing has happened then.
        """
        if not self._all_in(self._space, self.actions):
            wrong = self.actions[~self.interface.contains(self.actions)][0]
            raise ActionError(f"action {wrong.tolist()}: it should be in {self.interface.action_space}")
        parts = self.sharing.begin()
        others = [helpers(os.getpid()).submit(self._do, part) for part in parts[1:]]
        stopped, took_s = self._do(parts[0])
        for other in others:
            more, more_s = other.result()
            stopped, took_s = stopped + more, took_s + more_s
        if self.sharing.timed:
            self.sharing.took(took_s)
        if stopped:
            self._see_to_stopped()
        return stopped

    def said(self, i: int) -> dict[str, Any]:
        """What `info` says of the episode in place i in every environment."""
        now_s, gain, tdg_ratio, gain_reward, shaping_reward, _ = self.shown[:, i].tolist()
        terms = {"gain": gain_reward, "shaping": shaping_reward}
        return {"now_s": now_s, "gain": gain, "tdg_ratio": tdg_ratio, "reward_terms": terms}

    def clone_state(self, i: int) -> EpisodeState:
        """The episode in place i as it stands. Raises EnvError before its first."""
        simulation = self.simulations[i]
        if simulation is None:
            raise EnvError("there is no episode before the first reset")
        seen = (array[i].copy() for array in (self.observations, self.masks, self.bases))
        return EpisodeState(type(self.interface), simulation.copy(), self.episodes[i : i + 1].copy(), *seen)

    def restore_state(self, i: int, state: EpisodeState) -> None:
        """Go on in place i from there. Raises EnvError for the state of another kind of environment."""
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
        """Whether there is nothing to be stepped; one without a decision has a step yet, with its reward."""
        return self.status.item(i) in (DONE, PAUSED) and self.episodes["steps"].item(i) > 0

    def _do(self, part: Part) -> tuple[int, float]:
        """Returns what `step_episodes` does of its episodes, and the processor seconds that took, if the step is timed.

        By the clock steps seem worth more threads on a busy machine, just when there is no core for them.
        """
        if not self.sharing.timed:
            return self._go(*part), 0.0
        begin_s = time.thread_time()
        stopped = self._go(*part)
        return stopped, time.thread_time() - begin_s

    def _go(self, ring: np.ndarray, downwards: bool = False) -> int:
        """Step the episodes of a ring, or a part; returns how many are then at no decision."""

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
        self._go(ring_of(i, i + 1))
        self._see_to_stopped()

    def _see_to_stopped(self) -> None:
        """What keeps episodes from their next decision: an array that is too short, an error, their end."""
        stepping = self.episodes["stepping"].copy()
        while again := [i for i in self._stopped() if not self._ends(i)]:
            self.episodes["stepping"] = 0
            self.episodes["stepping"][again] = 1
            self._go(ring_of(0, len(self.episodes)))
        self.episodes["stepping"] = stepping

    def _stopped(self) -> list[int]:
        """Of the episodes that are being stepped, those that are at no decision."""
        return np.flatnonzero((self.status != DECISION) & (self.episodes["stepping"] == 1)).tolist()

    def _ends(self, i: int) -> bool:
        """Whether the episode in place i, which is at no decision, is over; if not, it can go on then."""
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
