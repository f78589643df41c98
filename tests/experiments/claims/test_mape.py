"""An error of a device's estimator is one result of that device, however many families the device serves."""

import pytest

from experiments.claims.harness.checks import HOLDS
from experiments.claims.harness.page import device_table, examined_table
from experiments.claims.harness.registry import claims
from experiments.claims.harness.settings import DEVICES, FAMILIES, FULL
from experiments.claims.harness.study import Study
from experiments.claims.proserve_mape import mape_random

CLAIM = claims()["proserve-mape"]
SERVED = {
    "mape_served_percent": 4.0, "bias_at_bend_percent": 15.0, "bias_elsewhere_percent": 0.0,
    "share_at_bend_percent": 50.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def outcome():
    """Random batches: 4 to 4.5 % on the first device, 8 to 8.5 % on the second, by seed alone."""
    study = Study(CLAIM, FULL)
    rows = []
    for cell in study.cells:
        percent = 4.0 * (1 + DEVICES.index(cell.device)) + 0.1 * (cell.seed - FULL.seeds[0])
        served = SERVED | {"mape_served_percent": 4.0 + 4.0 * (cell.family == FAMILIES[0])}
        rows.append({**cell._asdict(), "mape_random_percent": percent, **served})
    return study.judged(rows)


def test_each_device_is_one_setting(outcome):
    assert [one.setting.name for one in outcome.settings] == list(DEVICES)
    assert [one.holds for one in outcome.settings] == [True, False]
    assert outcome.tally[""] == {"MAPE on held-out batches, %": (1, 2)}


def test_a_seed_counts_once_in_an_interval(outcome):
    for one in outcome.settings:
        assert len(one.checks[0].values) == len(FULL.seeds)


def test_what_is_served_is_examined_by_family(outcome):
    for one in outcome.settings:
        of_all = [check for check in one.checks if check.examines and check.name == "MAPE, %"]
        assert [check.verdict == HOLDS for check in of_all] == [False, True, True, True]
        assert [check.examines.split()[6] for check in of_all] == list(FAMILIES)


def test_page_has_a_column_a_device_and_no_family(outcome):
    table = device_table(DEVICES[0], outcome.settings[:1])
    assert table.splitlines()[0] == f"| {DEVICES[0]} | expected | measured |"
    assert "2 of 2" in examined_table(outcome)[0]


def test_random_batches_are_those_of_a_seed():
    assert mape_random(DEVICES[0], 3) == mape_random.__wrapped__(DEVICES[0], 3) != mape_random(DEVICES[0], 4)
