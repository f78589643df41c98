"""What environments show and give, step after step, to agents that follow the base policy or do anything."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from servegym.envs.agents import BaseAgent, RandomAgent

SEED = 11
WORDS: dict[str, Any] = {"trace": "azure-conv", "load": 2.0, "slo_scale": 0.4, "requests": 30}  # too much to serve
STEPS = 40  # of a vector: some of its episodes end, and others follow


def single(name: str, agent: str) -> Iterator[Any]:
    """An episode of one environment, to its end."""
    env = gym.make(f"servegym:{name}", disable_env_checker=True, shaping=0.3, **WORDS)
    actor = BaseAgent() if agent == "base" else RandomAgent(env.action_space, SEED)
    observation, info = env.reset(seed=SEED)
    yield from (observation, info["base_action"], info["now_s"])
    over = False
    while not over:
        observation, reward, terminated, truncated, info = env.step(actor.act(observation, info))
        over = terminated or truncated
        yield from (observation, reward, terminated, truncated, info["base_action"], info["now_s"], info["tdg_ratio"])
        yield from [np.hstack(info["action_mask"])] if "action_mask" in info else []


def vector(name: str) -> Iterator[Any]:
    """Three environments in one, under their base policies."""
    words = WORDS | {"requests": 5}
    envs = gym.make_vec(f"servegym:{name}", num_envs=3, vectorization_mode="vector_entry_point", **words)
    _, infos = envs.reset(seed=SEED)
    for _ in range(STEPS):
        *shown, infos = envs.step(infos["base_action"])
        yield from shown
    envs.close()


def several_agents() -> Iterator[Any]:
    """A router and schedulers together."""
    from servegym.envs.parallel import ServingParallelEnv

    env = ServingParallelEnv(**WORDS)
    observations, infos = env.reset(seed=SEED)
    while env.agents:
        decider = next(agent for agent in env.agents if infos[agent]["deciding"])
        yield env.agents.index(decider)
        observations, rewards, *_, infos = env.step({decider: infos[decider]["base_action"]})
        yield from (np.concatenate([observations[agent] for agent in sorted(observations)]), rewards[decider])
