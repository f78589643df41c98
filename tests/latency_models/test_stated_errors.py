"""What is said of the errors of profiles."""

import dataclasses
import re
from pathlib import Path

import pytest

from servegym.latency_models.profile import load_profile
from servegym.latency_models.stated_errors import STATES_ALONE, expected, fit_percent, measured_percent, statement
from servegym.simulator.memory.kv_groups import KvCacheGroup

H100 = Path(__file__).parents[2] / "docs/results/h100.md"
STEPS = re.compile(r"\| h100-llama3-8b \| (?:decode|mixed) \| (\d+) \| ([\d.]+) % \|")


def test_the_error_of_a_profile_that_was_measured_later_is_that_of_its_page():
    section = H100.read_text("utf-8").partition("Steps of the runs at saturation:")[2].partition("term by term")[0]
    served = [(int(number), float(error)) for number, error in STEPS.findall(section)]
    assert len(served) == 2
    mean = sum(number * error for number, error in served) / sum(number for number, _ in served)
    assert measured_percent(load_profile("h100-llama3-8b")) == pytest.approx(mean, abs=0.06)


def test_what_was_measured_later_is_said():
    said = statement(load_profile("h100-llama3-8b"))
    assert said.startswith("These are composition errors") and said.endswith("were measured: 5.6 % off on average.")
    assert "No iteration" not in said and "No iteration" in statement(load_profile("h200-llama3-8b"))


def test_a_fit_is_no_measurement():
    profile = load_profile("a100-llama3-8b")
    assert measured_percent(profile) is None and fit_percent(profile) == pytest.approx(1.6, abs=0.1)
    assert expected(profile).startswith("never measured; in 14 measured runs")


def test_measured_runs_say_nothing_of_states_alone():
    profile = load_profile("a100-llama3-8b")
    alone = dataclasses.replace(profile, kv=dataclasses.replace(profile.kv, groups=(KvCacheGroup(state=True),)))
    assert expected(alone) == f"never measured; {STATES_ALONE}"
