"""The scaler target-utilisation against the reference written from docs/systems/target_utilisation.md."""

import numpy as np
import pytest

from servegym.baselines.registry import scaler
from tests.cluster_checks import both_routers
from tests.cluster_scenes import random_incidents, random_scene, run_both, sensible_scheduler, with_extras, with_startup
from tests.reference.target_utilisation import TargetUtilisation
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(60))
def test_engines_of_all_roles_start_and_stop(seed: int) -> None:
    random = np.random.default_rng([seed, 78])
    name = ("min-load", "round-robin", "min-tokens")[seed % 3]
    scene = random_scene(random, *both_routers(name, {}), sensible_scheduler)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, 1, False) for pool in scene.pools]
    scene.pools = [with_startup(random, pool) if random.random() < 0.8 else pool for pool in scene.pools]
    settings = {
        "interval_s": float(random.choice([2.0**-6, 2.0**-4, 0.25])),
        "most_requests": float(random.choice([1, 2, 4])),
        "utilisation": float(random.choice([0.5, 0.75, 1.0])),
        "tolerance": float(random.choice([0.0, 0.1, 0.5])),
        "window_s": float(random.choice([0.0, 2.0**-4, 0.5])),
        "least_engines": int(random.integers(3)),
        "most_engines": int(random.choice([1, 2, 9])),
    }
    scene.scaling, scene.reference_scaler = (
        scaler("target-utilisation").with_settings(**settings),
        TargetUtilisation(**settings),
    )
    if seed % 2:
        scene.incidents = random_incidents(random, scene.engines, 1.0, scene.exact)
    scene.until_s = 4.0
    run_both(scene)
