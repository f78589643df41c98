"""First tokens in time, and the searches for the most rate and the tightest SLOs: by hand, and with a known limit."""

import numpy as np
import pytest

from experiments.claims.harness import first_tokens
from experiments.claims.harness.cells import Cell
from experiments.claims.harness.first_tokens import (
    ONE_AND_ONE,
    attainment,
    capacity_per_s,
    goodput_per_s,
    is_served,
    least_scale,
    missed,
    run_to_the_end,
    scenario_at,
)
from experiments.claims.harness.settings import Setting
from experiments.claims.harness.slo_scale import PRECISION, least
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.scenes import requests, scene

SETTING = Setting("flowprefill", "a100-llama3-8b")
CELL = Cell(*SETTING, "flow-prefill", 1.0, 1, 10, engines=ONE_AND_ONE)


@pytest.mark.parametrize("limit", [0.31, 1.0, 1.7, 7.9])
def test_the_least_that_is_enough(limit):
    found = least(lambda value: value >= limit, 1.0, 0.1, 10.0)
    assert found is not None and limit <= found <= limit * PRECISION


@pytest.mark.parametrize("limit", [0.05, 11.0])
def test_outside_the_range_there_is_none(limit):
    assert least(lambda value: value >= limit, 1.0, 0.1, 10.0) is None


def late(now_s: float, *ttft_slo_s: float) -> list[bool]:
    """Of two prompts of 3 tokens that take 4 s one after the other, by deadline."""
    workload = requests(prompt_tokens=[3, 3], output_tokens=1, ttft_slo_s=ttft_slo_s)
    run = Simulation(scene(workload, "edf:batch_size=1", until_s=now_s))
    run.run()
    return missed(run.arrays, now_s).tolist()


def test_what_has_missed_the_deadline():
    assert late(np.inf, 4.5, 8.5) == [False, False]
    assert late(np.inf, 4.0, 8.5) == [True, False]  # a token counts strictly before its deadline
    assert late(4.8, 4.5, 4.9) == [False, False]
    assert late(4.9, 4.5, 4.9) == [False, True]  # before it has come


def test_searches_find_a_known_limit(monkeypatch):
    monkeypatch.setattr(first_tokens, "is_served", lambda cell, load, duration_s, scale=1.0: load <= 1.3 * scale)
    rate = goodput_per_s(CELL, 1.0)
    assert rate is not None and 1.3 / PRECISION <= rate / capacity_per_s(SETTING) <= 1.3 * (1 + 1e-12)
    scale = least_scale(CELL, 0.65, 1.0)
    assert scale is not None and 0.5 <= scale <= 0.5 * PRECISION


def test_slos_are_scaled_and_nothing_else():
    plain, scaled = (scenario_at(CELL, 0.5, 60.0, scale).workload.table for scale in (1.0, 0.5))
    np.testing.assert_allclose(scaled["ttft_slo_s"], 0.5 * plain["ttft_slo_s"])
    for field in ("arrival_s", "prompt_tokens", "tpot_slo_s"):
        np.testing.assert_array_equal(plain[field], scaled[field])


@pytest.mark.parametrize("load", [0.5, 3.0])
def test_giving_up_early_says_the_same(load):
    assert is_served(CELL, load, 120.0) == (attainment(CELL, load, 120.0) >= first_tokens.ATTAINMENT)
    assert is_served(CELL, load, 120.0) == (load < 1)


def test_a_mixture_of_experts_is_suspended_at_its_operators():
    cell = CELL._replace(device="a100-qwen3-30b-a3b")
    shorter = {}
    for boundary in ("operator", "layer"):
        run, measured = run_to_the_end(cell._replace(scheduler=f"flow-prefill:boundary={boundary}"), 0.8, 400)
        engine = run.arrays.engines[0]
        assert engine.totals.suspensions > 50 and 0 < measured["attainment"] <= 1
        shorter[boundary] = engine.totals.blocking_s / engine.totals.suspensions
    operators = run.scenario.deployment.pools[0].operators
    assert operators is not None and operators.names == ("qkv", "attention", "o", "gate", "experts")
    assert 0 < shorter["operator"] < 0.6 * shorter["layer"]


def test_cell_may_have_checks_and_ranks_that_take_time():
    costly = scenario_at(CELL._replace(operators="check_s=0.25,jitter_s=0.5"), 0.5, 60.0)
    plain = scenario_at(CELL, 0.5, 60.0)
    for one, check_s, jitter_s in ((costly, 0.25, 0.5), (plain, 0.0, 0.0)):
        for pool in one.deployment.pools:
            assert (pool.operators.check_s, pool.operators.jitter_s) == (check_s, jitter_s)
            assert pool.operators.names == plain.deployment.pools[0].operators.names


def test_device_without_operators_takes_no_settings_of_them():
    from experiments.claims.harness.cells import deployment_of
    from servegym.errors import ExperimentError

    with pytest.raises(ExperimentError, match="has no operators to set check_s=1e-05 of"):
        deployment_of("a5000-qwen1.5-7b", "engines=1", "check_s=1e-05")


def test_checks_at_operators_cost_throughput():
    free, costly = (
        run_to_the_end(CELL._replace(operators=operators), 2.0, 40)[1]["first_tokens_per_s"]
        for operators in ("", "check_s=0.001")
    )
    assert costly < 0.9 * free
