"""Discounting over time: the discount of a second does not depend on the number of batches in it.

Batches take from a few milliseconds to seconds, and the gain of a decision comes seconds later. With a discount for
each step, the horizon would depend on the device and on how long the policy makes its batches.

    advantage(t) = delta(t) + exp(-d / horizon) exp(-d / trace) advantage(t + 1)
    delta(t)     = reward(t) + exp(-d / horizon) value(t + 1) - value(t)          d: seconds that step t took

Generalised advantage estimation (Schulman and others, 2016) of a semi-Markov decision process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from stable_baselines3.common.buffers import RolloutBuffer

from servegym.envs.sb3 import Sb3VecEnv

# To the type checker these bases are anything: `Timed` comes before them.
_Buffer: Any = object
_Rollout: Any = RolloutBuffer
_MaskableRollout: Any = MaskableRolloutBuffer


class Timed(_Buffer):
    """A rollout buffer that discounts by the seconds between decisions.

    horizon_s: time after which a reward counts 1/e. trace_s: the same for temporal-difference errors. `clock`: the
    environment, which gives the durations of its last steps, and the rewards that are known only at the end of a
    rollout; set it before the first rollout.
    """

    clock: Sb3VecEnv

    def __init__(self, *args: Any, horizon_s: float, trace_s: float, **more: Any):
        self.horizon_s, self.trace_s = horizon_s, trace_s
        super().__init__(*args, **more)

    def reset(self) -> None:
        super().reset()
        self.durations_s = np.zeros((self.buffer_size, self.n_envs), np.float32)

    def add(self, *args: Any, **more: Any) -> None:
        self.durations_s[self.pos] = self.clock.durations_s
        super().add(*args, **more)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: np.ndarray) -> None:
        self.rewards += self.clock.late_rewards()
        goes_on = np.concatenate([1.0 - self.episode_starts[1:], 1.0 - dones[None].astype(np.float32)])
        values = np.concatenate([self.values, last_values.clone().cpu().numpy().reshape(1, -1)])
        discounts = goes_on * np.exp(-self.durations_s / self.horizon_s)
        traces = discounts * np.exp(-self.durations_s / self.trace_s)
        deltas = self.rewards + discounts * values[1:] - values[:-1]
        advantage = np.zeros(self.n_envs, np.float32)
        for step in range(self.buffer_size - 1, -1, -1):
            advantage = deltas[step] + traces[step] * advantage
            self.advantages[step] = advantage
        self.returns = self.advantages + self.values


class TimedRolloutBuffer(Timed, _Rollout):
    """For PPO."""


class TimedMaskableRolloutBuffer(Timed, _MaskableRollout):
    """For MaskablePPO."""
