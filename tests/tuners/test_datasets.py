"""Minari datasets: what is read back is what was played."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import servegym
from servegym.envs.agents import BaseAgent, RandomAgent
from servegym.errors import TrainingError
from servegym.scenarios.presets import EPISODES
from servegym.tuners.datasets import FOLDER, datasets_in, export

minari = pytest.importorskip("minari")
SOURCE = EPISODES.replaced(requests=12, load=3.0, slo_scale=0.5)
CLUSTERS = SOURCE.replaced(engines=2, router="min-load")


def make(name: str, **arguments):
    gym.register_envs(servegym)
    return gym.make(f"servegym:{name}", **arguments)


@pytest.mark.parametrize("name", ["EngineBatching-v0", "ClusterRouting-v0"])
def test_a_dataset_holds_the_episodes_as_they_were_played(name, tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    arguments = {"scenario": CLUSTERS, "engines": 2} if "Cluster" in name else {"scenario": SOURCE}
    env = make(name, **arguments)
    told: list[tuple[int, int]] = []
    agent = RandomAgent(env.action_space, 3)
    export(env, agent, 2, "servegym/played-v0", tmp_path, seed=5, progress=lambda *now: told.append(now))
    assert told == [(0, 2), (1, 2), (2, 2)]
    with datasets_in(tmp_path):
        episodes = list(minari.load_dataset("servegym/played-v0").iterate_episodes())
    assert len(episodes) == 2
    agent = RandomAgent(env.action_space, 3)
    for number, episode in enumerate(episodes):
        observation, info = env.reset(seed=5 + number)
        for i in range(len(episode.rewards)):
            assert (episode.observations[i] == observation).all()
            assert (episode.infos["base_action"][i] == np.atleast_1d(info["base_action"])).all()
            if "action_mask" in info:
                assert (episode.infos["action_mask"][i] == info["action_mask"]).all()
            action = agent.act(observation, info)
            assert (episode.actions[i] == action).all()
            observation, reward, terminated, truncated, info = env.step(action)
            assert episode.rewards[i] == reward
            assert (episode.terminations[i], episode.truncations[i]) == (terminated, truncated)
        assert terminated
        assert episode.rewards.sum() == pytest.approx(info["tdg_ratio"], abs=1e-9)


def test_an_environment_is_made_again_and_the_description_says_on_what(tmp_path):
    env = make("EngineBatching-v0", scenario=SOURCE, controls=("gamma",))
    export(env, BaseAgent(), 1, "again-v0", tmp_path, algorithm="slide-batching")
    with datasets_in(tmp_path):
        dataset = minari.load_dataset("again-v0")
        metadata = dataset.storage.metadata
        assert metadata["algorithm_name"] == "slide-batching"
        assert '"requests": 12' in metadata["description"]
        assert dataset.recover_environment().action_space == env.action_space


def test_what_cannot_be_a_dataset_is_told(tmp_path):
    env = make("EngineBatching-v0", scenario=SOURCE)
    export(env, BaseAgent(), 1, "there-v0", tmp_path)
    with pytest.raises(TrainingError, match="'there-v0' exists"):
        export(env, BaseAgent(), 1, "there-v0", tmp_path)
    with pytest.raises(TrainingError, match="Malformed dataset ID"):
        export(env, BaseAgent(), 1, "no name", tmp_path)
    with pytest.raises(TrainingError, match="0 episodes"):
        export(env, BaseAgent(), 0, "none-v0", tmp_path)
    with pytest.raises(TrainingError, match='observation="flat"'):
        export(make("EngineBatching-v0", scenario=SOURCE, observation="dict"), BaseAgent(), 1, "dict-v0", tmp_path)
