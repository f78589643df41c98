"""Measuring a design into a table: what is written, resuming, and that calibrate finds the device again."""

import json

import numpy as np
import pandas as pd
import pytest

from servegym.adapters.profiling.design import Space, design
from servegym.adapters.profiling.measuring import Measurement, Plan, measure
from servegym.errors import ProfilingError
from servegym.latency_models.calibration import calibrate
from servegym.latency_models.measured_batches import read_batches
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.profile import load_profile

COEFFICIENTS = {"a_p": 2e-9, "b_p": 3e-9, "c_p": 2e-5, "a_d": 4e-9, "b_d": 3e-5, "t_c": 2e-3}
TRUE = LatencyModel.from_values("linear", COEFFICIENTS)


class Meter:
    """A device that is `TRUE`, with repeats 10 % shorter and 20 % longer; it can be made to fail."""

    def __init__(self, name="mine", last=None, unformed=()):
        self.space, self.name, self.last, self.unformed = Space(512, 32, 2048, 65536), name, last, unformed
        self.measured = []
        self.warmed = 0

    def facts(self):
        return {"engine": self.name}

    def warm_up(self):
        self.warmed += 1

    def measure(self, batch, repeats):
        if self.last is not None and len(self.measured) == self.last:
            raise KeyboardInterrupt
        self.measured.append(batch)
        if len(self.measured) - 1 in self.unformed:
            return None
        sums = batch.sums()
        seconds = TRUE.evaluate(sums)[0] * np.resize([1.0, 0.9, 1.2], repeats)
        return Measurement(sums, seconds, {"part_s": 0.5})

    def close(self):
        pass


def test_calibrate_finds_the_device_again(tmp_path):
    table = measure(Meter(), Plan(90, 3), tmp_path)
    result = calibrate(
        read_batches(table), "linear", "mine", load_profile("a100-llama3-8b"), seed=0, held_out_share=0.3
    )
    assert result.device.error.max_percent < 0.01
    assert result.device.model.coefficients == pytest.approx(TRUE.coefficients, rel=1e-3)


def test_rows_and_the_record(tmp_path):
    meter = Meter()
    told = []
    table = measure(meter, Plan(6, 3, 1), tmp_path, lambda *now: told.append(now))
    rows = pd.read_csv(table)
    assert rows["scene"].tolist() == list(range(6))
    assert rows["repeats"].tolist() == [3] * 6
    assert rows["duration_s"].to_numpy() == pytest.approx(rows["fastest_s"].to_numpy() / 0.9)
    assert rows["slowest_s"].to_numpy() == pytest.approx(rows["duration_s"].to_numpy() * 1.2)
    assert (rows["part_s"] == 0.5).all()
    assert meter.measured == design(meter.space, 6, 1)
    assert told == [(at + 1, 6) for at in range(6)]
    record = json.loads((tmp_path / "profile.json").read_text())
    assert record["facts"] == {"engine": "mine"}
    assert record["plan"] == {"batches": 6, "repeats": 3, "seed": 1}


def test_it_goes_on_where_it_was_stopped(tmp_path):
    whole = measure(Meter(), Plan(12, 3), tmp_path / "whole").read_text()
    with pytest.raises(KeyboardInterrupt):
        measure(Meter(last=5), Plan(12, 3), tmp_path / "parts")
    later = Meter()
    table = measure(later, Plan(12, 3), tmp_path / "parts")
    assert table.read_text() == whole
    assert (len(later.measured), later.warmed) == (7, 1)
    again = Meter()
    measure(again, Plan(12, 3), tmp_path / "parts")
    assert (again.measured, again.warmed) == ([], 0)
    longer = Meter()
    measure(longer, Plan(14, 3), tmp_path / "parts")
    assert longer.measured == design(longer.space, 14)[12:]


def test_batches_that_could_not_be_formed_are_left_out(tmp_path):
    table = measure(Meter(unformed={1, 2}), Plan(5, 2), tmp_path)
    assert pd.read_csv(table)["scene"].tolist() == [0, 3, 4]
    with pytest.raises(ProfilingError, match="none of 2"):
        measure(Meter(unformed={0, 1}), Plan(2, 2), tmp_path / "none")


def test_another_measurement_is_not_gone_on_with(tmp_path):
    measure(Meter(), Plan(3, 2), tmp_path)
    for meter, plan, word in (
        (Meter("another"), Plan(3, 2), "facts"),
        (Meter(), Plan(3, 4), "plan"),
        (Meter(), Plan(3, 2, 1), "plan"),
    ):
        with pytest.raises(ProfilingError, match=word):
            measure(meter, plan, tmp_path)
    (tmp_path / "profile.json").write_text("{")
    with pytest.raises(ProfilingError, match="another folder"):
        measure(Meter(), Plan(3, 2), tmp_path)


@pytest.mark.parametrize("settings", [{"batches": 0}, {"repeats": 0}])
def test_wrong_plans(settings):
    with pytest.raises(ProfilingError):
        Plan(**settings)
