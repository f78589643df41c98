"""The scaler target-utilisation against the reference written from docs/systems/target_utilisation.md."""

import numpy as np
import pytest

from servegym.baselines.registry import scaler
from tests.cluster_checks import run_both_scaled, scene_to_scale
from tests.reference.target_utilisation import TargetUtilisation
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(60))
def test_engines_of_all_roles_start_and_stop(seed: int) -> None:
    random = np.random.default_rng([seed, 78])
    scene = scene_to_scale(random, seed)
    settings = {
        "interval_s": float(random.choice([2.0**-6, 2.0**-4, 0.25])),
        "most_requests": float(random.choice([1, 2, 4])),
        "utilisation": float(random.choice([0.5, 0.75, 1.0])),
        "tolerance": float(random.choice([0.0, 0.1, 0.5])),
        "window_s": float(random.choice([0.0, 2.0**-4, 0.5])),
        "least_engines": int(random.integers(3)),
        "most_engines": int(random.choice([1, 2, 9])),
    }
    run_both_scaled(
        scene, random, seed, scaler("target-utilisation").with_settings(**settings), TargetUtilisation(**settings)
    )
