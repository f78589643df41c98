"""Networks of one's own as compiled policies: they decide as the model does, wherever it was made."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize
from torch import nn

import servegym
from servegym.baselines.artifact.files import load_policy
from servegym.envs.sb3 import Sb3VecEnv
from servegym.errors import ServegymError, TrainingError
from servegym.evaluation.panels.evaluation import Evaluation
from servegym.evaluation.panels.panel import load_panel

WORDS = {"load": 1.4, "requests": 20}
CASES = {"ppo": PPO, "sac": SAC, "td3": TD3}


def made(name: str = "EngineBatching", **more: Any) -> gym.Env:
    return gym.make(f"servegym:{name}-v0", **WORDS, **more)


@pytest.mark.parametrize("algorithm", CASES)
def test_a_model_of_stable_baselines3_decides_the_same_as_a_policy(algorithm: str, tmp_path: Path) -> None:
    env = made()
    model = CASES[algorithm]("MlpPolicy", env, device="cpu", seed=3, policy_kwargs={"net_arch": [8, 8]})
    with torch.no_grad():
        for layer in model.policy.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=1.0)
    policy = servegym.export_sb3(model, env, tmp_path / "mine.json")
    observation, info = env.reset(seed=1)
    scenario, done = env.unwrapped.simulation.scenario, False  # type: ignore[attr-defined]
    while not done:
        action = model.predict(observation, deterministic=True)[0]
        observation, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated
    result = servegym.Simulation(dataclasses.replace(scenario, scheduler=policy)).run()
    assert result.summary["tdg_ratio"] == pytest.approx(info["tdg_ratio"], abs=1e-9)
    assert load_policy(tmp_path / "mine.json").kind == "scheduler"


def test_a_model_that_scores_engines_begins_as_the_base_and_becomes_a_router(tmp_path: Path) -> None:
    env = made("ClusterRouting", engines=3)
    policy, arguments = servegym.sb3_policy(env, hidden=[4])
    model = MaskablePPO(policy, env, device="cpu", seed=3, policy_kwargs=arguments)

    def episode() -> tuple[list[bool], dict[str, Any]]:
        observation, info = env.reset(seed=1)
        like_base, done = [], False
        while not done:
            action = int(model.predict(observation, action_masks=info["action_mask"], deterministic=True)[0])
            like_base.append(action == info["base_action"])
            observation, _, terminated, truncated, info = env.step(action)
            done = terminated or truncated
        return like_base, info

    like_base, _ = episode()
    assert all(like_base)
    with torch.no_grad():
        for layer in model.policy.action_net.layers:
            nn.init.normal_(layer.weight, std=1.0)
    router = servegym.export_sb3(model, env, tmp_path / "mine.json")
    like_base, info = episode()
    assert not all(like_base)
    result = servegym.Simulation(dataclasses.replace(env.unwrapped.simulation.scenario, router=router)).run()  # type: ignore[attr-defined]
    assert result.summary["tdg_ratio"] == pytest.approx(info["tdg_ratio"], abs=1e-9)
    assert servegym.sb3_policy(made())[0] is not policy  # a Box has no masks


def test_decisions_of_a_loop_of_ones_own_earn_what_their_requests_gain() -> None:
    env = gym.make_vec("servegym:ClusterRouting-v0", num_envs=2, vectorization_mode="vector_entry_point", **WORDS)
    policy, arguments = servegym.sb3_policy(env, hidden=[4])
    model = MaskablePPO(policy, Sb3VecEnv(env, 3.0), policy_kwargs=arguments, n_steps=50, device="cpu", seed=3)
    servegym.credit_requests(model, paired=False)
    assert model.get_env()._seeds == [3, 4]  # type: ignore[union-attr]  # so that the same seed is the same training
    model.learn(100)  # one rollout: two episodes of 20 requests in each environment, and the beginning of a third
    earned = model.rollout_buffer.rewards
    assert earned.shape == (50, 2)
    gained = sorted(episode["r"] for episode in list(model.ep_info_buffer)[:2])
    assert sorted(earned[:20].sum(axis=0)) == pytest.approx([3.0 * ratio for ratio in gained], abs=1e-5)
    for other, kind, words in (
        (made("ClusterRouting"), MaskablePPO, r"Sb3VecEnv\(gym.make_vec"), (made(), SAC, "PPO or MaskablePPO"),
    ):  # fmt: skip
        with pytest.raises(TrainingError, match=words):
            servegym.credit_requests(kind("MlpPolicy", other, device="cpu"))
    batches = gym.make_vec("servegym:EngineBatching-v0", num_envs=1, vectorization_mode="vector_entry_point", **WORDS)
    with pytest.raises(TrainingError, match="EngineBatching decides about no single requests"):
        servegym.credit_requests(PPO("MlpPolicy", Sb3VecEnv(batches), device="cpu"))
    with pytest.raises(TrainingError, match=r"horizon_s nan, trace_s 1\.0; both should be above 0"):
        servegym.credit_requests(model, horizon_s=float("nan"))


def test_what_it_was_trained_on_is_written_and_looked_at(tmp_path: Path) -> None:
    env = made()
    module = nn.Sequential(
        nn.Linear(env.observation_space.shape[0], 4), nn.ReLU(), nn.Linear(4, env.action_space.shape[0])
    )
    servegym.export_module(module, env, tmp_path / "mine.json")
    evaluation = Evaluation(load_panel("score"), (f"learned:{tmp_path / 'mine.json'}", "edf"))
    seen = next(one for one in evaluation.trained_on.values() if one is not None)
    assert seen.seeds == ((0, 899_999),) and seen.loads == (1.4,)


def test_the_code_of_the_page_writes_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/training.md").read_text("utf-8")
    codes = [code for code in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "servegym" in code]
    export, of_slots = (next(code for code in codes if words in code) for words in ("export_sb3(", "sb3_policy("))
    monkeypatch.chdir(tmp_path)
    exec(export, {})
    assert load_policy("mine.json").base is not None
    names: dict[str, Any] = {}
    exec(of_slots, names)
    assert servegym.export_sb3(names["model"], names["env"], "mine.json").kind == "router"
    exec(next(code for code in codes if "credit_requests(" in code), {})


class Doubled(gym.Wrapper):
    """A wrapper of one's own that repeats each observation."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        size = env.observation_space.shape[0]  # type: ignore[index]
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2 * size,), np.float32)


