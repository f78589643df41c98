"""What an agent sees and does in a kind of environment: the part in which environments differ."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from servegym.baselines.observations.fields import Layout
from servegym.errors import EnvError
from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

NUMBERS = "biuf"  # kinds of data types that an action can have


class Interface(abc.ABC):
    """Decisions of one kind, as observations and actions.

    stop_at: where the event loop stops for them (simulator/records/statuses.py). observe, act: compiled
    (envs/episodes.py).
    layout: of the observation. action_space: of the agent. choices: length of the action mask; 0: none.
    """

    stop_at: ClassVar[int]
    observe: ClassVar[Compiled]
    act: ClassVar[Compiled]
    layout: Layout
    action_space: gym.Space[Any]
    choices: int = 0

    @abc.abstractmethod
    def prepare(self, scenario: Scenario) -> Scenario:
        """The scenario with what the agent's decisions need. Raises EnvError for one that does not suit."""

    @abc.abstractmethod
    def begin(self, simulation: Simulation, episode: np.record) -> None:
        """Fill the fields of EPISODE that `observe` and `act` need."""

    def as_actions(self, numbers: np.ndarray) -> np.ndarray:
        """Actions, as the action space has them, of their numbers: float64[..., numbers]."""
        shape = (*numbers.shape[:-1], *(self.action_space.shape or ()))
        return numbers.reshape(shape).astype(self.action_space.dtype)

    @property
    def observation_space(self) -> gym.spaces.Box:
        return gym.spaces.Box(self.layout.low, self.layout.high, dtype=np.float32)

    @property
    def dict_space(self) -> gym.spaces.Dict:
        low, high = self.layout.parts(self.layout.low), self.layout.parts(self.layout.high)
        return gym.spaces.Dict({name: gym.spaces.Box(low[name], high[name], dtype=np.float32) for name in low})

    @property
    def action_numbers(self) -> int:
        """Numbers in an action."""
        return int(np.prod(self.action_space.shape or (1,)))

    @property
    def action_bounds(self) -> np.ndarray:
        """float64[numbers, 3]: of each number in an action the least and the largest, and 1 if it is a whole number."""
        space: Any = self.action_space
        whole = np.issubdtype(space.dtype, np.integer)
        if isinstance(space, gym.spaces.Box):
            low, high = space.low, space.high
        else:
            low = np.asarray(space.start)
            high = low + (space.nvec if isinstance(space, gym.spaces.MultiDiscrete) else space.n) - 1
        return np.column_stack([np.ravel(low), np.ravel(high), np.full(self.action_numbers, whole)]).astype("f8")

    def contains(self, numbers: np.ndarray) -> np.ndarray:
        """bool[...]: whether actions, as numbers of shape (..., numbers), are in the action space."""
        low, high, whole = self.action_bounds.T
        within = np.isfinite(numbers) & (low <= numbers) & (numbers <= high)
        return (within & ((whole == 0) | (numbers == np.floor(numbers)))).all(axis=-1)

    def in_words(self, action: np.ndarray, simulation: Simulation, filled: int) -> str:
        """An action, float64[numbers], at the decision before which the simulation stands, for people who watch.

        filled: slots with a request in them.
        """
        return ", ".join(f"{number:g}" for number in action)

    def slots_of(self, simulation: Simulation, filled: int) -> list[int]:
        """The request in each slot of the action at this decision; empty where an action names no requests."""
        return []

    def as_masks(self, mask: np.ndarray) -> Any:
        """A mask, int8[choices], as `action_space.sample` takes it: of several choices a tuple with one for each."""
        if not isinstance(self.action_space, gym.spaces.MultiDiscrete):
            return mask
        return tuple(np.split(mask, np.cumsum(self.action_space.nvec)[:-1]))


def kinds_of(simulation: Simulation) -> int:
    """The kinds of engines whose scheduler is the scenario's, as bits. Raises EnvError if there are none."""
    pools = simulation.settings.cluster.pools
    kinds = sum(1 << kind for kind, pool in enumerate(pools) if pool.scheduler is None)
    if kinds == 0:
        raise EnvError("every pool of the scenario has a scheduler of its own; one should be left to the agent")
    return kinds
