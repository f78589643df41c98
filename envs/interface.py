"""Interface: observations and actions of an environment, the part in which environments differ."""

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

NUMBERS = "biuf"  # NumPy's dtype.kind of actions


class Interface(abc.ABC):
    """Observations and actions for one kind of decision.

    stop_at: where the event loop stops (simulator/records/statuses.py). observe, act: kernels (envs/episodes.py).
    layout: fields of the observation. action_space: of the agent. choices: length of the action mask; 0: no mask.
    """

    stop_at: ClassVar[int]
    observe: Compiled
    act: Compiled
    layout: Layout
    action_space: gym.Space[Any]
    choices: int = 0

    @abc.abstractmethod
    def prepare(self, scenario: Scenario) -> Scenario:
        """Return the scenario with the policies that the agent's decisions need. Raises EnvError if it does not fit."""

    @abc.abstractmethod
    def begin(self, simulation: Simulation, episode: np.record) -> None:
        """Fill the fields of EPISODE that `observe` and `act` need."""

    def as_actions(self, numbers: np.ndarray) -> np.ndarray:
        """Convert float64[..., numbers] to actions with the shape and data type of the action space."""
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
        """float64[numbers, 3]: lower bound, upper bound, and 1 for integers, for each number of an action."""
        space: Any = self.action_space
        whole = np.issubdtype(space.dtype, np.integer)
        if isinstance(space, gym.spaces.Box):
            low, high = space.low, space.high
        else:
            low = np.asarray(space.start)
            high = low + (space.nvec if isinstance(space, gym.spaces.MultiDiscrete) else space.n) - 1
        return np.column_stack([np.ravel(low), np.ravel(high), np.full(self.action_numbers, whole)]).astype("f8")

    def contains(self, numbers: np.ndarray) -> np.ndarray:
        """bool[...]: whether each action of float64[..., numbers] is in the action space."""
        low, high, whole = self.action_bounds.T
        within = np.isfinite(numbers) & (low <= numbers) & (numbers <= high)
        return (within & ((whole == 0) | (numbers == np.floor(numbers)))).all(axis=-1)

    def in_words(self, action: np.ndarray, simulation: Simulation, filled: int) -> str:
        """Describe an action, float64[numbers], at the current decision, for pictures.

        filled: number of slots that hold a request.
        """
        return ", ".join(f"{number:g}" for number in action)

    def slots_of(self, simulation: Simulation, filled: int) -> list[int]:
        """The request in each slot of an action at the current decision; empty for actions without slots."""
        return []

    def as_masks(self, mask: np.ndarray) -> Any:
        """Convert a mask, int8[choices], to what `action_space.sample` takes: a tuple of masks for MultiDiscrete."""
        if not isinstance(self.action_space, gym.spaces.MultiDiscrete):
            return mask
        return tuple(np.split(mask, np.cumsum(self.action_space.nvec)[:-1]))


def agent_pools_of(simulation: Simulation) -> int:
    """Bit k is set if pool k uses the scenario's scheduler. Raises EnvError if no pool does."""
    pools = simulation.settings.cluster.pools
    bits = sum(1 << k for k, pool in enumerate(pools) if pool.scheduler is None)
    if bits == 0:
        raise EnvError("every pool of the scenario has a scheduler of its own; one should be left to the agent")
    return bits
