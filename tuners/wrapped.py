"""The environment of servegym inside wrappers of Gymnasium and Stable-Baselines3, and what wrappers change."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from gymnasium import wrappers
from stable_baselines3.common.vec_env import VecEnvWrapper

from servegym.errors import TrainingError

CHANGING = (
    gym.ObservationWrapper, gym.ActionWrapper, gym.vector.VectorObservationWrapper, gym.vector.VectorActionWrapper,
    wrappers.FrameStackObservation, wrappers.MaxAndSkipObservation, wrappers.RepeatAction, wrappers.AtariPreprocessing,
    VecEnvWrapper,
)  # fmt: skip
# Of these, those that leave a decision as it is: an exported policy clips its action to the space too, and the parts of
# a dictionary one after the other are the observation.
LEAVING = ("ClipAction", "FlattenObservation", "VecMonitor", "VecCheckNan", "VecVideoRecorder")


def servegym_env(env: Any) -> Any:
    """Return the environment of servegym, or the vector, inside wrappers. Raises TrainingError if there is none."""
    *_, innermost = _layers(env)
    if not hasattr(innermost, "interface"):
        raise TrainingError(f"a {type(innermost).__name__} has no environment of servegym in it")
    return innermost.unwrapped


def check_wrappers(env: Any) -> None:
    """Raise TrainingError for a wrapper that changes observations or actions, which an exported policy does not have.

    A wrapper of one's own is known as such by its class (`gymnasium.ObservationWrapper`, ...), or by its spaces.
    """
    layers = list(_layers(env))
    for outer, inner in itertools.pairwise(layers):
        name = type(outer).__name__
        if name in LEAVING or (name == "VecNormalize" and not outer.norm_obs):
            continue
        other_spaces = isinstance(outer, gym.Wrapper) and (
            outer.observation_space != inner.observation_space or outer.action_space != inner.action_space
        )
        if isinstance(outer, CHANGING) or other_spaces:
            raise TrainingError(
                f"{name} changes observations or actions, and an exported policy is run without it: train without it "
                "(numbers of the environment itself are about 1 already)"
            )


def _layers(env: Any) -> Iterator[Any]:
    """Yield the environment and what is inside it, one after the other, down to that of servegym."""
    yield env
    while not hasattr(env, "interface"):
        inner = next((getattr(env, name) for name in ("venv", "env") if hasattr(env, name)), None)
        if inner is None and getattr(env, "envs", None):
            inner = env.envs[0]
        if inner is None:
            return
        env = inner
        yield env
