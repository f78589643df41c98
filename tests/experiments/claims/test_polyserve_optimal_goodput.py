"""PolyServe's optimal goodput, by hand on a linear device and by its own equations on profiles."""

import math

import numpy as np
import pytest

from experiments.claims.harness.polyserve_optimal import (
    SteadyDevice,
    colocated_cost_s,
    disaggregated_costs_s,
    optimal_goodput,
)
from servegym.errors import ExperimentError
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.profile import load_profile
from servegym.simulator.inputs.workload import Workload
from tests.evaluation.bounds.batches import batch_of

# GEMM(B) = 10 ms + 0.1 ms B; PF(n) = 1 us (n^2 - n); DcAttn(x) = 1 us x.
LINEAR = LatencyModel.from_values(
    "linear", {"a_p": 1e-6, "b_p": 0.0, "c_p": 1e-4 - 1e-6, "a_d": 1e-6, "b_d": 1e-4, "t_c": 0.01}
)
STEADY = SteadyDevice(LINEAR, capacity_tokens=100_000, most_batch_tokens=1000)


def test_functions_read_off_a_linear_device():
    assert STEADY.gemm_of_decodes_s[[0, 99]] == pytest.approx([0.0101, 0.02])
    assert STEADY.gemm_of_prefills_s[[0, 99]] == pytest.approx([0.0101, 0.02])
    assert STEADY.gemm_of_both_s(0.3)[[0, 99]] == pytest.approx([0.0101, 0.02])
    assert STEADY.decode_attention_s(5000.0) == pytest.approx(5e-3)
    assert STEADY.prefill_attention_s(100.0) == pytest.approx(9900e-6)


def test_prefill_tokens_that_take_longer_than_decodes_weigh_by_their_share():
    device = LatencyModel.from_values(
        "linear", {"a_p": 0.0, "b_p": 0.0, "c_p": 3e-4, "a_d": 0.0, "b_d": 1e-4, "t_c": 0.01}
    )
    gemm_s = SteadyDevice(device, 1000, 10).gemm_of_both_s(0.75)
    assert gemm_s[9] == pytest.approx(0.01 + 7.5 * 3e-4 + 2.5 * 1e-4)


@pytest.mark.parametrize("name", ["h200-llama3-8b", "ascend910b-qwen3-8b"])
def test_functions_add_up_to_batches_of_a_profile(name):
    device = load_profile(name).device
    steady = SteadyDevice(device, 10**6, 3000)
    whole = batch_of([(3000, 0)], [])
    total_s = steady.gemm_of_prefills_s[2999] + steady.prefill_attention_s(3000.0)
    assert total_s == pytest.approx(device.evaluate(whole)[0])
    decodes = batch_of([], [700] * 50)
    total_s = steady.gemm_of_decodes_s[49] + steady.decode_attention_s(35_000.0)
    assert total_s == pytest.approx(device.evaluate(decodes)[0])
    both = batch_of([(1, 0)] * 600, [700] * 200)
    total_s = steady.gemm_of_both_s(0.75)[799] + steady.decode_attention_s(140_000.0)
    assert total_s == pytest.approx(device.evaluate(both)[0], rel=1e-6)


def test_colocated_by_hand():
    # p = 300, d = 100: a quarter of B decodes at 350 cached tokens. T_iter = 0.01 + 1e-4 B + 1e-6 (87.5 B + 300).
    # TPOT 0.05: B < 0.0397 / 1.875e-4 = 211.7; ceil(400 / 211) = 2 iterations of 0.0499 s < 1 s.
    gemm_s = 0.01 + 1e-4 * 211
    expected = 400 * gemm_s / 211 + 1e-6 * (300**2 - 300) + 1e-6 * 100 * 350
    assert colocated_cost_s(STEADY, 300, 100, 1.0, 0.05) == pytest.approx(expected)
    # TTFT: two iterations of B = 200 at least, or one of 400, which TPOT forbids; 0.0478 s each.
    assert colocated_cost_s(STEADY, 300, 100, 0.0990, 0.05) < math.inf
    assert colocated_cost_s(STEADY, 300, 100, 0.0950, 0.05) == math.inf
    # Memory: 87.5 B + 300 < C.
    small = SteadyDevice(LINEAR, 10_000, 1000)
    expected += 400 * ((0.01 + 1e-4 * 110) / 110 - gemm_s / 211)
    assert colocated_cost_s(small, 300, 100, 1.0, 0.05) == pytest.approx(expected)


