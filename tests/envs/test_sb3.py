"""The adapter to Stable-Baselines3: what it shows is what the vector shows, and it says what their classes ask for."""

import gymnasium as gym
import numpy as np
import pytest
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecMonitor

from servegym.envs.sb3 import Sb3VecEnv
from servegym.errors import EnvError
from tests.envs.small import IDS, SMALL
from tests.envs.test_vector import make_vector

MASKED = ("ClusterRouting-v0", "DisaggregatedRouting-v0", "PrefillPreemption-v0")


def sampled(env: Sb3VecEnv, rng: np.random.Generator) -> np.ndarray:
    """Legal actions of all environments."""
    space = env.action_space
    space.seed(int(rng.integers(2**31)))
    if not env.has_attr("action_masks") or isinstance(space, gym.spaces.MultiDiscrete):
        return np.stack([space.sample() for _ in range(env.num_envs)])
    return np.array([space.sample(mask.astype("i1")) for mask in get_action_masks(env)])


@pytest.mark.parametrize("name", IDS)
def test_it_shows_what_the_vector_shows(name: str) -> None:
    env, other = Sb3VecEnv(make_vector(name, 3), reward_scale=2.0), make_vector(name, 3)
    env.seed(5)
    observations = env.reset()
    expected, _ = other.reset(seed=5)
    assert observations.dtype == np.float32 and observations.tobytes() == expected.tobytes()
    rng, ended = np.random.default_rng(0), 0
    returns, lengths = np.zeros(3), np.zeros(3, int)
    while ended < 5:
        actions = sampled(env, rng)
        observations, rewards, dones, infos = env.step(actions)
        expected, gained, terminated, truncated, told = other.step(actions)
        returns, lengths = returns + gained, lengths + 1
        assert observations.tobytes() == expected.tobytes()
        assert rewards.dtype == np.float32
        np.testing.assert_allclose(rewards, 2.0 * gained, rtol=1e-6)
        assert (dones == (terminated | truncated)).all()
        for i, info in enumerate(infos):
            if not dones[i]:
                assert info == {}
                continue
            ended += 1
            assert info["terminal_observation"].tobytes() == told["final_obs"][i].tobytes()
            assert info["TimeLimit.truncated"] == bool(truncated[i])
            assert info["tdg_ratio"] == told["final_info"]["tdg_ratio"][i]
            assert (info["episode"]["r"], info["episode"]["l"]) == (returns[i], lengths[i])
            assert info["episode"]["r"] == pytest.approx(info["tdg_ratio"], abs=1e-9)
            returns[i], lengths[i] = 0.0, 0
    assert env.episodes == ended
    env.close()


def test_an_episode_that_is_cut_off_says_so() -> None:
    import dataclasses

    source = SMALL["EngineBatching-v0"].source
    env = Sb3VecEnv(
        make_vector("EngineBatching-v0", 3, scenario=lambda rng: dataclasses.replace(source(rng), until_s=0.5))
    )
    env.seed(0)
    env.reset()
    cut = []
    while len(cut) < 3:
        _, _, dones, infos = env.step(np.zeros((3, *env.action_space.shape), "f4"))
        cut += [infos[i]["TimeLimit.truncated"] for i in np.flatnonzero(dones)]
    assert cut == [True] * len(cut)


@pytest.mark.parametrize("name", IDS)
def test_masks_where_actions_are_choices(name: str) -> None:
    env = Sb3VecEnv(make_vector(name, 3))
    env.seed(0)
    env.reset()
    assert is_masking_supported(env) == (name in MASKED)
    if name not in MASKED:
        with pytest.raises(AttributeError):
            env.env_method("action_masks")
        return
    masks = get_action_masks(env)
    assert masks.dtype == bool and masks.tobytes() == env.venv.action_masks().tobytes()
    (one,) = env.env_method("action_masks", indices=1)
    assert one.tobytes() == masks[1].tobytes()


