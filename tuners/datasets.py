"""Exports episodes as Minari datasets (observations, actions, rewards) with a card, for offline learning."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from servegym.envs.agents import Agent
from servegym.envs.env import ServingEnv
from servegym.errors import TrainingError
from servegym.evaluation.markdown import narrow_header, row
from servegym.evaluation.running import Progress

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec
    from minari import MinariDataset
    from minari.data_collector import EpisodeBuffer

FOLDER = "MINARI_DATASETS_PATH"  # environment variable: folder of Minari's datasets, by default in the home folder
FORMAT = "arrow"  # needs only pyarrow, which servegym requires; Minari's default needs h5py


def export(
    env: gym.Env[Any, Any],
    agent: Agent,
    episodes: int,
    dataset_id: str,
    folder: str | Path | None = None,
    seed: int = 0,
    algorithm: str | None = None,
    progress: Progress = lambda done, episodes: None,
) -> MinariDataset:
    """Play episodes and keep them as the local dataset `dataset_id` ("servegym/engine-batching/base-v0") with a card;
    returns the dataset.

    Episode i is reset with seed + i. The info of each step has the base policy's action, the action mask if there is
    one, gain, TDG ratio and time. folder: of the datasets; None: Minari's own. algorithm: name of the agent. progress:
    called before the first episode and after each. An environment that Minari recovers from the dataset has its default
    scenarios; the description names the scenarios of the episodes.
    Raises TrainingError for a count below 1, an environment whose observation is not one array, a dataset that exists,
    and a name that Minari does not accept.
    """
    import minari

    if episodes < 1:
        raise TrainingError(f"{episodes} episodes; there should be 1 or more")
    inner = env.unwrapped
    if not isinstance(inner, ServingEnv) or not isinstance(env.observation_space, gym.spaces.Box):
        raise TrainingError('datasets are of servegym environments with observation="flat"')
    with datasets_in(folder), warnings.catch_warnings():
        try:
            exists = dataset_id in minari.list_local_datasets()
            minari.dataset.minari_dataset.parse_dataset_id(dataset_id)
        except ValueError as error:
            raise TrainingError(f"dataset {dataset_id!r}: {error}") from None
        if exists:
            raise TrainingError(f"dataset {dataset_id!r} exists; choose another name or version")
        warnings.filterwarnings("ignore", message=".*is set to None", module="minari")
        dataset = minari.create_dataset_from_buffers(
            dataset_id,
            all_played(env, agent, range(seed, seed + episodes), progress),
            env=without_scenario(env.spec),
            observation_space=env.observation_space,
            action_space=env.action_space,
            algorithm_name=algorithm or type(agent).__name__,
            description=described(inner),
            data_format=FORMAT,
        )
        write_card(dataset, range(seed, seed + episodes), scenarios_of(inner))
        return dataset


def all_played(env: gym.Env[Any, Any], agent: Agent, seeds: range, progress: Progress) -> list[EpisodeBuffer]:
    """Play an episode of each seed."""
    buffers: list[EpisodeBuffer] = []
    progress(0, len(seeds))
    for number, seed in enumerate(seeds):
        buffers.append(played(env, agent, seed, number))
        progress(len(buffers), len(seeds))
    return buffers


def played(env: gym.Env[Any, Any], agent: Agent, seed: int, number: int) -> EpisodeBuffer:
    """Play one episode. (Minari's own collector needs jax.)"""
    from minari.data_collector import EpisodeBuffer

    observation, info = env.reset(seed=seed)
    observations, infos = [observation], [kept(info)]
    steps: dict[str, list[Any]] = {"actions": [], "rewards": [], "terminations": [], "truncations": []}
    terminated = truncated = False
    while not (terminated or truncated):
        action = agent.act(observation, info)
        observation, reward, terminated, truncated, info = env.step(action)
        for name, value in zip(steps, (action, reward, terminated, truncated), strict=True):
            steps[name].append(value)
        observations.append(observation)
        infos.append(kept(info))
    columns = {name: np.array([row[name] for row in infos]) for name in infos[0]}
    return EpisodeBuffer(id=number, seed=seed, observations=observations, infos=columns, **steps)


def kept(info: dict[str, Any]) -> dict[str, Any]:
    """The entries of an info that are kept with a step, with the terms of the reward as entries of their own."""
    rest = {name: value for name, value in info.items() if name != "reward_terms"}
    if "action_mask" in rest:
        rest["action_mask"] = np.hstack(rest["action_mask"])  # of several choices one after the other
    rest |= {f"reward_{name}": value for name, value in info["reward_terms"].items()}
    return {
        name: np.atleast_1d(value) for name, value in rest.items()
    }  # Minari cannot read back numbers outside an array


def without_scenario(spec: EnvSpec | None) -> EnvSpec | None:
    """The environment's spec as Minari recovers it: without scenarios, which JSON cannot hold."""
    if spec is None:
        return None
    kwargs = {name: value for name, value in spec.kwargs.items() if name != "scenario"}
    return dataclasses.replace(spec, kwargs=kwargs)


def described(env: ServingEnv) -> str:
    """Describe the episodes, with everything needed to draw the same ones from their seeds."""
    return f"{type(env).__name__} on scenarios {json.dumps(scenarios_of(env))}"


def scenarios_of(env: ServingEnv) -> Any:
    """The spec from which episodes are drawn, with JSON's types; for another source, its name."""
    source = env.source
    return source.to_json() if hasattr(source, "to_json") else type(source).__name__


@contextlib.contextmanager
def datasets_in(folder: str | Path | None) -> Iterator[None]:
    """Set Minari's folder of datasets inside the with block, and make it; None: leave it."""
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


CARD = "README.md"


def write_card(dataset: MinariDataset, seeds: range, scenarios: Any) -> Path:
    """Write the card into the dataset's folder; returns its path. scenarios: the spec of the episodes."""
    path = Path(dataset.storage.data_path).parent / CARD
    path.write_text(card(dataset, seeds, scenarios), "utf-8")
    return path


def card(dataset: MinariDataset, seeds: range, scenarios: Any) -> str:
    from servegym import __version__

    ratios, steps = returns_of(dataset)
    spec = dataset.env_spec
    rows = {
        "environment": f"`servegym:{spec.id}`" if spec is not None else "not registered",
        "agent": f"`{dataset.storage.metadata.get('algorithm_name')}`",
        "episodes, steps": f"{len(ratios)}, {int(steps.sum())} ({int(steps.min())} to {int(steps.max())} an episode)",
        "TDG ratio of an episode (its sum of rewards)": f"mean {ratios.mean():.4f}, {ratios.min():.4f} to "
        f"{ratios.max():.4f}",
        "seeds of the episodes": f"{seeds[0]} to {seeds[-1]}",
        "observations": f"`Box{dataset.observation_space.shape}`, {dataset.observation_space.dtype}",
        "actions": f"`{dataset.action_space}`",
        "made with": f"servegym {__version__}, Python {platform.python_version()}, NumPy {np.__version__}",
    }
    lines = [
        f"# {dataset.id}", "", "Episodes of LLM serving, simulated. No real requests are in it: lengths and times are "
        "drawn from public traces (those below).", "", *narrow_header("", ""),
        *(row(name, value) for name, value in rows.items()), "",
        "Each step has in its infos the base policy's action, the action mask where actions are choices, gain, TDG "
        "ratio and time. The same seeds on the same scenarios give the same bytes.", "",
        "```python", "import minari", "", f'dataset = minari.load_dataset("{dataset.id}")',
        "for episode in dataset.iterate_episodes():",
        "    episode.observations, episode.actions, episode.rewards, episode.infos", "```", "",
        "Minari looks for it in the folder that `MINARI_DATASETS_PATH` names.", "", "## Scenarios", "",
        "```json", json.dumps(scenarios, indent=1), "```", "",
    ]  # fmt: skip
    return "\n".join(lines)


def returns_of(dataset: MinariDataset) -> tuple[np.ndarray, np.ndarray]:
    """float64[episodes] each: the sum of rewards, and the number of steps."""
    rewards = [episode.rewards for episode in dataset.iterate_episodes()]
    return np.array([one.sum() for one in rewards]), np.array([len(one) for one in rewards])
