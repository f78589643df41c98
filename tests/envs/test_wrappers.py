"""Gymnasium's own wrappers, around every registered environment: what people put there first."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.envs.small import IDS, SMALL

SEED = 3


def made(name: str, **arguments: Any) -> gym.Env:
    """As a user makes it, with the wrappers that `gym.make` puts around it."""
    small = SMALL[name]
    return gym.make(f"servegym:{name}", scenario=small.source, **small.arguments, **arguments)


def played(env: gym.Env, most: int = 10_000) -> tuple[float, int, dict[str, Any]]:
    """The sum of rewards of an episode under the base policy, its steps, and its last info."""
    _, info = env.reset(seed=SEED)
    total, steps, over = 0.0, 0, False
    while not over and steps < most:
        observation, reward, terminated, truncated, info = env.step(info["base_action"])
        assert env.observation_space.contains(observation)
        total, steps, over = total + float(reward), steps + 1, terminated or truncated
    return total, steps, info


@pytest.mark.parametrize("name", IDS)
def test_record_episode_statistics(name: str) -> None:
    total, steps, info = played(gym.wrappers.RecordEpisodeStatistics(made(name)))
    assert info["episode"]["r"] == pytest.approx(total) == pytest.approx(info["tdg_ratio"])
    assert info["episode"]["l"] == steps
    assert "slo_attainment" in info["summary"]


@pytest.mark.parametrize("name", IDS)
def test_time_limit_truncates(name: str) -> None:
    env = gym.wrappers.TimeLimit(made(name), max_episode_steps=4)
    _, info = env.reset(seed=SEED)
    flags = []
    for _ in range(4):
        _, _, terminated, truncated, info = env.step(info["base_action"])
        flags.append((terminated, truncated))
    assert flags == [(False, False)] * 3 + [(False, True)]
    env.reset(seed=SEED)  # and the next one begins
    assert not env.step(info["base_action"])[3]


@pytest.mark.parametrize("name", IDS)
def test_max_episode_steps_of_make(name: str) -> None:
    _, steps, _ = played(made(name, max_episode_steps=5))
    assert steps == 5


@pytest.mark.parametrize("name", IDS)
def test_flattened_parts_are_the_flat_observation(name: str) -> None:
    flat, parts = made(name), gym.wrappers.FlattenObservation(made(name, observation="dict"))
    assert parts.observation_space.shape == flat.observation_space.shape
    (one, info), (other, _) = flat.reset(seed=SEED), parts.reset(seed=SEED)
    for _ in range(5):
        # Gymnasium flattens a Dict by its keys in order of the alphabet; the same numbers, perhaps in another order
        assert sorted(one.tolist()) == sorted(other.tolist())
        one, _, _, _, info = flat.step(action := info["base_action"])
        other = parts.step(action)[0]


@pytest.mark.parametrize("name", IDS)
def test_normalized_observations_and_rewards(name: str) -> None:
    env = gym.wrappers.NormalizeReward(gym.wrappers.NormalizeObservation(made(name)))
    _, info = env.reset(seed=SEED)
    seen = []
    for _ in range(8):
        observation, reward, *_, info = env.step(info["base_action"])
        assert np.isfinite(reward)
        seen.append(observation)
    assert np.isfinite(seen).all() and np.ptp(seen, axis=0).max() > 0


@pytest.mark.parametrize("name", IDS)
def test_a_vector_of_wrapped_ones(name: str) -> None:
    """Single environments, each in wrappers, side by side, as CleanRL makes them."""

    def thunk() -> gym.Env:
        return gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(made(name), max_episode_steps=3))

    envs = gym.vector.SyncVectorEnv([thunk] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    observations, infos = envs.reset(seed=SEED)
    for _ in range(3):
        observations, rewards, _, truncated, infos = envs.step(infos["base_action"])
    assert truncated.all() and (infos["final_info"]["episode"]["l"] == 3).all()
    assert observations.shape[0] == len(rewards) == 2


@pytest.mark.parametrize("name", IDS)
def test_wrappers_of_vectors(name: str) -> None:
    small = SMALL[name]
    envs = gym.make_vec(
        f"servegym:{name}", num_envs=2, vectorization_mode="vector_entry_point", scenario=small.source,
        autoreset_mode="NextStep", **small.arguments,
    )  # fmt: skip
    wrapped = gym.wrappers.vector.RecordEpisodeStatistics(envs)
    wrapped = gym.wrappers.vector.NormalizeObservation(wrapped)
    wrapped = gym.wrappers.vector.TransformReward(wrapped, lambda rewards: 100 * rewards)
    observations, infos = wrapped.reset(seed=SEED)
    for _ in range(4):
        observations, rewards, *_, infos = wrapped.step(infos["base_action"])
    assert np.isfinite(observations).all() and rewards.shape == (2,)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("moviepy") is None, reason="RecordVideo writes with moviepy")
@pytest.mark.parametrize("name", IDS)
def test_record_video_writes_a_file(name: str, tmp_path: Path) -> None:
    env = gym.wrappers.RecordVideo(made(name, render_mode="rgb_array", max_episode_steps=2), str(tmp_path))
    played(env)
    env.close()
    assert [path.suffix for path in tmp_path.iterdir()] == [".mp4"]


@pytest.mark.parametrize("name", IDS)
def test_frames_are_collected_for_a_video(name: str) -> None:
    """All that RecordVideo does before it writes."""
    env = gym.wrappers.RenderCollection(made(name, render_mode="rgb_array", max_episode_steps=2))
    played(env)
    frames = env.render()
    assert len(frames) == 3 and {frame.shape for frame in frames} == {(720, 1280, 3)}
    assert (frames[0] != frames[-1]).any()
