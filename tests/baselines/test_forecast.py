"""The scaler forecast: against the reference written from docs/systems/forecast.md, and a case worked by hand."""

import numpy as np
import pytest

from servegym.baselines.registry import scaler
from servegym.simulator.records.types import POOL
from tests.cluster_checks import run_both_scaled, scene_to_scale
from tests.reference.forecast import Forecast
from tests.seeds import seeds
from tests.simulator.test_startup import lines, pool, requests, run


@pytest.mark.parametrize("seed", seeds(60))
def test_agrees_with_the_reference(seed: int) -> None:
    random = np.random.default_rng([seed, 79])
    scene = scene_to_scale(random, seed)
    settings = {
        "interval_s": float(random.choice([2.0**-6, 2.0**-4, 0.25])),
        "engine_rate": float(random.choice([2.0, 8.0, 64.0])),
        "ahead_s": float(random.choice([0.0, 2.0**-4, 0.5])),
        "day_s": float(random.choice([0.25, 0.5, 3.0])),
        "bins": int(random.choice([2, 3, 8, 96])),
        "window_s": float(random.choice([0.1, 0.5])),
        "trust": float(random.choice([0.001, 1, 10])),
        "drain_s": float(random.choice([0.05, 1.0, 60.0])),
        "slack": float(random.choice([0.0, 0.25, 1.5])),
        "least_engines": int(random.integers(3)),
        "most_engines": int(random.choice([1, 2, 9])),
    }
    run_both_scaled(scene, random, seed, scaler("forecast").with_settings(**settings), Forecast(**settings))


def test_engines_are_started_before_yesterdays_rush():
    """A day of 20 s in four parts, engines that take 3 s to start, and a request a second for each. Yesterday two came
    in the third part, from 10 s on, at 0.4 a second, and ten (2 a second) in the fourth, from 15 s on.

    The check at 31 s sees what is 3 + 1 s ahead of it: the fourth part begins at 35 s, when both engines are ready.
    """
    policy = scaler("forecast").with_settings(
        interval_s=1.0, engine_rate=1.0, ahead_s=3.0, day_s=20.0, bins=4, window_s=1.0, trust=1e6, drain_s=1e4,
        slack=0.0, least_engines=1,
    )  # fmt: skip
    yesterday = [10.0, 14.0, *np.arange(15.0, 20.0, 0.5)]
    workload = requests(arrival_s=[*yesterday, 45.0], prompt_tokens=1, output_tokens=1)
    simulation = run(workload, pool(3, 3.0), routing="min-load", tiers=(1.0,), scaler=policy)
    today = [line for line in lines(simulation, "moved", "started") if 20.0 < line[0] < 41.0]
    second = [line for line in today if line[2] == 1 and line[4] != POOL]
    assert second[:2] == [(31.0, "moved", 1, -1, 0), (34.0, "started", 1, -1, 0)]
