"""The compiled simulator against the slow reference one in tests/reference, written from the pages of rules alone.

Decisions are equal; times agree within 1e-9 s. Workloads are random, small and cramped: few KV blocks, ties, bursts.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from servegym.baselines.registry import scheduler, scheduler_names
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.memory.kv_groups import blocks_needed
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.simulation import Simulation
from tests import random_scheduler
from tests.agreement_settings import CASES, SETTINGS, is_a_score, reference_scheduler
from tests.cluster_log import compare_adapters, compare_caches, compare_clients, compare_iterations, engine_finish_s
from tests.random_scenarios import (
    RandomPredictor,
    random_adapters,
    random_device,
    random_drift,
    random_front_end,
    random_groups,
    random_host,
    random_latency,
    random_limits,
    random_speculation,
    random_workload,
    reference_adapters,
    reference_rows,
    reference_speculation,
    with_adapters,
    with_prefixes,
    with_turns,
)
from tests.reference import front_end as reference_front_end
from tests.reference import simulator as reference
from tests.reference.disturbances import Drift
from tests.reference.engines import HostMemory as ReferenceHostMemory
from tests.reference.kv_groups import KvGroup
from tests.seeds import cases_and_seeds, seeds


def test_every_registered_scheduler_that_is_no_score_is_checked() -> None:
    ranked = {name for name in scheduler_names() if not is_a_score(scheduler(name))}
    assert ranked <= set(SETTINGS) <= set(scheduler_names())
    assert {"slide-batching", "qoserve"} <= ranked


Features = Callable[[int], dict[str, bool]]  # arguments of `check`, by seed
# How many scenarios each case of a scheduler has, and what they are drawn with beside the seed.
OF_SCHEDULERS: dict[str, tuple[int, list[int], Features]] = {
    "plain": (12, [], lambda seed: {}),
    "sessions": (4, [13], lambda seed: {"sessions": True}),
    "caching": (3, [2], lambda seed: {"caching": True, "sessions": seed == 1}),
    "front-end": (3, [4], lambda seed: {"behind": True, "sessions": seed > 0}),
    "speculation": (3, [5], lambda seed: {"speculating": True, "caching": seed == 1, "behind": seed == 2}),
    "async": (
        3, [7], lambda seed: {"asynchronous": True, "sessions": seed == 0, "caching": seed == 1, "behind": seed == 2},
    ),
    "kv-groups": (3, [9], lambda seed: {"grouped": True}),
    "kv-groups-caching": (3, [14], lambda seed: {"grouped": True, "caching": True}),
    "lora": (3, [19], lambda seed: {"adapted": True, "sessions": seed == 1, "caching": seed == 2}),
}  # fmt: skip
CASES_OF_SCHEDULERS = [
    pytest.param(feature, *case.values, marks=case.marks, id=f"{feature}-{case.id}")
    for feature, (count, *_) in OF_SCHEDULERS.items()
    for case in cases_and_seeds(CASES, count)
]
UNDER_ANY_LIMITS: dict[str, tuple[int, int, Features]] = {
    "plain": (150, 1, lambda seed: {}),
    "caching": (150, 3, lambda seed: {"caching": True, "sessions": seed % 3 == 0}),
    "speculation": (100, 6, lambda seed: {"speculating": True, "caching": seed % 3 == 0}),
    "async": (100, 8, lambda seed: {"asynchronous": True, "caching": seed % 3 == 0}),
    "kv-groups": (150, 10, lambda seed: {"grouped": True, "sessions": seed % 3 == 0}),
    "kv-groups-async": (100, 11, lambda seed: {"grouped": True, "asynchronous": True}),
    "kv-groups-caching": (150, 15, lambda seed: {"grouped": True, "caching": True, "asynchronous": seed % 3 == 0}),
    "lora": (
        150, 20, lambda seed: {
            "adapted": True, "caching": seed % 3 == 0, "speculating": seed % 4 == 1, "grouped": seed % 4 == 2,
        },
    ),
    "lora-async": (
        100, 22, lambda seed: {
            "adapted": True, "asynchronous": True, "caching": seed % 3 == 0, "behind": seed % 4 == 1,
            "grouped": seed % 4 == 2,
        },
    ),
}  # fmt: skip
SEEDS_OF_LIMITS = [
    pytest.param(feature, *seed.values, marks=seed.marks, id=f"{feature}-{seed.values[0]}")
    for feature, (count, *_) in UNDER_ANY_LIMITS.items()
    for seed in seeds(count)
]


@pytest.mark.parametrize(("feature", "name", "settings", "seed"), CASES_OF_SCHEDULERS)
def test_agrees_with_the_reference(feature: str, name: str, settings: dict[str, Any], seed: int) -> None:
    _, drawn_with, features_of = OF_SCHEDULERS[feature]
    if feature == "async" and scheduler(name).state.tasks:
        pytest.skip("it suspends batches")
    check(
        np.random.default_rng([seed, len(name), SETTINGS[name].index(settings), *drawn_with]),
        scheduler(name).with_settings(**settings),
        lambda total_blocks: reference_scheduler(name, settings, total_blocks),
        **features_of(seed),
    )


@pytest.mark.parametrize(("feature", "seed"), SEEDS_OF_LIMITS)
def test_agrees_under_any_limits(feature: str, seed: int) -> None:
    _, drawn_with, features_of = UNDER_ANY_LIMITS[feature]
    random, features = np.random.default_rng([seed, drawn_with]), features_of(seed)
    settings, policy = random_scheduler.random_settings(random), random_scheduler.POLICY
    if features.get("speculating"):
        settings |= {"most_drafts": int(random.choice([-1, 0, 1, 5]))}
    if features.get("asynchronous"):
        settings |= {"preemptible": 0, "looks": 0, "keep_tokens": 0}
        policy = random_scheduler.WITHOUT_TASKS
    theirs = random_scheduler.RandomScheduler(**random_scheduler.reference_settings(settings))
    # Two requests may take memory from each other forever when ranks change at random.
    check(random, policy.with_settings(**settings), lambda _: theirs, until_s=1.5, **features)


OWN_LIMITS = (1, 5, 20, 60), (1, 3, 8)  # of an engine: tokens in a batch, requests that hold memory


def check(
    random: np.random.Generator,
    policy: Policy,
    reference_of: Callable[[int], Any],
    until_s: float = 4.0,
    sessions: bool = False,
    caching: bool = False,
    behind: bool = False,
    speculating: bool = False,
    asynchronous: bool = False,
    grouped: bool = False,
    adapted: bool = False,
) -> None:
    """Run a random scenario in both simulators and compare all that happens. behind: a front end. grouped: layers that
    keep different parts of a request. adapted: requests name LoRA adapters."""
    workload, limits = random_workload(random), {}
    if sessions:
        workload, limits = with_turns(random, workload), random_limits(random)
    if caching:
        workload = with_prefixes(random, workload)
    if adapted:
        workload = with_adapters(random, workload)
    estimator, reference_estimator = random_latency(random)
    device, reference_device = random_device(random)
    block_tokens = int(random.choice([1, 4, 16]))
    longest = int((workload.table["prompt_tokens"] + workload.table["output_tokens"]).max())
    groups = random_groups(random, caching) if grouped else ()
    least = blocks_needed(groups, longest, caching) if grouped else -(-longest // block_tokens)
    total_blocks = least + int(random.integers(0, random.choice([200, 800]) // block_tokens + 2))
    if random.random() < 0.1:  # all the room in the world
        total_blocks += int(random.choice([1100, 3000]))
    watermark, engines = float(random.choice([0.0, 0.1])), int(random.choice([1, 1, 1, 3]))
    gain = Gain("session-slo") if sessions and len(workload) % 2 else Gain()
    drift, correction = random_drift(random)
    host = None if asynchronous or grouped else random_host(random, total_blocks)
    predictor = RandomPredictor(int(random.integers(1000))) if random.random() < 0.5 and not sessions else None
    front_end = random_front_end(random) if behind else None
    if front_end is not None and front_end.delays_requests:
        predictor = None

    adapters = random_adapters(random) if adapted else None
    speculation, draft_seed = (random_speculation(random), int(random.integers(2**31))) if speculating else (None, 0)
    most_tokens, max_num_seqs = (int(random.choice(some)) if random.random() < 0.2 else None for some in OWN_LIMITS)
    deployment = Deployment(
        device, estimator, total_blocks, engines, block_tokens, watermark, host=host, speculation=speculation,
        async_scheduling=asynchronous, max_num_batched_tokens=most_tokens, max_num_seqs=max_num_seqs,
        kv_groups=groups, adapters=adapters, prefix_caching=caching or None,
    )  # fmt: skip
    scenario = Scenario(
        workload, deployment, policy, gain, until_s, drift, correction, predictor, front_end=front_end,
        draft_seed=draft_seed, **limits,
    )  # fmt: skip
    result = Simulation(scenario, record_timeline=True).run()

    rows = reference_rows(workload, gain, predictor)
    log = reference.simulate(
        rows, engines, block_tokens, total_blocks, watermark, reference_of(total_blocks), reference_device,
        reference_estimator, until_s,
        drift=Drift(drift.drift_per_s, drift.shift_s, drift.shift_ratio),
        correction=None if correction is None else dataclasses.astuple(correction),
        host=None if host is None else ReferenceHostMemory(**dataclasses.asdict(host)), **limits,
        prefix_caching=caching, chunk_tokens=1 if workload.prefixes is None else workload.prefixes.chunk_tokens,
        front_end=None if front_end is None else reference_front_end.FrontEnd(**dataclasses.asdict(front_end)),
        speculation=reference_speculation(speculation, draft_seed), asynchronous=asynchronous,
        most_batch_tokens=most_tokens or np.inf, most_sequences=max_num_seqs or np.inf,
        groups=[KvGroup(**dataclasses.asdict(group)) for group in groups],
        adapters=reference_adapters(adapters),
    )  # fmt: skip

    compare_iterations(result, log, False, lambda ours, theirs: ours == pytest.approx(theirs, abs=1e-9))
    compare_adapters(result, log)
    outcomes, engine_rows = result.arrays.outcomes, result.arrays.engines
    assert engine_finish_s(result) == pytest.approx(np.array(log.finish_s, dtype=float), abs=1e-9, nan_ok=True)
    compare_clients(result, log)
    gains = log.gains if gain.name == "tdg" else log.session_gains
    assert outcomes["gain"] == pytest.approx(np.array(gains), abs=1e-9)
    assert result.summary["evictions"] == log.evictions
    compare_caches(result, log)
    if None not in log.finish_s:  # else what runs at the end is counted in part
        assert engine_rows["busy_s"] == pytest.approx(np.array(log.busy_s), abs=1e-9)
