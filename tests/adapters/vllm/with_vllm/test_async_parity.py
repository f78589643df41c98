"""Decision parity with asynchronous scheduling: step by step, and to the last bit of the clock."""

import dataclasses
from pathlib import Path

import pytest

from experiments.engines.plugin_parity import own_scheduler
from experiments.engines.plugin_prefixes import demanding_sessions
from experiments.engines.vllm_driving import Limits
from experiments.engines.vllm_driving_ahead import drive_ahead
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.policies.policy import get_policy
from tests.adapters.vllm.with_vllm.served import PROFILE, assert_same, plugged, saved, simulated, v1_policy, workload_of

ROOMY = Limits(4000, max_num_batched_tokens=2**16, async_scheduling=True)
CRAMPED = dataclasses.replace(ROOMY, blocks=900)


@pytest.mark.parametrize(("blocks", "budget"), [(4000, 512), (4000, 2048), (900, 1024)])
def test_stock_decides_as_vllm_v1(blocks: int, budget: int) -> None:
    limits = dataclasses.replace(ROOMY, blocks=blocks, max_num_batched_tokens=budget)
    workload = workload_of(5, 100, 20.0, prompt=2000, output=300)
    result = simulated(workload, limits, v1_policy(limits), None)
    assert_same(drive_ahead(own_scheduler(limits), workload, PROFILE.device), result)


@pytest.mark.parametrize(("policy", "limits", "rate_per_s"), [
    ("slide-batching:eta=0.03", ROOMY, 20.0),
    ("slide-batching:eta=0.03", CRAMPED, 60.0),
    ("expected-gain", CRAMPED, 60.0),
    ("sarathi-fcfs:max_num_batched_tokens=512", CRAMPED, 40.0),
    ("weighted-vtc:max_num_batched_tokens=1024", CRAMPED, 40.0),
    ("vllm-v1:max_num_batched_tokens=1024", CRAMPED, 40.0),
])  # fmt: skip
def test_plugged_in_decides_as_simulated(policy: str, limits: Limits, rate_per_s: float, tmp_path: Path) -> None:
    chosen, workload = get_policy("scheduler", policy), workload_of(1, 100, rate_per_s)
    result = simulated(workload, limits, chosen, Correction())
    scheduler = plugged(limits, saved(chosen, workload, tmp_path / "policy.json"), "AsyncScheduler")
    served = drive_ahead(scheduler, workload, PROFILE.device)
    assert_same(served, result)
    counts = scheduler.servegym.metrics.counts
    assert counts["deviating_steps"] == counts["fallback_steps"] == counts["broken"] == 0
    assert counts["gain"] == pytest.approx(float(result.arrays.status[0].gain), rel=1e-9)


@pytest.mark.parametrize("policy", ["slide-batching", "vllm-v1:max_num_batched_tokens=256"])
def test_with_prefix_caching(policy: str, tmp_path: Path) -> None:
    chosen, workload = get_policy("scheduler", policy), demanding_sessions(2, 40, 4.0)
    limits = dataclasses.replace(CRAMPED, prefix_caching=True)
    scheduler = plugged(limits, saved(chosen, workload, tmp_path / "policy.json"), "AsyncScheduler")
    served, result = drive_ahead(scheduler, workload, PROFILE.device), simulated(workload, limits, chosen, Correction())
    counts = scheduler.servegym.metrics.counts
    assert counts["deviating_hits"] == counts["broken"] == 0
    assert [len(times) for times in served.token_s] == workload.table["output_tokens"].tolist()
    assert served.gain(workload)[0] == pytest.approx(float(result.arrays.status[0].gain), rel=0.02)
