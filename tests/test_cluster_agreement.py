"""Clusters in the compiled simulator against the slow reference one (tests/reference, written from docs/ alone)."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from servegym.baselines.registry import router, router_names, scheduler
from servegym.simulator.inputs.cluster import Link
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.workload import Workload
from tests import any_router
from tests.agreement_settings import reference_scheduler
from tests.cluster_checks import (
    add_scaler,
    any_routing,
    both_routers,
    check_all_served,
    run_both_with_everything,
    tiers_of,
)
from tests.cluster_scenes import (
    Scene,
    Served,
    any_preemptible_scheduler,
    any_scheduler,
    random_incidents,
    random_pool,
    random_scene,
    run_both,
    sensible_scheduler,
    whole_latency,
    with_extras,
    with_prefixes,
    with_role_changes,
    with_startup,
)
from tests.random_scenarios import random_front_end, random_limits, with_turns
from tests.reference.routers import ROUTERS
from tests.reference.simulator import Pool
from tests.seeds import every_case, seeds

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "round-robin": [{}],
    "random": [{"seed": 7}],
    "min-load": [{}],
    "min-tokens": [{}],
    "polyserve": [
        {"max_num_batched_tokens": 60, "output_tokens": 8},
        {"max_num_batched_tokens": 24, "output_tokens": 40, "memory_reserve": 0.0},
        {"max_num_batched_tokens": 100, "memory_reserve": 0.3},
        {"max_num_batched_tokens": 60, "output_tokens": 8, "margin": 0.2},
    ],
    "silo": [{}, {"bound_1_s": 0.03, "bound_2_s": 0.5, "bound_3_s": 1.0}],
    "llumnix": [{}],
    "predicted-cost": [
        {},
        {"queue": 0.5, "late": 0.2, "sharpness": 20.0, "pace": 3.0, "pace_limit": 0.2, "load": 1.0},
        {"queue": 0.0, "late": 0.0, "pace_barrier": 50.0, "memory_limit": 0.2, "memory_barrier": 40.0},
        {"refuse": 0.4},
    ],
    "lost-gain": [
        {},
        {"others": 3.0, "own": 0.5, "pace_limit": 0.3, "pace_sharpness": 5.0, "window_s": 0.2, "load": 1.0},
        {"late": 0.2, "sharpness": 20.0, "queue": 0.3, "pace": 4.0, "memory_limit": 0.2, "session": 4.0},
        {"refuse": 0.7, "pace_limit": 0.3},
    ],
    "prefix-affinity": [{}, {"refuse": 1.0}],
    "kv-aware": [{}, {"overlap_weight": 3.0}, {"overlap_weight": 0.25, "temperature": 0.5, "seed": 5}],
    "session-hash": [{}, {"seed": 3}],
    "lora-affinity": [{}, {"queue_weight": 3.0, "kv_weight": 0.5}, {"queue_weight": 0.0}],
    "min-cycle-time": [{"max_num_batched_tokens": 100}, {"max_num_batched_tokens": 2}],
    "gorouting": [
        {},
        {"decodes": "recurring", "mu": 0.0, "eta": 0.01},
        {"decodes": "recurring", "fallback": "least-loaded", "alpha": 0.4, "mu": 0.05, "lambda": 0.3},
        {"fallback": "least-loaded", "alpha": 0.0, "mu": 0.02, "lambda": 0.1, "eta": 0.02, "local_order": "arrival"},
        {"alpha": 0.5, "mu": 0.05, "local_order": "priority"},
        {"alpha": 0.5, "mu": 0.05, "local_order": "slide-batching"},
        {"fallback": "least-loaded", "lambda": 0.3, "local_order": "slide-batching"},
    ],
}
CASES_OF_ROUTERS = [(name, settings) for name, variants in SETTINGS.items() for settings in variants]


def test_every_registered_router_is_checked() -> None:
    assert set(SETTINGS) == set(router_names()) == set(ROUTERS)


@every_case(CASES_OF_ROUTERS, 10)
def test_agrees_with_the_reference(name: str, settings: dict[str, Any], seed: int) -> None:
    random = np.random.default_rng([seed, len(name), len(settings)])
    check_all_served(random_scene(random, *both_routers(name, settings), sensible_scheduler))


@every_case(CASES_OF_ROUTERS, 6)
def test_agrees_with_the_reference_when_engines_fail(name: str, settings: dict[str, Any], seed: int) -> None:
    """With tiers, prefix stores and preemptible batches too."""
    random = np.random.default_rng([seed, len(name), len(settings), 11])
    schedulers = any_preemptible_scheduler if seed % 2 else sensible_scheduler
    scene = random_scene(random, *both_routers(name, settings), schedulers, until_s=1.5, prefixes=True)
    tiers = tiers_of(scene)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, tiers, True) for pool in scene.pools]
    scene.incidents = random_incidents(random, scene.engines, 1.0, scene.exact)
    run_both(scene)


@pytest.mark.parametrize("seed", seeds(40))
def test_a_router_knows_the_same(seed: int) -> None:
    random = np.random.default_rng([seed, 2])
    check_all_served(random_scene(random, *any_routing(random), sensible_scheduler))


@pytest.mark.parametrize("seed", [5000, 5001, 5083, 5210])  # the last two: a line that is not tried has memory by then
def test_a_shared_link_to_several_pools(seed: int) -> None:
    random = np.random.default_rng([seed, 2])
    check_all_served(random_scene(random, *any_routing(random), sensible_scheduler, shared=True))


@pytest.mark.parametrize("seed", seeds(30))
def test_agrees_under_any_limits(seed: int) -> None:
    # Two requests may take memory from each other forever when ranks change at random.
    random = np.random.default_rng([seed, 3])
    run_both(random_scene(random, any_router.ROUTER, any_router.AnyEngine(), any_scheduler, until_s=1.5))


@pytest.mark.parametrize("seed", seeds(40))
def test_agrees_when_a_router_holds_and_moves(seed: int) -> None:
    random = np.random.default_rng([seed, 7])
    scene = random_scene(random, *any_routing(random, holds=True), sensible_scheduler)
    tiers = tiers_of(scene)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, tiers, False) for pool in scene.pools]
    run_both(scene)


@pytest.mark.parametrize("seed", seeds(60))
def test_agrees_when_a_router_refuses(seed: int) -> None:
    """With sessions and a front end, by turns, and with everything else at once."""
    random = np.random.default_rng([seed, 17])
    routing = any_routing(random, holds=bool(random.random() < 0.5), refuses=True)
    scene = random_scene(random, *routing, any_preemptible_scheduler, until_s=2.5, prefixes=True)
    if seed % 2:
        workload = with_prefixes(random, with_turns(random, scene.workload))
        scene = dataclasses.replace(scene, predictor=None, workload=workload, limits=random_limits(random))
    if seed % 4 > 1:
        scene = dataclasses.replace(scene, predictor=None, front_end=random_front_end(random))
    run_both_with_everything(scene, random, scaled=0.3, troubled=0.4)


@pytest.mark.parametrize("seed", seeds(60))
def test_agrees_with_a_scaler(seed: int) -> None:
    random = np.random.default_rng([seed, 8])
    scene = random_scene(random, *any_routing(random, holds=True), sensible_scheduler, until_s=4.0)
    tiers = tiers_of(scene)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, tiers, False) for pool in scene.pools]
    add_scaler(scene, random)
    run_both(scene)


@pytest.mark.parametrize("seed", seeds(60))
def test_agrees_when_engines_take_time_to_start(seed: int) -> None:
    """With a scaler that knows no better than to stop them in the middle of their work, and failures."""
    random = np.random.default_rng([seed, 13])
    routing = any_routing(random, holds=bool(random.random() < 0.5))
    scene = random_scene(random, *routing, any_preemptible_scheduler, until_s=4.0, prefixes=True)
    tiers = tiers_of(scene)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, tiers, True) for pool in scene.pools]
    scene.pools = [with_startup(random, pool) if random.random() < 0.8 else pool for pool in scene.pools]
    add_scaler(scene, random)
    if random.random() < 0.5:
        scene.incidents = random_incidents(random, scene.engines, 1.0, scene.exact)
    run_both(scene)


@pytest.mark.parametrize("seed", seeds(60))
def test_agrees_when_engines_change_their_roles(seed: int) -> None:
    """By turns with engines that take time to start, failures, preemptible batches, sessions; the router may hold and
    move engines."""
    random = np.random.default_rng([seed, 19])
    routing = any_routing(random, holds=seed % 2 == 1)
    schedulers = any_preemptible_scheduler if seed % 4 == 3 else sensible_scheduler
    while True:
        scene = random_scene(random, *routing, schedulers, until_s=4.0)
        if any(pool.ours.role == "decode" for pool in scene.pools):
            break
    tiers = tiers_of(scene)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, tiers, False) for pool in scene.pools]
    if seed % 3 == 0:
        scene.pools = [with_startup(random, pool) for pool in scene.pools]
    scene.pools = [with_role_changes(random, pool) for pool in scene.pools]
    if seed % 5 == 0:
        workload = with_turns(random, scene.workload)
        scene = dataclasses.replace(scene, predictor=None, workload=workload, limits=random_limits(random))
    add_scaler(scene, random, changes=(1, 4, 12)[seed % 3])
    if seed % 3 == 1:
        scene.incidents = random_incidents(random, scene.engines, 1.0, scene.exact)
    run_both(scene)


@pytest.mark.parametrize("seed", seeds(60))
def test_agrees_when_engines_fail(seed: int) -> None:
    random = np.random.default_rng([seed, 9])
    scene = random_scene(random, *any_routing(random), sensible_scheduler, until_s=4.0)
    scene.incidents = random_incidents(random, scene.engines, 1.0, scene.exact)
    run_both(scene)


@pytest.mark.parametrize("seed", seeds(30))
def test_agrees_with_one_engine(seed: int) -> None:
    """Which fails and returns, with preemptible batches and a prefix store; its router is not asked."""
    random = np.random.default_rng([seed, 12])
    scene = random_scene(random, *any_routing(random), any_preemptible_scheduler, until_s=1.5, prefixes=True)
    pool = random_pool(random, "both", 1, scene.workload, scene.exact, any_preemptible_scheduler)
    scene.pools = [with_extras(random, pool, scene.workload, scene.exact, 1, True)]
    incidents = random_incidents(random, 1, 1.0, scene.exact)
    scene.incidents = tuple(incident for incident in incidents if incident.kind != "drain")
    run_both(scene)


@pytest.mark.parametrize("seed", seeds(100))
def test_agrees_with_everything_at_once(seed: int) -> None:
    random = np.random.default_rng([seed, 10])
    routing = any_routing(random, holds=bool(random.random() < 0.5))
    scene = random_scene(random, *routing, any_preemptible_scheduler, until_s=1.5, prefixes=True)
    run_both_with_everything(scene, random, scaled=0.6, troubled=0.7)


@pytest.mark.parametrize("seed", seeds(100))
def test_agrees_with_sessions_and_closed_loops(seed: int) -> None:
    """And with everything else at once."""
    random = np.random.default_rng([seed, 13])
    routing = any_routing(random, holds=bool(random.random() < 0.3))
    scene = random_scene(random, *routing, any_preemptible_scheduler, until_s=2.5)
    workload = with_turns(random, scene.workload)
    scene = dataclasses.replace(scene, predictor=None, workload=workload, limits=random_limits(random))
    if random.random() < 0.5:
        scene.workload = with_prefixes(random, scene.workload)
    run_both_with_everything(scene, random, scaled=0.3, troubled=0.4)


@pytest.mark.parametrize("seed", seeds(100))
def test_agrees_behind_a_front_end(seed: int) -> None:
    """With everything else at once; half of the times with sessions and closed loops."""
    random = np.random.default_rng([seed, 15])
    routing = any_routing(random, holds=bool(random.random() < 0.3))
    scene = random_scene(random, *routing, any_preemptible_scheduler, until_s=2.5, prefixes=True)
    scene = dataclasses.replace(scene, predictor=None, front_end=random_front_end(random))
    if random.random() < 0.5:
        scene.workload = with_prefixes(random, with_turns(random, scene.workload))
        scene.limits = random_limits(random)
    run_both_with_everything(scene, random, scaled=0.4, troubled=0.4)


@every_case(CASES_OF_ROUTERS, 3)
def test_routers_agree_behind_a_front_end(name: str, settings: dict[str, Any], seed: int) -> None:
    random = np.random.default_rng([seed, len(name), len(settings), 16])
    scene = random_scene(random, *both_routers(name, settings), sensible_scheduler)
    scene = dataclasses.replace(scene, predictor=None, front_end=random_front_end(random))
    if seed:
        scene = dataclasses.replace(scene, workload=with_turns(random, scene.workload), limits=random_limits(random))
    check_all_served(scene)


@every_case(CASES_OF_ROUTERS, 4)
def test_routers_agree_with_sessions_and_closed_loops(name: str, settings: dict[str, Any], seed: int) -> None:
    random = np.random.default_rng([seed, len(name), len(settings), 14])
    scene = random_scene(random, *both_routers(name, settings), sensible_scheduler)
    workload = with_turns(random, scene.workload)
    scene = dataclasses.replace(scene, predictor=None, workload=workload, limits=random_limits(random))
    if seed % 2:
        scene.workload = with_prefixes(random, workload)
        tiers = tiers_of(scene)
        scene.pools = [with_extras(random, pool, scene.workload, scene.exact, tiers, True) for pool in scene.pools]
    check_all_served(scene)


def test_queues_and_records_grow() -> None:
    """More requests at one instant than an engine's queue, its record and its line have room for at first."""
    random = np.random.default_rng(4)
    n = 700
    workload = Workload.from_columns(
        {
            "arrival_s": np.zeros(n), "prompt_tokens": random.integers(1, 20, n),
            "output_tokens": random.integers(1, 4, n), "ttft_slo_s": 0.3, "tpot_slo_s": 0.05,
        }
    )  # fmt: skip
    pools = []
    for role in ("prefill", "decode", "both"):
        (estimator, fit), (device, real) = whole_latency(random, False), whole_latency(random, False)
        policy, reference_policy = scheduler("vllm-v1"), reference_scheduler("vllm-v1", {}, 200)
        ours = Deployment(device, estimator, 200, 1, 16, 0.0, role=role, scheduler=policy)
        pools.append(Served(ours, Pool(1, 16, 200, 0.0, reference_policy, real, fit, role)))
    routing, theirs = router("min-tokens"), ROUTERS["min-tokens"]()
    check_all_served(Scene(workload, pools, routing, theirs, True, Link(2.0, 2.0**17), 2.0**-7))
