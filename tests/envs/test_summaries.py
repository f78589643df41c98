"""The summary in the last info of an episode: the figures of its result, in environments of every kind."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from servegym.envs.sb3 import Sb3VecEnv
from tests.envs.small import SMALL


def last_info(env: Any) -> dict[str, Any]:
    _, info = env.reset(seed=5)
    over = False
    while not over:
        assert "summary" not in info
        *_, terminated, truncated, info = env.step(info["base_action"])
        over = terminated or truncated
    return info


@pytest.mark.parametrize("name", list(SMALL))
def test_the_last_info_has_figures_of_the_result(name):
    small = SMALL[name]
    env = gym.make(f"servegym:{name}", scenario=small.source, **small.arguments)
    summary, info = env.unwrapped.result, last_info(env)
    of = summary().summary
    assert info["summary"]["slo_attainment"] == of["slo_attainment"]
    assert info["summary"]["gain_ratio"] == of["gain_ratio"] == pytest.approx(info["tdg_ratio"])
    assert info["summary"]["ttft_s_p99"] == of["ttft_s"]["p99"]
    assert info["summary"]["engines_in_service"] == of["cost_engine_s"] / of["span_s"]
    priorities = of["starved_by_priority"]
    assert info["summary"]["starved_high_priority"] == priorities[min(priorities)]
    assert math.isnan(info["summary"]["starved_low_priority"]) == (len(priorities) == 1)
    assert all(isinstance(value, float) for value in info["summary"].values())
    again = last_info(env)["summary"]
    assert again == pytest.approx(info["summary"], nan_ok=True)


def test_vectors_and_stable_baselines_have_the_same():
    name, small = "EngineBatching-v0", SMALL["EngineBatching-v0"]
    alone = last_info(gym.make(f"servegym:{name}", scenario=small.source, **small.arguments))["summary"]
    vector = gym.make_vec(
        f"servegym:{name}", num_envs=2, vectorization_mode="vector_entry_point", scenario=small.source,
        **small.arguments,
    ).unwrapped  # fmt: skip
    for wrapped in (None, Sb3VecEnv(vector)):
        _, infos = vector.reset(seed=5)
        found = None
        while found is None:
            base = vector.interface.as_actions(vector.episode_batch.bases)
            if wrapped is None:
                *_, infos = vector.step(base)
                if infos.get("_final_info", np.zeros(1))[0]:
                    assert infos["final_info"]["_summary"].tolist() == infos["_final_info"].tolist()
                    found = {key: of[0] for key, of in infos["final_info"]["summary"].items() if key[0] != "_"}
            else:
                wrapped.step_async(base)
                found = wrapped.step_wait()[3][0].get("summary")
        assert found == pytest.approx(alone, nan_ok=True)
