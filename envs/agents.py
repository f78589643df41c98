"""Agents: whatever answers an observation with an action."""

from __future__ import annotations

from typing import Any, Protocol


class Agent(Protocol):
    """What acts in an environment."""

    def act(self, observation: Any, info: dict[str, Any], /) -> Any:
        """The action for what `reset` or `step` returned (of a vector environment: the actions)."""


class BaseAgent:
    """The environment's base policy: a heuristic as an agent.

    Played through the environment it gives the bytes that `simulate` gives with that policy. The environment computes
    its decision anyway, so every registered policy that an environment takes for its base is an agent there.
    """

    def act(self, observation: Any, info: dict[str, Any]) -> Any:
        return info["base_action"]


class RandomAgent:
    """Choose uniformly among the legal actions."""

    def __init__(self, space: Any, seed: int | None = None):
        self.space = space
        self.space.seed(seed)

    def act(self, observation: Any, info: dict[str, Any]) -> Any:
        return self.space.sample(mask=info.get("action_mask"))


def play(env: Any, agent: Agent, seed: int | None = None, options: dict[str, Any] | None = None) -> float:
    """Play one episode of a single environment. Returns the sum of its rewards."""
    observation, info = env.reset(seed=seed, options=options)
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, info = env.step(agent.act(observation, info))
        total += reward
        over = terminated or truncated
    return total