@pytest.mark.parametrize("wrap", [
    lambda env: gym.wrappers.RescaleAction(env, -3.0, 3.0),
    gym.wrappers.NormalizeObservation,
    lambda env: gym.wrappers.TransformAction(env, lambda action: -action, env.action_space),
    lambda env: gym.wrappers.FrameStackObservation(env, 2),
    Doubled,
])  # fmt: skip
def test_wrappers_that_change_decisions_are_refused(wrap: Any, tmp_path: Path) -> None:
    env = wrap(made())
    module = nn.Linear(made().observation_space.shape[0], env.action_space.shape[0])
    with pytest.raises(TrainingError, match=f"{type(env).__name__} changes observations or actions"):
        servegym.export_module(module, env, tmp_path / "mine.json")


def test_a_model_that_was_trained_in_a_wrapper_is_refused_with_another_environment_too(tmp_path: Path) -> None:
    model = PPO("MlpPolicy", gym.wrappers.RescaleAction(made(), -3.0, 3.0), device="cpu")
    with pytest.raises(TrainingError, match="RescaleAction changes"):
        servegym.export_sb3(model, made(), tmp_path / "mine.json")


def test_wrappers_that_leave_decisions_as_they_are_are_passed_over(tmp_path: Path) -> None:
    wrapped = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.NormalizeReward(made()))
    envs = VecMonitor(VecNormalize(DummyVecEnv([lambda: wrapped]), norm_obs=False))
    model = PPO("MlpPolicy", envs, device="cpu")
    assert servegym.export_sb3(model, envs, tmp_path / "mine.json").kind == "scheduler"
    clipped = gym.wrappers.FlattenObservation(gym.wrappers.ClipAction(made(observation="dict")))
    assert servegym.export_sb3(model, clipped, tmp_path / "mine.json").kind == "scheduler"


def test_what_is_no_policy_is_told(tmp_path: Path) -> None:
    env, path = made(), tmp_path / "mine.json"
    inputs, outputs = env.observation_space.shape[0], env.action_space.shape[0]

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(inputs, outputs)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + 1.0

    for module, words in (
        (
            nn.Sequential(nn.Linear(inputs, 3), nn.Sigmoid(), nn.Linear(3, outputs)),
            "Linear, Sigmoid, Linear; it should",
        ),
        (nn.Sequential(nn.Linear(inputs, 3), nn.Linear(3, outputs)), "it should be Linear layers"),
        (nn.Linear(inputs + 1, outputs), f"takes {inputs + 1} numbers"),
        (Around(), "is not its layers"),
    ):
        with pytest.raises(TrainingError, match=words):
            servegym.export_module(module, env, path)
    routing = made("ClusterRouting", engines=3)
    with pytest.raises(TrainingError, match=r"scores each slot .* servegym.sb3_policy\(env\)"):
        servegym.export_sb3(PPO("MlpPolicy", routing, device="cpu"), routing, path)
    normalised = VecNormalize(DummyVecEnv([made]))
    with pytest.raises(TrainingError, match="VecNormalize"):
        servegym.export_sb3(PPO("MlpPolicy", normalised, device="cpu"), normalised, path)
    with pytest.raises(TrainingError, match="PrefillPreemption: no compiled policy"):
        servegym.export_module(nn.Linear(1, 1), made("PrefillPreemption"), path)
    scenario = env.reset(seed=0) and env.unwrapped.simulation.scenario  # type: ignore[attr-defined]
    fixed = gym.make("servegym:EngineBatching-v0", scenario=scenario)
    with pytest.raises(ServegymError, match="give trained_on="):
        servegym.export_module(nn.Linear(inputs, outputs), fixed, path)
    assert not path.exists()
