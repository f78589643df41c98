"""The kernels that step environments, as plain Python: parking, counting, observations and actions of every kind."""

import numpy as np
import pytest

from servegym.envs.agents import BaseAgent, RandomAgent
from tests.envs.small import IDS, make

STEPS = 12


@pytest.mark.nojit
@pytest.mark.parametrize("name", IDS)
def test_steps_as_plain_python(name):
    env = make(name)
    for agent in (BaseAgent(), RandomAgent(env.action_space, 0)):
        observation, info = env.reset(seed=0)
        gain = 0.0
        for _ in range(STEPS):
            assert env.observation_space.contains(observation)
            observation, reward, terminated, truncated, info = env.step(agent.act(observation, info))
            gain += reward
            if terminated or truncated:
                break
        assert gain == pytest.approx(info["tdg_ratio"], abs=1e-9) and np.isfinite(gain)
