"""Decision parity with the real V1 scheduler, step by step and to the last bit of the clock.

Stock: vLLM's scheduler and the simulator's vllm-v1. Plug-in: a policy inside vLLM and the same policy in the simulator.
"""

import dataclasses
from pathlib import Path

import pytest

from experiments.engines.vllm_driving import Limits
from servegym.adapters.vllm.versions import installed_version
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.policies.policy import get_policy
from tests.adapters.vllm.with_vllm.served import (
    PROFILE,
    assert_same,
    drive,
    plugged,
    saved,
    simulated,
    stock,
    v1_policy,
    workload_of,
)

SPLITS_ALONE = tuple(map(int, (installed_version() or "0.33").split(".")[:2])) < (0, 32)
# So many tokens in a batch that vLLM's own limit never binds: what binds is the policy.
ROOMY, CRAMPED = Limits(4000, max_num_batched_tokens=2**16), Limits(900, max_num_batched_tokens=2**16)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize(("limits", "rate_per_s", "evicts"), [
    pytest.param(Limits(4000, max_num_batched_tokens=512), 8.0, False, id="chunked"),
    pytest.param(Limits(4000, max_num_batched_tokens=2048, max_num_seqs=12), 20.0, False, id="few-sequences"),
    pytest.param(
        Limits(8000, max_num_batched_tokens=1024, long_prefill_token_threshold=200),
        8.0,
        False,
        id="long-prefills",
        marks=pytest.mark.skipif(SPLITS_ALONE, reason="this vLLM splits the prompt of a request that is alone, too"),
    ),
    pytest.param(Limits(700, max_num_batched_tokens=1024, watermark=0.05), 20.0, False, id="watermark"),
    pytest.param(Limits(400, max_num_batched_tokens=1024), 30.0, True, id="pressure"),
])  # fmt: skip
def test_stock_decides_as_vllm_v1(limits: Limits, rate_per_s: float, evicts: bool, policy: str) -> None:
    limits = dataclasses.replace(limits, scheduling_policy=policy)
    workload = workload_of(5, 120, rate_per_s, prompt=600 if evicts else 2000, output=400)
    result = simulated(workload, limits, v1_policy(limits), None)
    served = drive(stock(limits), workload, PROFILE.device)
    assert (sum(len(step.preempted) for step in served.steps) >= 20) == evicts
    assert_same(served, result)


PLUGGED = [
    ("slide-batching:eta=0.03", ROOMY, 20.0),
    ("slide-batching:eta=0.03", CRAMPED, 60.0),
    ("slide-batching:variant=xllm,gamma=2", CRAMPED, 40.0),
    ("expected-gain", ROOMY, 20.0),
    ("expected-gain", CRAMPED, 60.0),
    ("sarathi-fcfs:max_num_batched_tokens=512", CRAMPED, 40.0),
    ("weighted-vtc:max_num_batched_tokens=1024", CRAMPED, 40.0),
    ("vllm-v1:max_num_batched_tokens=1024", CRAMPED, 40.0),
]


@pytest.mark.parametrize(("policy", "limits", "rate_per_s"), PLUGGED, ids=[f"{p}-{li.blocks}" for p, li, _ in PLUGGED])
def test_plugged_in_decides_as_simulated(policy: str, limits: Limits, rate_per_s: float, tmp_path: Path) -> None:
    chosen, workload = get_policy("scheduler", policy), workload_of(1, 120, rate_per_s)
    result = simulated(workload, limits, chosen, Correction())
    scheduler = plugged(limits, saved(chosen, workload, tmp_path / "policy.json"))
    served = drive(scheduler, workload, PROFILE.device)
    assert_same(served, result)
    counts = scheduler.servegym.metrics.counts
    assert counts["decisions"] == len(served.steps)
    assert counts["deviating_steps"] == counts["fallback_steps"] == counts["malformed_xargs"] == 0
    gain, ideal_gain = served.gain(workload)
    assert counts["gain"] == pytest.approx(gain, rel=1e-9)
    assert counts["ideal_gain"] == pytest.approx(ideal_gain, rel=1e-9)
    assert gain == pytest.approx(result.arrays.status[0].gain, rel=1e-12)


def test_without_chunked_prefill_a_policy_of_whole_prompts_decides_as_simulated(tmp_path: Path) -> None:
    """vllm-fcfs takes prompts whole anyway, also those above its budget; vLLM takes none in parts here."""
    chosen, workload = (
        get_policy("scheduler", "vllm-fcfs:max_num_batched_tokens=1024"),
        workload_of(7, 60, 20.0, output=100),
    )
    limits = dataclasses.replace(CRAMPED, chunked_prefill=False)
    served = drive(plugged(limits, saved(chosen, workload, tmp_path / "p.json")), workload, PROFILE.device)
    assert (workload.table["prompt_tokens"] > 1024).any()
    assert_same(served, simulated(workload, limits, chosen, Correction()))


def test_vllms_own_policy_does_not_matter(tmp_path: Path) -> None:
    """With --scheduling-policy priority vLLM keeps heaps; the plug-in decides all the same."""
    chosen, workload = get_policy("scheduler", "slide-batching"), workload_of(2, 100, 60.0)
    limits = dataclasses.replace(CRAMPED, scheduling_policy="priority")
    served = drive(plugged(limits, saved(chosen, workload, tmp_path / "p.json")), workload, PROFILE.device)
    assert_same(served, simulated(workload, limits, chosen, Correction()))


@pytest.mark.parametrize("limits", [ROOMY, CRAMPED], ids=["roomy", "cramped"])
def test_order_alone_comes_close(limits: Limits, tmp_path: Path) -> None:
    """With public attributes only, few steps differ from what was decided, and by few tokens."""
    chosen, workload = get_policy("scheduler", "slide-batching:eta=0.03"), workload_of(3, 120, 40.0)
    scheduler = plugged(limits, saved(chosen, workload, tmp_path / "policy.json"), enforce="order")
    served = drive(scheduler, workload, PROFILE.device)
    counts = scheduler.servegym.metrics.counts
    assert 0 < counts["deviating_steps"] <= 0.1 * len(served.steps)
    total = sum(tokens for step in served.steps for _, tokens in step.scheduled)
    assert counts["deviating_tokens"] <= 0.05 * total
    gain = float(simulated(workload, limits, chosen, Correction()).arrays.status[0].gain)
    assert served.gain(workload)[0] == pytest.approx(gain, rel=0.05)
