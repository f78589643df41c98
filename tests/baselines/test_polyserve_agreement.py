"""PolyServe's three policies together, with failures, against the reference written from docs/systems/polyserve.md."""

import numpy as np
import pytest

from servegym.baselines.registry import router, scaler, scheduler
from tests.agreement_settings import reference_scheduler
from tests.cluster_scenes import random_incidents, random_scene, run_both, with_extras, with_startup
from tests.reference.polyserve import PolyServe, PolyServeScaler
from tests.seeds import seeds

SETTINGS = {"max_num_batched_tokens": 60, "output_tokens": 12}


def own_scheduler(random: np.random.Generator, total_blocks: int):
    settings = {"max_num_batched_tokens": 60}
    return scheduler("polyserve").with_settings(**settings), reference_scheduler("polyserve", settings, total_blocks)


@pytest.mark.parametrize("seed", seeds(40))
def test_router_scheduler_and_scaler(seed: int) -> None:
    random = np.random.default_rng([seed, 77])
    scene = random_scene(random, router("polyserve").with_settings(**SETTINGS), PolyServe(**SETTINGS), own_scheduler)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, 1, False) for pool in scene.pools]
    interval_s = float(random.choice([2.0**-6, 0.125]))
    scene.scaling = scaler("polyserve").with_settings(interval_s=interval_s)
    scene.reference_scaler = PolyServeScaler(interval_s)
    if seed % 2:
        scene.incidents = random_incidents(random, scene.engines, 1.0, scene.exact)
        scene.until_s = 4.0
    run_both(scene)


@pytest.mark.parametrize("seed", seeds(30))
def test_with_engines_that_take_time_to_start(seed: int) -> None:
    random = np.random.default_rng([seed, 79])
    scene = random_scene(random, router("polyserve").with_settings(**SETTINGS), PolyServe(**SETTINGS), own_scheduler)
    scene.pools = [with_startup(random, pool) for pool in scene.pools]
    interval_s = float(random.choice([2.0**-6, 0.125]))
    scene.scaling = scaler("polyserve").with_settings(interval_s=interval_s)
    scene.reference_scaler = PolyServeScaler(interval_s)
    if seed % 2:
        scene.incidents = random_incidents(random, scene.engines, 1.0, scene.exact)
    scene.until_s = 4.0
    run_both(scene)
