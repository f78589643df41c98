"""What docs/training.md does with Stable-Baselines3 learns something: minutes, so `make learning` runs it."""

import os
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from servegym.envs.vector import ServingVectorEnv
from servegym.evaluation.intervals import student_interval

PAGE = Path(__file__).parents[2] / "docs/training.md"
EPISODES = 32
SEEDS = (0, 1, 2)

learns = pytest.mark.skipif("SERVEGYM_LEARNING" not in os.environ, reason="takes minutes: make learning")


def code_of(steps: int | None = None, seed: int = 0) -> str:
    """The block of the page, with another seed, and other steps if asked for."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (code,) = [code for code in blocks if "Sb3VecEnv(" in code and "ENVIRONMENT" in code]
    assert code.count("seed=0") == 1 and len(re.findall(r"model\.learn\([\d_]+\)", code)) == 1
    code = code.replace("seed=0", f"seed={seed}")
    return code if steps is None else re.sub(r"model\.learn\([\d_]+\)", f"model.learn({steps})", code)


def ratios(envs: ServingVectorEnv, model: object | None) -> np.ndarray:
    """float64[n]: TDG ratios of the first episode of each, under a model or the base policy."""
    observations, infos = envs.reset(seed=50_000)
    found = np.full(envs.num_envs, np.nan)
    while np.isnan(found).any():
        actions = infos["base_action"] if model is None else model.predict(observations, deterministic=True)[0]
        observations, _, terminated, truncated, infos = envs.step(actions)
        for i in np.flatnonzero((terminated | truncated) & np.isnan(found)):
            found[i] = infos["final_info"]["tdg_ratio"][i]
    return found


@pytest.mark.slow
def test_the_code_of_the_page_runs() -> None:
    pytest.importorskip("stable_baselines3")
    names: dict = {}
    exec(code_of(steps=1), names)
    assert names["model"].num_timesteps > 0


@learns
@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_ahead_of_its_base_on_held_out_episodes(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict = {}
    exec(code_of(seed=seed), names)
    envs = gym.make_vec(
        names["ENVIRONMENT"], EPISODES, vectorization_mode="vector_entry_point", split="test", **names["overrides"]
    ).unwrapped
    base, learned = ratios(envs, None), ratios(envs, names["model"])
    more = student_interval(learned - base)
    with capsys.disabled():
        print(f"\nseed {seed}: base {base.mean():.4f}, learned {learned.mean():.4f}, {more.in_words()}")
    assert more.low > 0
