"""Fleets of PolyServe's claims: their engines, the search for goodput, and the fewest engines."""

import numpy as np
import pandas as pd
import pytest

from servegym.experiments.claims import polyserve_fig8, polyserve_fig9
from servegym.experiments.claims.harness import fleets
from servegym.experiments.claims.harness.fleets import DEVICE, POLYSERVE, Fleet, co_chunk, of_fleet, scenario, serving
from servegym.experiments.claims.harness.known_device import KnownDevice
from servegym.experiments.claims.harness.settings import Setting, profile
from servegym.experiments.deployments import Engines
from servegym.simulator.errors import ProfileError
from servegym.simulator.types import BATCH
from servegym.simulator.workload import Workload

SETTING = Setting("uniform-512-512", DEVICE)
PD, CO = POLYSERVE


def test_engines_of_a_cell():
    prefill = fleets.optimum(SETTING, 20, True).prefill_engines
    assert prefill is not None
    assert serving(PD.cell(SETTING, 1, 40)) == Engines(prefill=prefill, decode=20 - prefill)
    assert serving(CO.cell(SETTING, 1, 40, engines=8)) == Engines(engines=8)


def test_a_scenario_has_the_fleet():
    workload = Workload.from_columns({"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [2]})
    whole = scenario(PD.cell(SETTING, 1, 40), workload)
    assert [pool.role for pool in whole.deployment.pools] == ["prefill", "decode"]
    assert {pool.scheduler.name for pool in whole.deployment.pools if pool.scheduler} == {"polyserve"}
    assert whole.router is not None and whole.scaler is not None
    assert (whole.router.name, whole.scaler.name, whole.scheduler.name) == ("polyserve",) * 3
    assert {type(pool.estimator) for pool in whole.deployment.pools} == {KnownDevice}
    baseline = scenario(co_chunk(SETTING)._replace(knows_device=False).cell(SETTING, 1, 40), workload)
    assert baseline.scaler is None and baseline.deployment.pools[0].estimator is profile(DEVICE).estimator


@pytest.mark.parametrize("limit", [0.1, 0.69, 0.7, 0.71, 1.9])
def test_bisection_finds_the_limit(limit, monkeypatch):
    cell = CO.cell(SETTING, 1, 40)
    optimal = fleets.optimal_per_s(cell)
    monkeypatch.setattr(fleets, "is_served", lambda cell, rate: rate <= limit * optimal)
    found = fleets.goodput(cell)
    assert limit / fleets.PRECISION <= found["goodput_per_s"] / optimal <= limit
    assert found["optimal_per_s"] == optimal and found["runs"] < 16


@pytest.mark.parametrize("limit", [0.0, 99.0])
def test_outside_the_range_there_is_none(limit, monkeypatch):
    monkeypatch.setattr(fleets, "is_served", lambda cell, rate: rate <= limit * fleets.optimal_per_s(cell))
    assert fleets.goodput(CO.cell(SETTING, 1, 40))["goodput_per_s"] is None


def test_who_is_judged():
    """Of 10 s those of seconds 5 to 9; a prompt of 60,000 tokens is never prefilled in 0.3 s."""
    workload = Workload.from_columns(
        {
            "arrival_s": [1.0, 5.0, 6.0, 8.9, 9.0, 10.0],
            "prompt_tokens": [9, 9, 60_000, 9, 9, 9],
            "output_tokens": 2,
            "ttft_slo_s": 0.3,
        }
    )
    assert fleets.judged(CO.cell(SETTING, 1, 40), workload, 10.0).tolist() == [False, True, False, True, False, False]


def test_a_light_load_is_in_time_and_a_heavy_one_is_given_up():
    cell = CO.cell(SETTING, 1, 100)
    shares = fleets.in_time(cell, 0.1 * fleets.optimal_per_s(cell))
    assert shares is not None and shares["all"] == 1.0 and set(shares) == {"all", "20 ms", "30 ms", "50 ms", "100 ms"}
    assert fleets.in_time(cell, 4 * fleets.optimal_per_s(cell), give_up=True) is None
    shares = fleets.in_time(cell, 4 * fleets.optimal_per_s(cell))
    assert shares is not None and shares["all"] < 0.9


def test_the_known_device_takes_what_the_device_takes():
    device = profile(DEVICE).device
    known = KnownDevice(device)
    batch = np.zeros(2, BATCH)
    batch[0]["decode_requests"], batch[0]["decode_cached_tokens"] = 1, 700
    batch[1]["prefill_requests"], batch[1]["prefill_tokens"], batch[1]["prefill_tokens_squared"] = 1, 300, 300**2
    batch[1]["prefill_tokens_cached"] = 300 * 50
    empty_s = float(device.evaluate(np.zeros(1, BATCH))[0])
    decode_s, prefill_s = device.evaluate(batch) - empty_s
    assert known.request_s(1, 700, True, known.coefficients) == pytest.approx(decode_s)
    assert known.request_s(300, 50, False, known.coefficients) == pytest.approx(prefill_s)
    with pytest.raises(ProfileError, match="'piecewise', not 'linear'"):
        KnownDevice(profile(DEVICE).estimator)


@pytest.mark.parametrize("limit", [1, 2, 19, 20, 21, 57, 80])
def test_the_fewest_engines(limit):
    tried = []

    def is_enough(engines: int) -> bool:
        tried.append(engines)
        return engines >= limit

    assert polyserve_fig8.fewest(is_enough, 20) == limit
    assert len(tried) == len(set(tried)) <= 14


def test_more_engines_than_there_are():
    assert polyserve_fig8.fewest(lambda engines: False, 20) is None


def rows(*cells) -> pd.DataFrame:
    return pd.DataFrame([{**cell._asdict(), "goodput_per_s": value} for cell, value in cells])


def test_rows_of_a_fleet_and_size():
    other = Fleet("CO-fitted", "polyserve", "polyserve", False, knows_device=False)
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
