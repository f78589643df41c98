"""Ends of the Ascend profiles: what was measured says so, and they are what they should be."""

import numpy as np
import pytest

from experiments import ascend_interval
from experiments.claims.harness.checks import ABOVE_0, Check
from servegym.latency_models.profile import load_profile, parse_profile
from servegym.latency_models.sampling import BatchRange, random_batches

QWEN2 = "ascend910b-qwen2-7b"


def test_the_slow_end_is_the_slope_of_measured_steps():
    model = load_profile(QWEN2).device
    turbo = ascend_interval.qwen25_points()[:4]
    requests = [point.batches["decode_requests"][0] for point in turbo]
    beyond_s = [point.duration_s - point.predicted_s(model) for point in turbo]
    slope, _ = np.polyfit(requests, beyond_s, 1)
    assert slope == pytest.approx(ascend_interval.SLOW_S_PER_REQUEST, rel=0.1)


def test_batches_at_the_ends():
    old = load_profile(ascend_interval.DEVICE)
    batch = random_batches(200, 1, BatchRange(batch_tokens=8192, decode_requests=200, cached_tokens_in_batch=280_000))
    requests = batch["decode_requests"] + batch["prefill_requests"]
    shipped_s, cpu_s = old.device.evaluate(batch), old.cpu_overhead_s
    for factor, s_per_request in ascend_interval.ENDS.values():
        found_s = parse_profile(ascend_interval.at_end(old, factor, s_per_request), "end").device.evaluate(batch)
        assert found_s == pytest.approx(factor * (shipped_s - cpu_s) + cpu_s + s_per_request * requests, rel=1e-6)


def test_verdicts_that_differ_are_undecided():
    ahead, behind = (Check("lead", sign * np.array([1.0, 1.1, 1.2]), ABOVE_0) for sign in (1, -1))
    assert ascend_interval.joined([ahead, ahead]) == "holds"
    assert ascend_interval.joined([ahead, behind]) == "**undecided**"
