"""A policy that raises within an environment's step ends it with the policy's name, file and line."""

import numpy as np
import pytest

from servegym.baselines.registry import router
from servegym.errors import PolicyError
from servegym.simulator.inputs.scenario import Scenario
from tests.envs.small import make
from tests.simulator.hostile import HOSTILE
from tests.simulator.scenes import requests
from tests.simulator.test_cluster_transfers import pool


@pytest.mark.parametrize(("way", "words"), [
    ("raise", "failed: hostile.py, line [0-9]+, in hostile: ValueError: had enough"),
    ("chunk_tokens", "set chunk_tokens to -1; it should be 1 or more"),
])  # fmt: skip
def test_what_a_scheduler_raises_or_writes_ends_the_step(way: str, words: str) -> None:
    workload = requests(arrival_s=np.arange(30.0), prompt_tokens=[3] * 30, output_tokens=[2] * 30)
    policy = HOSTILE.with_settings(way=way, value=-1, since=2)
    scenario = Scenario(workload, pool("both", 3), policy, router=router("min-load"))
    env = make("ClusterRouting-v0", scenario, engines=3)
    env.reset(seed=0)
    with pytest.raises(PolicyError, match=f"scheduler hostile:way={way}.* {words}"):
        for _ in range(40):
            env.step(0)
