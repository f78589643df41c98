"""What both simulators of clusters are run with, and what must have come of it."""

from typing import Any

import numpy as np

from servegym.baselines.registry import router
from tests import any_router
from tests.cluster_scenes import (
    Scene,
    random_incidents,
    random_scene,
    run_both,
    sensible_scheduler,
    with_extras,
    with_startup,
)
from tests.reference.requests import INF
from tests.reference.routers import ROUTERS


def check_all_served(scene: Scene) -> None:
    outcome = run_both(scene)
    assert outcome is not None
    if scene.until_s == INF:
        log = outcome[1]
        assert all((a is None) != (b is None) for a, b in zip(log.finish_s, log.refused_s, strict=True))


def tiers_of(scene: Scene) -> int:
    return len(np.unique(scene.workload.table["tpot_slo_s"]))


def both_routers(name: str, settings: dict[str, Any]) -> tuple[Any, Any]:
    keywords = {"lam" if key == "lambda" else key: value for key, value in settings.items()}
    return router(name).with_settings(**settings), ROUTERS[name](**keywords)


def any_routing(
    random: np.random.Generator, holds: bool = False, refuses: bool = False
) -> tuple[Any, any_router.AnyEngine]:
    settings = {"names": int(random.choice([0, 2, 5]))}
    if holds:
        settings |= {"holds": int(random.choice([0, 2, 5])), "moves": int(random.choice([0, 1, 4]))}
    if refuses:
        settings["refuses"] = int(random.choice([1, 3, 6]))
    return any_router.ROUTER.with_settings(**settings), any_router.AnyEngine(**settings)


def add_scaler(scene: Scene, random: np.random.Generator, changes: int = 0) -> None:
    """changes: of 12 engines, to how many it gives a role."""
    settings = {
        "interval_s": float(random.choice([2.0**-5, 0.25, 1.0])), "moves": int(random.choice([0, 1, 4])),
        "closes": int(random.choice([0, 2, 6])), "changes": changes,
    }  # fmt: skip
    scene.scaling = any_router.SCALER.with_settings(**settings)
    scene.reference_scaler = any_router.AnyTier(**settings)


def run_both_with_everything(scene: Scene, random: np.random.Generator, scaled: float, troubled: float) -> None:
    """With what pools may have; scaled, troubled: the chances of a scaler and of incidents."""
    tiers = tiers_of(scene)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, tiers, True) for pool in scene.pools]
    if random.random() < scaled:
        add_scaler(scene, random)
    if random.random() < troubled:
        scene.incidents = random_incidents(random, scene.engines, 1.0, scene.exact)
    run_both(scene)


def scene_to_scale(random: np.random.Generator, seed: int) -> Scene:
    """Without tiers, with pools that mostly take time to start; a simple router by the seed."""
    name = ("min-load", "round-robin", "min-tokens")[seed % 3]
    scene = random_scene(random, *both_routers(name, {}), sensible_scheduler)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, 1, False) for pool in scene.pools]
    scene.pools = [with_startup(random, pool) if random.random() < 0.8 else pool for pool in scene.pools]
    return scene


def run_both_scaled(scene: Scene, random: np.random.Generator, seed: int, ours: Any, theirs: Any) -> None:
    """With a scaler and its reference; with incidents where the seed is odd."""
    scene.scaling, scene.reference_scaler = ours, theirs
    if seed % 2:
        scene.incidents = random_incidents(random, scene.engines, 1.0, scene.exact)
    scene.until_s = 4.0
    run_both(scene)
