"""Fleets of PolyServe's claims: their engines, the search for goodput, and the fewest engines."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from experiments.claims import polyserve_fig8, polyserve_fig9
from experiments.claims.harness import fleets
from experiments.claims.harness.fleets import DEVICE, POLYSERVE, Fleet, co_chunk, of_fleet, scenario
from experiments.claims.harness.settings import Setting, profile
from servegym.baselines.registry import scheduler
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation

pytestmark = pytest.mark.slow

SETTING = Setting("uniform-512-512", DEVICE)
PD, CO = POLYSERVE


def test_engines_of_a_cell():
    prefill = fleets.optimum(SETTING, 20, True).prefill_engines
    assert prefill is not None
    assert PD.cell(SETTING, 1, 40).engines == f"prefill={prefill},decode={20 - prefill}"
    assert CO.cell(SETTING, 1, 40, engines=8).engines == "engines=8"


def test_a_scenario_has_the_fleet():
    workload = Workload.from_columns({"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [2]})
    whole = scenario(PD.cell(SETTING, 1, 40), workload)
    assert [pool.role for pool in whole.deployment.pools] == ["prefill", "decode"]
    assert {pool.scheduler.name for pool in whole.deployment.pools if pool.scheduler} == {"polyserve"}
    assert whole.router is not None and whole.scaler is not None
    assert (whole.router.name, whole.scaler.name, whole.scheduler.name) == ("polyserve",) * 3
    # What users get: the table is the profile's own estimator.
    own = profile(DEVICE).estimator
    assert all(pool.estimator.form == own.form for pool in whole.deployment.pools)
    assert all((pool.estimator.coefficients == own.coefficients).all() for pool in whole.deployment.pools)
    assert profile(DEVICE).estimator.form == "table-shares"
    assert scenario(co_chunk(SETTING).cell(SETTING, 1, 40), workload).scaler is None


@pytest.mark.parametrize("limit", [0.1, 0.69, 0.7, 0.71, 1.9])
def test_bisection_finds_the_limit(limit, monkeypatch):
    cell = CO.cell(SETTING, 1, 40)
    optimal = fleets.optimal_per_s(cell)
    monkeypatch.setattr(fleets, "is_served", lambda cell, rate, length=1.0: rate <= limit * optimal)
    found = fleets.goodput(cell)
    assert limit / fleets.PRECISION <= found["goodput_per_s"] / optimal <= limit
    assert found["optimal_per_s"] == optimal and found["runs"] < 20


@pytest.mark.parametrize("limit", [0.0, 99.0])
def test_outside_the_range_there_is_none(limit, monkeypatch):
    monkeypatch.setattr(fleets, "is_served", lambda cell, rate, length=1.0: rate <= limit * fleets.optimal_per_s(cell))
    assert fleets.goodput(CO.cell(SETTING, 1, 40))["goodput_per_s"] is None


@pytest.fixture(autouse=True)
def nothing_kept():
    """What a test has put in place of a search is not found by the next."""
    yield
    fleets._goodput.cache_clear()


def test_a_rough_search_that_is_far_off_is_mended(monkeypatch):
    """Short runs take twice as much as long ones do."""
    cell = CO.cell(SETTING, 1, 40)
    optimal = fleets.optimal_per_s(cell)
    monkeypatch.setattr(
        fleets, "is_served", lambda cell, rate, length=1.0: rate <= (1.0 if length < 1 else 0.5) * optimal
    )
    assert 0.5 / fleets.PRECISION <= fleets.goodput(cell)["goodput_per_s"] / optimal <= 0.5


def test_what_is_judged():
    """Those of seconds 5 to 9; a prompt of 60,000 tokens is never prefilled in 0.3 s."""
    workload = Workload.from_columns(
        {
            "arrival_s": [1.0, 5.0, 6.0, 8.9, 9.0, 10.0],
            "prompt_tokens": [9, 9, 60_000, 9, 9, 9],
            "output_tokens": 2,
            "ttft_slo_s": 0.3,
        }
    )
    judged = fleets.judged(CO.cell(SETTING, 1, 40), workload, (5.0, 9.0))
    assert judged.tolist() == [False, True, False, True, False, False]


def test_arrivals_go_on_until_the_last_deadline_of_those_judged():
    cell = CO.cell(SETTING, 1, 300)
    begin_s, end_s = fleets.window_s(cell)
    assert (begin_s, end_s) == pytest.approx((0.3 * 6 * fleets.stay_s(SETTING), 0.3 * 10 * fleets.stay_s(SETTING)))
    workload = fleets.requests_of(cell, 20.0)
    table = workload.table
    last_s = table["arrival_s"] + table["ttft_slo_s"] + (table["output_tokens"] - 1) * table["tpot_slo_s"]
    those = fleets.judged(cell, workload, (begin_s, end_s))
    assert those.sum() > 100 and table["arrival_s"][-1] >= last_s[those].max() - 1.0


def test_a_light_load_is_in_time_and_a_heavy_one_is_not():
    cell = CO.cell(SETTING, 1, 100, engines=5)
    shares = fleets.in_time(cell, 0.1 * fleets.optimal_per_s(cell))
    assert shares["all"] == 1.0 and set(shares) == {"all", "20 ms", "30 ms", "50 ms", "100 ms"}
    assert fleets.is_served(cell, 0.1 * fleets.optimal_per_s(cell))
    assert fleets.in_time(cell, 4 * fleets.optimal_per_s(cell))["all"] < 0.9
    assert not fleets.is_served(cell, 4 * fleets.optimal_per_s(cell))


def one_at_a_time(monkeypatch):
    """Engines that serve one request at a time."""
    real = fleets.scenario

    def stalled(cell, workload, engines=None):
        return dataclasses.replace(real(cell, workload, engines), scheduler=scheduler("sarathi-fcfs:max_num_seqs=1"))

    monkeypatch.setattr(fleets, "scenario", stalled)


def test_what_does_not_finish_is_not_in_time(monkeypatch):
    """Nearly all wait. Not one of those that wait is in time, and a small part of the optimal goodput is too much."""
    one_at_a_time(monkeypatch)
    cell = CO.cell(SETTING, 1, 100)
    optimal = fleets.optimal_per_s(cell)
    assert fleets.in_time(cell, 0.5 * optimal)["all"] < 0.1
    assert not fleets.is_served(cell, fleets.LEAST * optimal * 2)


def test_of_those_still_open_none_is_in_time():
    """A run that is looked at before anybody can have finished says nothing but that they are late."""
    cell = CO.cell(SETTING, 1, 100)
    workload, window = fleets.requests_of(cell, 50.0), fleets.window_s(cell)
    those = fleets.judged(cell, workload, window)
    run = Simulation(scenario(cell, workload))
    late = fleets.settled(run, those, window, only_enough=True)
    finished = np.isfinite(run.arrays.outcomes["finish_s"])
    assert late[those & ~finished].all() and not late[~those].any()
    late = fleets.settled(Simulation(scenario(cell, workload)), those, window)
    assert not late.any()


def test_twice_as_long_a_run_gives_the_same_goodput():
    """Two engines, in full size and twice that: within the precision of both."""
    cell = co_chunk(SETTING).cell(SETTING, 1, 1000, engines=2)
    once, twice = (fleets.goodput(one)["goodput_per_s"] for one in (cell, cell._replace(requests=2000)))
    assert twice == pytest.approx(once, rel=2 * (fleets.PRECISION - 1))


@pytest.mark.parametrize(("first", "step"), [(20, None), (20, 1), (3, 1), (80, 1)])
@pytest.mark.parametrize("limit", [1, 2, 19, 20, 21, 57, 80])
def test_the_fewest_engines(limit, first, step):
    tried = []

    def is_enough(engines: int) -> bool:
        tried.append(engines)
        return engines >= limit

    assert polyserve_fig8.fewest(is_enough, first, step) == limit
    assert len(tried) == len(set(tried)) <= 14


def test_more_engines_than_there_are():
    assert polyserve_fig8.fewest(lambda engines: False, 20) is None


def rows(*cells) -> pd.DataFrame:
    return pd.DataFrame([{**cell._asdict(), "goodput_per_s": value} for cell, value in cells])


def test_rows_of_a_fleet_and_size():
    other = Fleet("CO-Minimal", "polyserve", "min-load", False)
    table = rows(
        *((fleet.cell(SETTING, seed, 40, engines), 10.0 * engines + seed + place)
          for seed in (1, 2) for engines in (8, 16) for place, fleet in enumerate((PD, CO, other)))
    )  # fmt: skip
    small = polyserve_fig9.of_size(table, 8)
    assert of_fleet(small, PD, "goodput_per_s").tolist() == [81.0, 82.0]
    assert of_fleet(small, CO, "goodput_per_s").tolist() == [82.0, 83.0]
    assert of_fleet(small, other, "goodput_per_s").tolist() == [83.0, 84.0]
    assert polyserve_fig9.per_engine(table, CO, 16).tolist() == [162 / 16, 163 / 16]
    with pytest.raises(ValueError, match="one cell a seed"):
        of_fleet(table, PD, "goodput_per_s")


def test_engine_seconds_of_a_light_load():
    """A few engines in tiers serve it: at least one, fewer than half of those supplied."""
    cell = polyserve_fig8.supplied(CO.cell(SETTING, 1, 200, share=0.1), CO)
    measured = polyserve_fig8.measure(cell)
    assert 1 <= measured["engines_used"] < polyserve_fig8.SUPPLY / 2
    assert measured["in_time"] > 0.9
    rate = polyserve_fig8.rate_of(cell)
    assert measured["engine_s"] == pytest.approx(measured["engines_used"] / rate, rel=0.3)
