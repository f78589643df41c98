"""Episodes as Minari datasets: what agents saw, did and earned, for offline learning."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from servegym.envs.agents import Agent
from servegym.envs.env import ServingEnv
from servegym.tuners.errors import TrainingError

if TYPE_CHECKING:
    from minari import MinariDataset

FOLDER = "MINARI_DATASETS_PATH"  # where Minari looks for datasets; without it in the home folder
FORMAT = "arrow"  # needs pyarrow, which is here anyway; Minari's default needs h5py


def export(
    env: gym.Env[Any, Any],
    agent: Agent,
    episodes: int,
    dataset_id: str,
    folder: str | Path | None = None,
    seed: int = 0,
    algorithm: str | None = None,
) -> MinariDataset:
    """Play episodes and keep them as the local dataset `dataset_id` ("servegym/engine-batching/base-v0"); returns it.

    Episode i is reset with seed + i. With each step goes its info: the base policy's action, the action mask where
    there is one, gain, TDG ratio and time. folder: of the datasets; None: Minari's own. algorithm: who acted.

    Raises TrainingError for no episodes, an environment with no observation that is one array, and a dataset that is
    there already or has a name that Minari does not take.
    """
    import minari

    if episodes < 1:
        raise TrainingError(f"{episodes} episodes; there should be 1 or more")
    inner = env.unwrapped
    if not isinstance(inner, ServingEnv) or not isinstance(env.observation_space, gym.spaces.Box):
        raise TrainingError('datasets are of servegym environments with observation="flat"')
    with datasets_in(folder):
        try:
            exists = dataset_id in minari.list_local_datasets()
            minari.dataset.minari_dataset.parse_dataset_id(dataset_id)
        except ValueError as error:
            raise TrainingError(f"dataset {dataset_id!r}: {error}") from None
        if exists:
            raise TrainingError(f"dataset {dataset_id!r} is there already; another name or version would be right")
        collector = minari.DataCollector(env, record_infos=True, data_format=FORMAT)
        for episode in range(episodes):
            observation, info = collector.reset(seed=seed + episode)
            over = False
            while not over:
                observation, _, terminated, truncated, info = collector.step(agent.act(observation, info))
                over = terminated or truncated
        return collector.create_dataset(
            dataset_id, algorithm_name=algorithm or type(agent).__name__, description=described(inner)
        )


def described(env: ServingEnv) -> str:
    """What the episodes are about: enough to draw the same ones again with their seeds."""
    source = env.source
    scenarios = source.to_json() if hasattr(source, "to_json") else type(source).__name__
    return f"{type(env).__name__} on scenarios {json.dumps(scenarios)}"


@contextlib.contextmanager
def datasets_in(folder: str | Path | None) -> Iterator[None]:
    """Have Minari keep its datasets in a folder, which is made; None: where it keeps them anyway."""
    if folder is None:
        yield
        return
    path = Path(folder).resolve()
    path.mkdir(parents=True, exist_ok=True)
    before = os.environ.get(FOLDER)
    os.environ[FOLDER] = str(path)
    try:
        yield
    finally:
        if before is None:
            del os.environ[FOLDER]
        else:
            os.environ[FOLDER] = before