def test_colocated_with_the_corrected_print():
    # PF of three quarters of B: T_iter = 0.01 + 1e-4 B + 87.5e-6 B + 1e-6 ((0.75 B)^2 - 0.75 B) < 0.05.
    tokens = np.arange(1, 1001)
    iteration_s = 0.01 + 1e-4 * tokens + 87.5e-6 * tokens + 1e-6 * ((0.75 * tokens) ** 2 - 0.75 * tokens)
    largest = tokens[iteration_s < 0.05].max()
    assert largest < 200
    expected = 400 * (0.01 + 1e-4 * largest) / largest + 1e-6 * (300**2 - 300) + 1e-6 * 100 * 350
    assert colocated_cost_s(STEADY, 300, 100, 1.0, 0.05, "as-printed-corrected") == pytest.approx(expected)


def test_disaggregated_by_hand():
    # Decode: 0.01 + 1e-4 B + 350e-6 B < 0.05: B < 88.9. Prefill: the largest B, 1000, whose 3 1/3 prompts are in time.
    prefill_s, decode_s = disaggregated_costs_s(STEADY, 300, 100, 1.0, 0.05)
    assert decode_s == pytest.approx(100 * (0.01 + 88e-4) / 88 + 1e-6 * 100 * 350)
    assert prefill_s == pytest.approx(300 * 0.11 / 1000 + 1e-6 * (300**2 - 300))
    assert disaggregated_costs_s(STEADY, 300, 100, 0.05, 0.05)[0] == math.inf
    assert disaggregated_costs_s(STEADY, 300, 100, 1.0, 0.01)[1] == math.inf


def test_the_batch_size_is_not_the_largest_where_its_gemm_takes_a_step():
    """GEMM(B)/B is not monotone: just past a wave of thread blocks a smaller batch is cheaper a token."""
    device = LatencyModel.from_values("piecewise", {
        "a_p": 0.0, "b_p": 0.0, "f_p": 0.0, "a_d": 0.0, "f_d": 0.0, "t_c": 0.0,
        "knots_tokens": [1.0, 128.0, 129.0, 256.0], "base_s": [0.01, 0.012, 0.02, 0.021],
    })  # fmt: skip
    steady = SteadyDevice(device, 10**6, 200)
    assert disaggregated_costs_s(steady, 10, 100, 1.0, 0.05)[1] == pytest.approx(100 * 0.012 / 128)


def workload(**columns) -> Workload:
    return Workload.from_columns({"arrival_s": np.arange(3.0), "prompt_tokens": 300, "output_tokens": 100,
                                  "ttft_slo_s": 1.0, "tpot_slo_s": 0.05} | columns)  # fmt: skip


def test_goodput_is_engines_over_the_mean_cost():
    mixed = workload(tpot_slo_s=[0.05, 0.1, 0.005])
    costs = [colocated_cost_s(STEADY, 300, 100, 1.0, tpot_s) for tpot_s in (0.05, 0.1)]
    found = optimal_goodput(mixed, STEADY, engines=4)
    assert found.infeasible == 1  # no iteration takes 5 ms
    assert found.engine_s == pytest.approx(np.mean(costs))
    assert found.requests_per_s == pytest.approx(4 / np.mean(costs))


def test_engines_are_split_as_serves_most():
    prefill_s, decode_s = disaggregated_costs_s(STEADY, 300, 100, 1.0, 0.05)
    found = optimal_goodput(workload(), STEADY, engines=20, disaggregated=True)
    assert found.prefill_engines is not None and found.unsplit_per_s is not None
    by_split = {n: min(n / prefill_s, (20 - n) / decode_s) for n in range(1, 20)}
    assert found.requests_per_s == pytest.approx(max(by_split.values()))
    assert by_split[found.prefill_engines] == pytest.approx(found.requests_per_s)
    assert found.unsplit_per_s == pytest.approx(20 / (prefill_s + decode_s))
    assert 0.9 * found.unsplit_per_s < found.requests_per_s <= found.unsplit_per_s


def test_what_it_cannot_say():
    with pytest.raises(ExperimentError, match="form 'slowest'"):
        SteadyDevice(load_profile("a100-qwen1.5-4b").device, 1000)
    with pytest.raises(ExperimentError, match="most_batch_tokens"):
        SteadyDevice(LINEAR, 1000, 0)
    with pytest.raises(ExperimentError, match="no request meets"):
        optimal_goodput(workload(tpot_slo_s=0.001), STEADY, 1)
    with pytest.raises(ExperimentError, match="at least 2"):
        optimal_goodput(workload(), STEADY, 1, disaggregated=True)
    with pytest.raises(ExperimentError, match="approximate"):
        colocated_cost_s(STEADY, 1, 1, 1.0, 1.0, "exact")
