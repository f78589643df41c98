"""Loads and saturation."""

import numpy as np
import pytest

from servegym.api import simulate
from servegym.errors import SpecError
from servegym.latency_models.profile import load_profile
from servegym.scenarios import saturation
from servegym.scenarios.saturation import saturation_rate_per_s
from servegym.scenarios.values import LOADS, load_title, parse_load
from servegym.traces.workloads import build_workload

PROFILE = load_profile("a100-llama3-8b")


def test_loads_have_names():
    assert {name: parse_load(name) for name in LOADS} == {"light": 0.3, "medium": 0.7, "high": 1.0, "overload": 1.4}
    assert (parse_load("0.85"), load_title(0.85), load_title(1.4)) == (0.85, "0.85", "1.4 (overload)")


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "heavy", ""])
def test_what_is_no_load(text):
    with pytest.raises(SpecError, match="light"):
        parse_load(text)


def test_saturation_is_requests_over_the_time_to_serve_all_at_once():
    workload = build_workload("azure-conv", requests=saturation.SATURATION_REQUESTS, arrivals="at-once")
    result = simulate(workload, scheduler="sarathi-fcfs")
    assert np.all(workload.table["arrival_s"] == 0)
    assert saturation_rate_per_s("azure-conv", PROFILE) == len(workload) / result.requests["finish_s"].max()


def test_engines_add_up():
    one, three = (saturation_rate_per_s("azure-conv", PROFILE, engines) for engines in (1, 3))
    assert three == pytest.approx(3 * one, rel=0.02)


def test_a_file_is_represented_as_a_whole(tmp_path, monkeypatch):
    """Its second half is ten times as long as its first: the first requests alone would look twice as fast."""
    rows = ["0,200,20"] * 200 + ["0,2000,200"] * 200
    path = tmp_path / "drift.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    whole = saturation_rate_per_s(str(path), PROFILE)
    monkeypatch.setattr(saturation, "SATURATION_REQUESTS", 100)
    assert saturation_rate_per_s(str(path), PROFILE) == pytest.approx(whole, rel=0.15)


def test_a_shorter_file_is_served_whole(tmp_path):
    path = tmp_path / "short.csv"
    path.write_text("prompt_tokens,output_tokens\n" + "500,50\n" * 30)
    result = simulate(build_workload(path, arrivals="at-once"), scheduler="sarathi-fcfs")
    assert saturation_rate_per_s(str(path), PROFILE) == 30 / result.requests["finish_s"].max()