def test_seeds_and_options_hold_for_the_next_reset() -> None:
    env = Sb3VecEnv(make_vector("EngineBatching-v0", 3))
    env.seed(7)
    first = env.reset()
    second = env.reset()
    env.seed(7)
    assert env.reset().tobytes() == first.tobytes() != second.tobytes()
    fixed = SMALL["EngineBatching-v0"].source(np.random.default_rng(3))
    env.set_options({"scenario": fixed})
    env.reset()
    assert [
        simulation.scenario.workload.table["arrival_s"][1] for simulation in env.venv.episode_batch.simulations
    ] == [fixed.workload.table["arrival_s"][1]] * 3
    other = SMALL["EngineBatching-v0"].source(np.random.default_rng(4))
    env.set_options([{}, {"scenario": fixed}, {"scenario": other}])
    env.reset()
    arrivals = [simulation.scenario.workload.table["arrival_s"][1] for simulation in env.venv.episode_batch.simulations]
    assert (
        arrivals[1:] == [case.workload.table["arrival_s"][1] for case in (fixed, other)] and arrivals[0] != arrivals[1]
    )
    assert env.reset().tobytes() != first.tobytes()  # neither seeds nor options are left


def test_generators_can_be_put_back() -> None:
    env = Sb3VecEnv(make_vector("EngineBatching-v0", 3))
    env.seed(1)
    env.reset()
    states = env.rng_states
    expected = env.reset()
    again = Sb3VecEnv(make_vector("EngineBatching-v0", 3))
    again.seed(99)
    again.rng_states = states
    assert again.reset().tobytes() == expected.tobytes()
    with pytest.raises(EnvError, match="2 states of generators; there should be 3"):
        again.rng_states = states[:2]


def test_attributes_of_the_vector() -> None:
    env = Sb3VecEnv(make_vector("ClusterRouting-v0", 3))
    assert env.get_attr("num_envs", indices=[0, 2]) == [3, 3]
    assert env.env_is_wrapped(Monitor) == [True] * 3 and env.env_is_wrapped(gym.wrappers.TimeLimit) == [False] * 3
    env.set_attr("source", None)
    assert env.venv.source is None
    with pytest.raises(EnvError, match="set it without indices"):
        env.set_attr("source", None, indices=1)
    with pytest.raises(AttributeError):
        env.env_method("render")
    assert not env.has_attr("nothing")
    with pytest.raises(EnvError, match="a SyncVectorEnv; it should be a vector of servegym's"):
        Sb3VecEnv(gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"))  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [np.nan, np.inf, 0, "1", True])
def test_a_scale_of_rewards_is_a_number(scale: object) -> None:
    with pytest.raises(EnvError, match=f"reward_scale is {scale!r}; it should be a number above 0"):
        Sb3VecEnv(make_vector("EngineBatching-v0", 1), reward_scale=scale)  # type: ignore[arg-type]
    with pytest.raises(EnvError, match="a int; it should be a vector of servegym's environments"):
        Sb3VecEnv(3)  # type: ignore[arg-type]


def test_their_evaluation_plays_it() -> None:
    class Base:
        """Zeros: the base scheduler."""

        def predict(self, observations: np.ndarray, **more: object) -> tuple[np.ndarray, None]:
            return np.zeros((len(observations), *env.action_space.shape), "f4"), None

    env = Sb3VecEnv(make_vector("EngineBatching-v0", 3))
    env.seed(0)
    plain = evaluate_policy(Base(), env, n_eval_episodes=4, return_episode_rewards=True)  # type: ignore[arg-type]
    env.seed(0)
    monitored = evaluate_policy(Base(), VecMonitor(env), n_eval_episodes=4, return_episode_rewards=True)  # type: ignore[arg-type]
    assert plain[1] == monitored[1]  # type: ignore[index]
    np.testing.assert_allclose(plain[0], monitored[0], rtol=1e-4)  # type: ignore[index, arg-type]
    assert all(0 < total <= 1 for total in plain[0])  # type: ignore[index, union-attr]
