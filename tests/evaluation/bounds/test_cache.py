"""A bound is found once for each scenario; what it depends on is in its identity."""

import dataclasses

import numpy as np
import pytest

from experiments.pages.tightness import shares
from servegym.baselines.registry import scheduler
from servegym.evaluation.bounds import clairvoyant
from servegym.evaluation.bounds.cache import cached_bound
from servegym.evaluation.bounds.clairvoyant import tdg_upper_bound
from servegym.latency_models.profile import load_profile
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain


@pytest.fixture
def scenario():
    workload = Workload.from_columns({"arrival_s": np.arange(20) * 0.05, "prompt_tokens": 2000, "output_tokens": 40})
    return Scenario(workload, load_profile("a100-llama3-8b").deployment(), scheduler("edf"))


@pytest.fixture
def solved(monkeypatch):
    """How often a bound was found, not read."""
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return tdg_upper_bound(*arguments)

    monkeypatch.setattr(clairvoyant, "tdg_upper_bound", counted)
    return calls


def test_it_is_found_once_for_all_schedulers(scenario, solved, tmp_path):
    first = cached_bound(scenario, tmp_path / "new")
    again = cached_bound(dataclasses.replace(scenario, scheduler=scheduler("sjf")), tmp_path / "new")
    assert first == again
    assert len(solved) == 1
    assert first.gain == tdg_upper_bound(scenario).gain < first.ideal_gain
    assert [file.suffix for file in (tmp_path / "new").iterdir()] == [".json"]


def test_whatever_it_depends_on_makes_another_file(scenario, solved, tmp_path):
    cached_bound(scenario, tmp_path)
    deployment = scenario.deployment
    for change in (
        {"gain": Gain(first_weight=2.0)},
        {"until_s": 1.0},
        {"workload": scenario.workload.replace(weight=2.0)},
        {"deployment": dataclasses.replace(deployment, engines=2)},
        {"deployment": dataclasses.replace(deployment, device=deployment.device.plus_constant(0.001))},
        {"deployment": dataclasses.replace(deployment, total_blocks=200)},
    ):
        cached_bound(dataclasses.replace(scenario, **change), tmp_path)
    cached_bound(scenario, tmp_path, bin_s=0.5)
    cached_bound(scenario, tmp_path, fineness=3)
    assert len(solved) == len(list(tmp_path.iterdir())) == 9


def test_a_damaged_file_is_written_anew(scenario, solved, tmp_path):
    first = cached_bound(scenario, tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_text()
    for text in (whole[:40], "[]", whole.replace(scenario.workload.digest, "another")):
        file.write_text(text)
        assert cached_bound(scenario, tmp_path).gain == first.gain
    assert len(solved) == 4
    assert cached_bound(scenario, tmp_path).gain == first.gain
    assert len(solved) == 4


@pytest.mark.slow
def test_shares_of_every_scheduler(tmp_path):
    table = shares(requests=60, loads=(2.0,), directory=tmp_path)
    assert (table["share_of_bound"] > 0).all() and (table["share_of_bound"] <= 1).all()
    np.testing.assert_allclose(table["tdg_ratio"], table["share_of_bound"] * table["bound_ratio"])
    assert table["gain"].nunique() > 3
