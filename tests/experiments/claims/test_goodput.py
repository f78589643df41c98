"""Goodput and violations: by hand, and with a scheduler whose limit is known."""

import numpy as np
import pytest

from experiments.claims.harness import goodput as search
from experiments.claims.harness.cells import Cell
from experiments.claims.harness.settings import Setting, saturation_per_s
from experiments.claims.harness.violations import QOSERVE, sarathi, serve_violations, slo_of, violated
from experiments.claims.qoserve_fig11 import LOADS, breaking_load
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.scenes import requests, scene

SETTING = Setting("qoserve-code", "a100-llama3-8b")


def bad(workload, now_s: float = np.inf) -> list[bool]:
    run = Simulation(scene(workload, until_s=now_s))
    run.run()
    return violated(run.arrays, workload, now_s).tolist()


def test_any_late_token_violates():
    # One prompt of 3 and two tokens: the first comes at 4 s, the second at 6 s (1 s + 1 s a token).
    def answer(ttft_slo_s: float, tpot_slo_s: float, **more) -> list[bool]:
        return bad(requests(prompt_tokens=[3], output_tokens=2, ttft_slo_s=ttft_slo_s, tpot_slo_s=tpot_slo_s, **more))

    assert answer(4.5, 2) == [False]
    assert answer(4, 9) == [True]  # the first at its deadline, the second in time
    assert answer(4.5, 1.5) == [True]  # the second is due at 6
    assert answer(5, 1.5) == [False]  # deadlines count from the TTFT SLO, not from the first token
    assert answer(0.5, 0.5, ttlt_slo_s=6.5) == [False]  # judged by the last token only
    assert answer(9, 9, ttlt_slo_s=6) == [True]


def test_what_has_not_come_in_time_violates_before_it_comes():
    one = requests(prompt_tokens=[3], output_tokens=2, ttft_slo_s=3, tpot_slo_s=9)
    assert bad(one, now_s=2.5) == [False] and bad(one, now_s=3.0) == [True] and bad(one, now_s=5.0) == [True]
    whole = requests(prompt_tokens=[3], output_tokens=2, ttlt_slo_s=5)
    assert bad(whole, now_s=4.5) == [False] and bad(whole, now_s=5.0) == [True]
    # Not yet there: nothing is late.
    later = requests(prompt_tokens=[3, 3], output_tokens=2, arrival_s=[0.0, 50.0], ttft_slo_s=30)
    assert bad(later, now_s=40.0) == [False, False]


@pytest.mark.parametrize("limit", [0.3, 0.99, 1.0, 1.7, 2.4])
def test_bisection_finds_the_limit(limit, monkeypatch):
    monkeypatch.setattr(search, "is_served", lambda cell, rate, *rest: rate <= limit * saturation_per_s(SETTING))
    found = search.goodput(Cell(*SETTING, QOSERVE, 1.0, 1, 10), 1.0)
    assert limit / search.PRECISION <= found["goodput_per_s"] / saturation_per_s(SETTING) <= limit
    assert found["runs"] < 16


@pytest.mark.parametrize("limit", [0.0, 9.0])
def test_outside_the_range_there_is_none(limit, monkeypatch):
    monkeypatch.setattr(search, "is_served", lambda cell, rate, *rest: rate <= limit * saturation_per_s(SETTING))
    assert search.goodput(Cell(*SETTING, QOSERVE, 1.0, 1, 10), 1.0)["goodput_per_s"] is None


def test_rates_scale_the_same_arrivals():
    slow, fast = (search.arrivals(SETTING, 1, "", rate, 100.0) for rate in (1.0, 2.5))
    assert (len(slow), len(fast)) == (100, 250)
    np.testing.assert_allclose(slow.table["arrival_s"], 2.5 * fast.table["arrival_s"][:100])
    for field in ("prompt_tokens", "output_tokens", "ttlt_slo_s", "application"):
        np.testing.assert_array_equal(slow.table[field], fast.table[field][:100])


def test_giving_up_early_says_the_same():
    """A run that is looked at on the way is judged as one that is run to its end."""
    for load in (0.5, 2.0):
        cell = Cell(*SETTING, sarathi("fcfs", SETTING.device), load, 1, 10, slo=slo_of(SETTING.device))
        workload = search.arrivals(SETTING, 1, cell.slo, load * saturation_per_s(SETTING), 200.0)
        run = Simulation(search.scenario_of(cell, workload))
        run.run()
        share = violated(run.arrays, workload, np.inf).mean()
        assert search.is_served(cell, load * saturation_per_s(SETTING), 200.0, False) == (
            share <= search.MOST_VIOLATIONS
        )
        assert (share <= search.MOST_VIOLATIONS) == (load < 1)


def test_shares_add_up():
    cell = Cell(*SETTING, sarathi("fcfs", SETTING.device), 3.0, 1, 400, slo=slo_of(SETTING.device, low_share=0.2))
    shares = serve_violations(cell)
    assert 0 < shares["violations"] < 1 and shares["latency_p50_s"] > 0
    assert shares["violations interactive"] > shares["violations TTLT 1800 s"] == 0
    for group in (("important", "unimportant"), ("long", "short")):
        low, high = sorted(shares[f"violations {name}"] for name in group)
        assert low <= shares["violations"] <= high
    assert serve_violations(cell._replace(slo=slo_of(SETTING.device)))["violations unimportant"] is None


def test_breaking_load_lies_between_measured_loads():
    shares = np.zeros((len(LOADS), 3))
    shares[3:, 0] = 0.02  # passes 1 % half way from the third load to the fourth
    shares[:, 1] = 0.5  # from the first on: where is not known
    broken = breaking_load(shares, LOADS)
    assert broken[0] == pytest.approx((LOADS[2] + LOADS[3]) / 2)
    assert np.isnan(broken[1:]).all()
