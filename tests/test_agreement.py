"""The compiled simulator against the slow reference one (tests/reference, written from docs/simulation.md alone).

Decisions are equal; times agree within 1e-9 s. Workloads are random, small and cramped: few KV blocks, ties, bursts.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest

from servegym.baselines.registry import scheduler, scheduler_names
from servegym.latency_models.model import LatencyModel
from servegym.simulator.deployment import Deployment
from servegym.simulator.disturbances import Correction, Disturbance
from servegym.simulator.gains import Gain
from servegym.simulator.simulation import Scenario, Simulation
from servegym.simulator.workload import Workload
from tests.reference import simulator as reference
from tests.reference.latency import Linear, Piecewise
from tests.reference.schedulers import SCHEDULERS
from tests.timelines import iterations

SEEDS = range(12)
# Settings of each scheduler, and what the reference calls a setting of another name.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "vllm-fcfs": [{}, {"token_budget": 256, "max_sequences": 5}],
    "vllm-v1": [
        {"token_budget": 64},
        {"policy": "priority", "token_budget": 96, "max_sequences": 7},
        {"policy": "priority", "token_budget": 48, "reserve_full": 0},
        {"token_budget": 128, "watermark": 0.2},
    ],
    "sarathi-fcfs": [{}, {"token_budget": 48, "max_sequences": 6}],
    "sarathi-priority": [{"token_budget": 64}],
    "edf": [{"token_budget": 96}, {"batch_size": 4}],
    "sjf": [{"token_budget": 96}, {"batch_size": 4}],
    "slide-batching": [
        {},
        {"load": "c"},
        {"load": "p", "gamma": 0.5},
        {"gamma": 3.0, "eta": 0.02},
        {"eta": 0.006},
        {"hopeless": "include"},
        {"ablation": "only-deadline"},
        {"ablation": "only-density"},
        {"ablation": "no-latency", "token_budget": 64},
        {"variant": "xllm"},
        {"variant": "xllm", "starve_threshold": 0.1, "load": "c"},
    ],
}
CASES = [(name, settings) for name, variants in SETTINGS.items() for settings in variants]


def reference_scheduler(name: str, settings: dict[str, Any], total_blocks: int) -> Any:
    renamed = {"max_sequences": "holder_budget", "load": "phi"}
    keywords = {renamed.get(key, key): value for key, value in settings.items()}
    if keywords.pop("variant", "paper") == "xllm":
        keywords["xllm"] = True
    if "reserve_full" in keywords:
        keywords["reserve_context"] = bool(keywords.pop("reserve_full"))
    if "watermark" in keywords:  # vLLM counts its null block
        keywords["watermark_blocks"] = int(keywords.pop("watermark") * (total_blocks + 1))
    return SCHEDULERS[name](**keywords)


def random_workload(random: np.random.Generator) -> Workload:
    n = int(random.integers(1, 45))
    arrival_s = np.sort(random.uniform(0, random.choice([0.05, 0.5, 3.0]), n))
    if random.random() < 0.5:  # bursts: several at one instant
        arrival_s = np.sort(arrival_s[random.integers(0, n, n)])
    priority = random.integers(0, 3, n)
    return Workload.from_columns(
        {
            "arrival_s": arrival_s,
            "prompt_tokens": random.integers(1, 160, n),
            "output_tokens": random.choice([1, 2, 5, 20, 60], n),
            "priority": priority,
            "weight": 4.0 - priority,
            "ttft_slo_s": random.choice([0.1, 0.3, 1.0], n),
            "tpot_slo_s": random.choice([0.02, 0.05], n),
            "ttlt_slo_s": np.where(random.random(n) < 0.2, 2.0, np.inf),
        }
    )


def random_latency(random: np.random.Generator) -> tuple[LatencyModel, Linear]:
    """A linear estimator, as the compiled simulator and as the reference take it."""
    scale = np.array([2e-8, 2e-8, 6e-5, 1e-6, 2e-4, 8e-3])
    values = dict(zip(("a_p", "b_p", "c_p", "a_d", "b_d", "t_c"), scale * random.uniform(0.3, 2, 6), strict=True))
    return LatencyModel.from_values("linear", values), Linear(**values)


def random_device(random: np.random.Generator) -> tuple[LatencyModel, Piecewise]:
    """A piecewise device: 0 tokens, then a kink at 64."""
    base_s = np.cumsum([5e-3, 1e-3, 4e-3, 2e-2] * random.uniform(0.5, 2, 4)).tolist()
    values = {
        "knots_tokens": [1.0, 16.0, 64.0, 256.0], "base_s": base_s, "a_p": 3e-8, "b_p": 1e-8, "f_p": 1e-4,
        "a_d": 2e-6, "f_d": 2e-4, "t_c": 1e-3,
    }  # fmt: skip
    return LatencyModel.from_values("piecewise", values), Piecewise(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    )


def random_drift(random: np.random.Generator) -> tuple[Disturbance, Correction | None]:
    """Half of the time a device that drifts, and half of these times an estimator that follows it."""
    if random.random() < 0.5:
        return Disturbance(), None
    drift = Disturbance(drift_per_s=float(random.choice([0.0, 0.02])), shift_s=0.3, shift_ratio=1.5)
    return drift, Correction(0.8, 3, bool(random.random() < 0.3)) if random.random() < 0.5 else None


def test_every_registered_scheduler_is_checked() -> None:
    assert set(SETTINGS) == set(scheduler_names())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_agrees_with_the_reference(name: str, settings: dict[str, Any], seed: int) -> None:
    random = np.random.default_rng([seed, len(name)])
    workload = random_workload(random)
    estimator, reference_estimator = random_latency(random)
    device, reference_device = random_device(random)
    block_tokens = int(random.choice([1, 4, 16]))
    longest = int((workload.table["prompt_tokens"] + workload.table["output_tokens"]).max())
    total_blocks = -(-longest // block_tokens) + int(random.integers(0, 200 // block_tokens + 2))
    watermark, engines = float(random.choice([0.0, 0.1])), int(random.choice([1, 1, 1, 3]))
    gain = Gain()
    drift, correction = random_drift(random)

    deployment = Deployment(device, estimator, total_blocks, engines, block_tokens, watermark)
    scenario = Scenario(
        workload, deployment, scheduler(name).with_settings(**settings), gain, disturbance=drift,
        correction=correction,
    )  # fmt: skip
    result = Simulation(scenario, record_timeline=True).run()

    first_gain, decode_gain = gain.token_gains(workload.table)
    rows = [
        {**{field: row[field].item() for field in workload.table.dtype.names},
         "first_token_gain": first_gain[i], "decode_token_gain": decode_gain[i]}
        for i, row in enumerate(workload.table)
    ]  # fmt: skip
    log = reference.simulate(
        rows, engines, block_tokens, total_blocks, watermark,
        reference_scheduler(name, settings, total_blocks), reference_device, reference_estimator,
        drift=reference.Drift(drift.drift_per_s, drift.shift_s, drift.shift_ratio),
        correction=None if correction is None else dataclasses.astuple(correction),
    )  # fmt: skip

    got = iterations(result)
    for number, (ours, theirs) in enumerate(zip(got, log.iterations, strict=False)):
        where = f"iteration {number} at {theirs.start_s}"
        assert (ours.engine, ours.batch) == (theirs.engine, theirs.batch), where
        assert ours.evicted == theirs.evicted, where
        assert ours.used_blocks == total_blocks - theirs.free_blocks, where
        assert ours.start_s == pytest.approx(theirs.start_s, abs=1e-9), where
        assert ours.end_s == pytest.approx(theirs.end_s, abs=1e-9), where
    assert len(got) == len(log.iterations)
    assert result.arrays.outcomes["finish_s"] == pytest.approx(np.array(log.finish_s, dtype=float), abs=1e-9)
    assert result.arrays.outcomes["gain"] == pytest.approx(np.array(log.gains), abs=1e-9)
    assert result.summary["preemptions"] == log.evictions
