"""Clusters with features of engines against the slow reference simulator."""

import dataclasses

import numpy as np
import pytest

from servegym.simulator.memory.kv_groups import blocks_needed
from tests.cluster_checks import any_routing, both_routers, check_all_served, run_both_with_everything
from tests.cluster_scenes import (
    Scene,
    Served,
    any_preemptible_scheduler,
    random_scene,
    run_both,
    sensible_scheduler,
    with_extras,
    with_lockstep,
    with_lora,
    with_startup,
    without_tasks,
)
from tests.random_scenarios import random_groups, random_limits, with_adapters, with_turns
from tests.reference.kv_groups import KvGroup
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(60))
def test_agrees_with_preemptible_batches(seed: int) -> None:
    random = np.random.default_rng([seed, 5])
    scene = random_scene(random, *any_routing(random), any_preemptible_scheduler, until_s=1.5)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, 1, False) for pool in scene.pools]
    run_both(scene)


@pytest.mark.parametrize("seed", seeds(60))
def test_agrees_with_lora_adapters(seed: int) -> None:
    """With incidents, a scaler, stores and caches; engines that are off at first."""
    random = np.random.default_rng([seed, 19])
    scene = random_scene(random, *any_routing(random), sensible_scheduler, until_s=2.5, prefixes=seed % 2 == 0)
    scene = dataclasses.replace(scene, workload=with_adapters(random, scene.workload))
    scene.pools = [with_lora(random, pool, scene.exact) for pool in scene.pools]
    if seed % 5 == 0:
        scene.pools = [with_startup(random, pool) for pool in scene.pools]
    run_both_with_everything(scene, random, scaled=0.3, troubled=0.5)


@pytest.mark.parametrize("seed", seeds(30))
@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("lora-affinity", ("affinity_weight", "queue_weight", "kv_weight")),
        ("predicted-cost", ("queue", "stall", "adapter")),
        ("lost-gain", ("queue", "others", "stall")),
    ],
)
def test_agrees_with_lora_adapters_that_routers_look_at(name: str, weights: tuple[str, ...], seed: int) -> None:
    random = np.random.default_rng([seed, 21])
    numbers = dict(zip(weights, random.choice([0.0, 0.5, 3.0], 3), strict=True))
    scene = random_scene(random, *both_routers(name, numbers), sensible_scheduler, until_s=2.5)
    scene = dataclasses.replace(scene, workload=with_adapters(random, scene.workload))
    scene.pools = [with_lora(random, pool, scene.exact) for pool in scene.pools]
    run_both_with_everything(scene, random, scaled=0.0, troubled=0.5)


@pytest.mark.parametrize("seed", seeds(30))
def test_agrees_with_prefix_stores(seed: int) -> None:
    random = np.random.default_rng([seed, 6])
    scene = random_scene(random, *any_routing(random), sensible_scheduler, prefixes=True)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, 1, True) for pool in scene.pools]
    check_all_served(scene)


@pytest.mark.parametrize("seed", seeds(15))
@pytest.mark.parametrize("name", ["kv-aware", "lost-gain", "predicted-cost", "prefix-affinity"])
def test_agrees_when_engines_tell_which_blocks_they_have(name: str, seed: int) -> None:
    random = np.random.default_rng([seed, 14])
    scene = random_scene(random, *both_routers(name, {}), sensible_scheduler, prefixes=True)
    scene.pools = [
        Served(
            dataclasses.replace(pool.ours, prefix_caching=True, kv_events=True),
            dataclasses.replace(pool.theirs, prefix_caching=True, kv_events=True),
        )
        for pool in scene.pools
    ]
    run_both(scene)


@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.parametrize("name", ["kv-aware", "prefix-affinity"])
def test_agrees_when_engines_with_groups_tell_which_blocks_they_have(name: str, seed: int) -> None:
    """A hit needs all groups, for the router too; each pool has groups of its own, or none."""
    random = np.random.default_rng([seed, 18])
    while True:
        scene = random_scene(random, *both_routers(name, {}), sensible_scheduler, prefixes=True)
        if without_tasks(scene) and all(pool.ours.role == "both" for pool in scene.pools):
            break
    longest = int((scene.workload.table["prompt_tokens"] + scene.workload.table["output_tokens"]).max())
    for i, pool in enumerate(scene.pools):
        groups = random_groups(random, True) if random.random() < 0.8 else ()
        blocks = pool.ours.total_blocks
        if groups:
            blocks = max(blocks, int(blocks_needed(groups, longest, True)))
        changed = {"host": None, "prefix_caching": True, "kv_events": True, "total_blocks": blocks}
        scene.pools[i] = Served(
            dataclasses.replace(pool.ours, kv_groups=groups, **changed),
            dataclasses.replace(
                pool.theirs, groups=[KvGroup(**dataclasses.asdict(group)) for group in groups], **changed
            ),
        )
    run_both(scene)


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize("name", ["min-load", "gorouting", "llumnix", "kv-aware"])
def test_agrees_with_async_scheduling(name: str, seed: int) -> None:
    random = np.random.default_rng([seed, len(name), 15])
    check_all_served(asynchronous_scene(random, name, prefixes=seed % 3 == 0))


def asynchronous_scene(random: np.random.Generator, name: str, prefixes: bool) -> Scene:
    while True:
        scene = random_scene(random, *both_routers(name, {}), sensible_scheduler, prefixes=prefixes)
        if without_tasks(scene) and all(pool.ours.role == "both" for pool in scene.pools):
            break
    for_all = {"host": None, "prefix_caching": prefixes}
    scene.pools = [
        Served(
            dataclasses.replace(pool.ours, async_scheduling=True, **for_all),
            dataclasses.replace(pool.theirs, asynchronous=True, **for_all),
        )
        for pool in scene.pools
    ]
    return scene


@pytest.mark.parametrize("seed", seeds(40))
def test_agrees_in_lockstep(seed: int) -> None:
    """With stores, caches, a scaler, incidents, starts, sessions; the router holds and moves, or has a name."""
    random = np.random.default_rng([seed, 17])
    routing = both_routers("min-load", {}) if seed % 4 == 0 else any_routing(random, holds=seed % 4 == 1)
    while True:
        scene = random_scene(random, *routing, sensible_scheduler, until_s=2.5, prefixes=True)
        if without_tasks(scene) and scene.engines > len(scene.pools):
            break
    if seed % 3 == 0:
        workload = with_turns(random, scene.workload)
        scene = dataclasses.replace(scene, predictor=None, workload=workload, limits=random_limits(random))
    scene.pools = [with_lockstep(random, pool) for pool in scene.pools]
    if seed % 5 == 0:
        scene.pools = [with_startup(random, pool) for pool in scene.pools]
    run_both_with_everything(scene, random, scaled=0.3, troubled=0.5)


@pytest.mark.parametrize("seed", seeds(16))
def test_agrees_in_lockstep_with_async_scheduling(seed: int) -> None:
    random = np.random.default_rng([seed, 18])
    scene = asynchronous_scene(random, ("min-load", "kv-aware")[seed % 2], prefixes=seed % 3 == 0)
    scene.pools = [with_lockstep(random, pool) for pool in scene.pools]
    check_all_served(scene)
