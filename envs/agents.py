"""Agents: heuristics, random choice or learned policies that choose an action for each observation."""

from __future__ import annotations

from typing import Any, Protocol


class Agent(Protocol):
    """Anything that chooses actions in an environment."""

    def act(self, observation: Any, info: dict[str, Any], /) -> Any:
        """Return the action for what `reset` or `step` returned; for a vector environment, one action each."""


class BaseAgent:
    """Choose what the environment's base policy would decide.

    An episode played so gives the same bytes as `simulate` with that policy. Any registered policy that an environment
    accepts as its base can be played this way.
    """

    def act(self, observation: Any, info: dict[str, Any]) -> Any:
        return info["base_action"]


class RandomAgent:
    """Choose uniformly among the legal actions of `space`."""

    def __init__(self, space: Any, seed: int | None = None):
        self.space = space
        self.space.seed(seed)

    def act(self, observation: Any, info: dict[str, Any]) -> Any:
        return self.space.sample(mask=info.get("action_mask"))


def play(env: Any, agent: Agent, seed: int | None = None, options: dict[str, Any] | None = None) -> float:
    """Play one episode of a single (not a vector) environment and return the sum of its rewards."""
    observation, info = env.reset(seed=seed, options=options)
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, info = env.step(agent.act(observation, info))
        total += reward
        over = terminated or truncated
    return total
