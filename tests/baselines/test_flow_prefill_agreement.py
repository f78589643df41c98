"""FlowPrefill in both simulators where its batches can be suspended: cramped clusters whose devices have operators."""

from typing import Any

import numpy as np
import pytest

from servegym.baselines.registry import router, scheduler
from servegym.simulator.policies.policy import Policy
from tests.agreement_settings import SETTINGS, reference_scheduler
from tests.cluster_scenes import random_scene, run_both, with_extras
from tests.reference.requests import INF
from tests.reference.routers import ROUTERS
from tests.seeds import seeds


def any_flow_prefill(random: np.random.Generator, total_blocks: int) -> tuple[Policy, Any]:
    variants = SETTINGS["flow-prefill"]
    settings = variants[int(random.integers(len(variants)))]
    return scheduler("flow-prefill").with_settings(**settings), reference_scheduler(
        "flow-prefill", settings, total_blocks
    )


@pytest.mark.parametrize("seed", seeds(60))
def test_agrees_with_the_reference_and_ends(seed: int) -> None:
    random = np.random.default_rng([seed, 11])
    scene = random_scene(random, router("min-load"), ROUTERS["min-load"](), any_flow_prefill)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, 1, False) for pool in scene.pools]
    outcome = run_both(scene)
    assert outcome is not None
    if scene.until_s == INF:
        assert None not in outcome[1].finish_s
