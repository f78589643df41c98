"""Episodes with noise and a corrected estimator of another form than the linear: the same bytes, however often."""

import numpy as np
import pytest

from servegym.envs.agents import BaseAgent, RandomAgent
from servegym.latency_models.profile import load_profile
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.cluster import cluster_of
from tests.envs.small import IDS, SMALL, make, outcome_bytes, played, simulated

DEVICES = ("a100-qwen3-30b-a3b", "a5000-qwen1.5-7b")
forms = {load_profile(name).estimator.form for name in DEVICES}


def test_the_devices_have_estimators_of_other_forms() -> None:
    assert forms == {"table", "slowest"}


def tiers_of(source: ServingSpec) -> int:
    scenario = source(np.random.default_rng(0))
    return len(cluster_of(scenario.deployment).tiers_for(scenario.workload))


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", IDS)
def test_an_episode_is_the_same_again(name: str, device: str) -> None:
    source = SMALL[name].source.replaced(
        device=(device,), noise=0.3, shift_s=1.0, shift_ratio=2.0, correction=Correction(0.5, 2),
    )  # fmt: skip
    # On a slow device two TPOT SLOs of the recipe are raised to one.
    arguments = {"tiers": tiers_of(source)} if name == "TierScaling-v0" else {}
    env = make(name, source, **arguments)
    first = played(env, RandomAgent(env.action_space, 5), seed=3)
    assert (env.simulation.arrays.engines["estimate_scale"] != 1.0).any()
    played(env, RandomAgent(env.action_space, 6), seed=4)
    assert played(env, RandomAgent(env.action_space, 5), seed=3) == first, "after another episode"
    other = make(name, source, **arguments)
    assert played(other, RandomAgent(other.action_space, 5), seed=3) == first, "in another environment"
    played(env, BaseAgent(), seed=3)
    assert outcome_bytes(env.simulation.arrays) == simulated(env, env.simulation.scenario)
