"""Native vector environments: n episodes as n single ones have them, byte for byte, also in what follows."""

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from servegym.envs import work_sharing
from servegym.envs.agents import BaseAgent, play
from servegym.envs.vector import ServingVectorEnv
from servegym.errors import ActionError, EnvError
from tests.envs.small import IDS, SMALL, drawn, frozen, make

SEED = 11


def make_vector(name: str, n: int, **arguments: Any) -> ServingVectorEnv:
    small = SMALL[name]
    arguments = {"scenario": small.source, **small.arguments, **arguments}
    return gym.make_vec(f"servegym:{name}", num_envs=n, vectorization_mode="vector_entry_point", **arguments).unwrapped


def of_one(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """What `info` would be of a single environment."""
    info: dict[str, Any] = {}
    for key, value in infos.items():
        if key.startswith("_") or key.startswith("final") or not infos[f"_{key}"][i]:
            continue
        info[key] = of_one(value, i) if isinstance(value, dict) else value[i]
    return info


def same(single: Any, other: Any) -> bool:
    """Equal to the byte; numbers may be Python's or NumPy's."""
    if isinstance(single, dict):
        return single.keys() == other.keys() and all(same(single[key], other[key]) for key in single)
    if isinstance(single, tuple):  # masks of several choices; vectors have them one after the other
        single = np.hstack(single)
    if isinstance(other, tuple):
        other = np.hstack(other)
    return np.asarray(single).tobytes() == np.asarray(other).tobytes()


def actions_of(envs: list[Any], infos: list[dict[str, Any]], rng: np.random.Generator) -> list[Any]:
    """The base's action, or (one in three) any."""
    return [
        info["base_action"] if rng.random() < 0.67 else env.action_space.sample()
        for env, info in zip(envs, infos, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("name", IDS)
def test_episodes_side_by_side_are_single_environments(name: str) -> None:
    n, rng, ended = 3, np.random.default_rng(0), np.zeros(3, int)
    options = {"shaping": 0.3, "discount": 0.99}
    vector, singles = make_vector(name, n, **options), [make(name, **options) for _ in range(n)]
    for i, single in enumerate(singles):
        single.action_space.seed(i)
    observations, infos = vector.reset(seed=SEED)
    starts = [single.reset(seed=SEED + i) for i, single in enumerate(singles)]
    last = [info for _, info in starts]
    for i, (observation, info) in enumerate(starts):
        assert frozen(observations[i]) == frozen(observation)
        assert same(info, of_one(infos, i))
    for _ in range(2000):
        actions = actions_of(singles, last, rng)
        observations, rewards, terminated, truncated, infos = vector.step(np.array(actions))
        for i, single in enumerate(singles):
            observation, reward, over, cut, last[i] = single.step(actions[i])
            assert (rewards[i], terminated[i], truncated[i]) == (reward, over, cut)
            if over or cut:
                ended[i] += 1
                assert frozen(infos["final_obs"][i]) == frozen(observation)
                assert same(last[i], of_one(infos["final_info"], i))
                observation, last[i] = single.reset()
            if "final_obs" in infos:
                assert infos["_final_obs"][i] == infos["_final_info"][i] == (over or cut)
            assert frozen(observations[i]) == frozen(observation)
            assert same(last[i], of_one(infos, i))
        if ended.min() >= 2:
            break
    assert ended.min() >= 2
    assert (vector.action_masks() == np.array([single.action_masks() for single in singles])).all()


@pytest.mark.parametrize("name", IDS)
def test_spaces_are_those_of_single_ones(name: str) -> None:
    vector, single = make_vector(name, 2), make(name)
    assert vector.single_observation_space == single.observation_space
    assert vector.single_action_space == single.action_space
    assert vector.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    observations, infos = vector.reset(seed=0)
    assert vector.observation_space.contains(observations)
    assert vector.action_space.contains(infos["base_action"].astype(vector.action_space.dtype))
    observations, rewards, terminated, truncated, _ = vector.step(vector.action_space.sample())
    assert vector.observation_space.contains(observations)
    assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
    vector.close()


@pytest.mark.parametrize("threads", [2, 3])
def test_episodes_in_threads_are_the_same(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to do it is split between threads, and more than one episode ends in a step."""
    monkeypatch.setattr(work_sharing, "MIN_PART_S", 1e-12)
    monkeypatch.setattr(work_sharing.os, "cpu_count", lambda: threads)
    name, n = "RequestRanking-v0", 35
    vector = make_vector(name, n, scenario=drawn(name))
    _, infos = vector.reset()
    totals, ends = np.zeros(n), 0
    while ends == 0:
        _, rewards, terminated, _, infos = vector.step(infos["base_action"])
        totals += rewards
        ends = terminated.sum()
    assert ends == n
    assert vector.episode_batch.sharing.threads == threads
    env = make(name, drawn(name))
    assert totals.tolist() == [play(env, BaseAgent())] * n


def test_some_episodes_can_be_reset() -> None:
    name = "ClusterRouting-v0"
    vector = make_vector(name, 3)
    before, infos = vector.reset(seed=1)
    for _ in range(3):
        before, *_, infos = vector.step(infos["base_action"])
    after, infos = vector.reset(seed=[None, 2, None], options={"reset_mask": np.array([False, True, False])})
    assert frozen(after[0]) == frozen(before[0]) and frozen(after[2]) == frozen(before[2])
    assert frozen(after[1]) == frozen(make(name).reset(seed=2)[0]) != frozen(before[1])
    assert infos["now_s"][0] > infos["now_s"][1]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("name", IDS)
def test_sync_mode_is_the_same(name: str, mode: AutoresetMode) -> None:
    small, ended = SMALL[name], 0
    native = make_vector(name, 2, autoreset_mode=mode)
    assert native.metadata["autoreset_mode"] == mode
    synced = gym.make_vec(
        f"servegym:{name}", num_envs=2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode},
        scenario=small.source, **small.arguments,
    )  # fmt: skip
    (first, infos), (second, _) = native.reset(seed=SEED), synced.reset(seed=SEED)
    assert frozen(first) == frozen(second)
    for _ in range(2000):
        steps = [vector.step(infos["base_action"]) for vector in (native, synced)]
        assert frozen(steps[0][:4]) == frozen(steps[1][:4])
        infos, others = steps[0][4], steps[1][4]
        assert frozen(infos["base_action"]) == frozen(
            np.array(list(others["base_action"])).astype(native.action_space.dtype)
        )
        ended += steps[0][2].sum()
        if ended >= 4:
            break
    assert ended >= 4


@pytest.mark.parametrize("name", IDS)
@pytest.mark.filterwarnings("ignore:.*precision")
def test_wrappers_of_gymnasium_take_it(name: str) -> None:
    """Observations are normalised in NEXT_STEP only, as Gymnasium's are; everything else in SAME_STEP too."""
    wrapped = gym.wrappers.vector.NormalizeObservation(make_vector(name, 2, autoreset_mode="NextStep"))
    wrapped = gym.wrappers.vector.RecordEpisodeStatistics(gym.wrappers.vector.NormalizeReward(wrapped))
    vector = gym.wrappers.vector.RecordEpisodeStatistics(gym.wrappers.vector.NormalizeReward(make_vector(name, 2)))
    for envs in (wrapped, vector):
        observations, infos = envs.reset(seed=SEED)
        episodes = 0
        for _ in range(2000):
            observations, rewards, *_, infos = envs.step(infos["base_action"])
            assert np.isfinite(observations).all() and np.isfinite(rewards).all()
            last = infos.get("final_info", infos) if envs is vector else infos
            episodes += int(last["_episode"].sum()) if "_episode" in last else int(infos.get("_episode", [0])[0])
            if episodes:
                break
        assert episodes


def test_without_autoreset_what_is_over_is_reset_by_hand() -> None:
    name = "ClusterRouting-v0"
    vector, single = make_vector(name, 2, autoreset_mode="Disabled"), make_vector(name, 2)
    _, infos = vector.reset(seed=1)
    _, others = single.reset(seed=1)
    terminated = np.zeros(2, bool)
    while not terminated.any():
        _, _, terminated, _, infos = vector.step(infos["base_action"])
        observations, _, _, _, others = single.step(others["base_action"])
    with pytest.raises(gym.error.ResetNeeded, match="are over, or have not begun: call reset"):
        vector.step(infos["base_action"])
    after, _ = vector.reset(options={"reset_mask": terminated})
    assert frozen(after) == frozen(observations)
    vector.step(infos["base_action"])


ASYNC = """
import sys
import gymnasium as gym
import numpy as np
from tests.envs.small import IDS, SMALL

for name in IDS:
    small = SMALL[name]
    make = dict(num_envs=2, scenario=small.source, **small.arguments)
    vectors = [gym.make_vec(f"servegym:{name}", vectorization_mode=mode, **make) for mode in ("sync", "async")]
    starts = [vector.reset(seed=5) for vector in vectors]
    infos = starts[0][1]
    same = starts[0][0].tobytes() == starts[1][0].tobytes()
    for _ in range(5):
        actions = np.array(list(infos["base_action"]))
        steps = [vector.step(actions) for vector in vectors]
        infos = steps[0][4]
        same = same and all(a.tobytes() == b.tobytes() for a, b in zip(steps[0][:4], steps[1][:4]))
    for vector in vectors:
        vector.close()
    print(name, same, flush=True)
"""


@pytest.mark.slow
def test_async_mode_is_the_same() -> None:
    """In a process of its own, whose children do the stepping."""
    done = subprocess.run([sys.executable, "-c", ASYNC], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split("\n")[:-1] == [f"{name} True" for name in IDS], done.stderr


@pytest.mark.parametrize("name", ["EngineBatching-v0", "ClusterRouting-v0"])
def test_a_step_needs_episodes_before_the_first_reset_and_after_the_end(name: str) -> None:
    vector = make_vector(name, 2)
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\)"):
        vector.step(vector.action_space.sample())
    first, infos = vector.reset(seed=3)
    state = vector.clone_state(1)
    vector.close()
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\)"):
        vector.step(vector.action_space.sample())
    with pytest.raises(EnvError, match="before the first reset"):
        vector.clone_state(0)
    vector.restore_state(1, state)
    with pytest.raises(gym.error.ResetNeeded):  # the other one has none
        vector.step(infos["base_action"])
    again, _ = vector.reset(seed=3)
    assert frozen(again) == frozen(first)
    vector.step(infos["base_action"])


def test_bad_arguments_and_actions() -> None:
    vector = make_vector("ClusterRouting-v0", 2)
    vector.reset(seed=0)
    with pytest.raises(ActionError, match=r"^actions of shape \(3,\); it should be \(2,\)$"):
        vector.step(np.zeros(3))
    for bad in (np.nan, 4, -1, 1.5):
        with pytest.raises(ActionError, match=r"^action \[.*\]: it should be in Discrete\(4\)$"):
            vector.step(np.array([0.0, bad]))
    with pytest.raises(ActionError, match=r"^actions \['0', '1'\]: each should be in Discrete\(4\)$"):
        vector.step(np.array(["0", "1"]))
    with pytest.raises(EnvError, match=r"^reset option 'scenari'; there is only 'scenario'$"):
        vector.reset(options={"scenari": 1})
    with pytest.raises(EnvError, match=r"^autoreset_mode 'never': it should be one of 'NextStep', 'SameStep', 'Disab"):
        make_vector("ClusterRouting-v0", 2, autoreset_mode="never")
