"""A claim on another device than its own: by the rules of the one it stands in for, and a page that says so."""

import dataclasses
import datetime
import json

import numpy as np
import pytest

from experiments.claims.harness.cells import Cell, scenario
from experiments.claims.harness.goodput import scenario_of
from experiments.claims.harness.page import render
from experiments.claims.harness.registry import claims, find_claims
from experiments.claims.harness.settings import (
    FULL,
    QUICK,
    Setting,
    profile,
    rules_of,
    saturation_per_s,
    served_by,
    slo_recipe,
    stand_in,
)
from experiments.claims.harness.study import Study
from experiments.claims.harness.violations import sarathi
from servegym.errors import ExperimentError, ProfileError
from servegym.latency_models.profile import profile_document
from servegym.simulator.features.front_end import FrontEnd
from tests.experiments.claims.synthetic import DEVICE, TINY, synthetic_claim

OTHER, LARGE = "h100-llama3-8b", "a100-llama3-70b-tp4"


def test_claim_runs_on_the_other_device_alone_by_the_rules_of_the_one_it_stands_in_for():
    (claim,) = find_claims(["qoserve-fig7"])
    (device,) = claim.on(OTHER, LARGE).sized(FULL).devices
    assert (served_by(device), rules_of(device)) == (OTHER, LARGE)
    assert profile(device).name == OTHER
    assert slo_recipe(device).startswith("proserve-32b:") and slo_recipe(OTHER).startswith("proserve:")
    assert sarathi("edf", device) == sarathi("edf", LARGE) != sarathi("edf", OTHER)
    assert claim.on(OTHER).devices == (stand_in(OTHER, claim.devices[0]),)


def test_device_of_its_own_has_its_own_rules():
    assert (served_by(DEVICE), rules_of(DEVICE)) == (DEVICE, DEVICE)


def test_load_is_relative_to_the_saturation_of_the_device_that_runs():
    moved, own = Setting("azure-conv", stand_in(OTHER, DEVICE)), Setting("azure-conv", OTHER)
    assert saturation_per_s(moved) == saturation_per_s(own) > 1.5 * saturation_per_s(Setting("azure-conv", DEVICE))
    built = scenario(Cell(*moved, "sjf", 1.0, 1, 20))
    assert built.deployment.pools[0].device.coefficients.tolist() == profile(OTHER).device.coefficients.tolist()


def test_front_end_of_a_profile_is_simulated_where_scenarios_are_built_by_hand_too(tmp_path):
    behind = {"request_s": 0.02, "source": "by hand", "error": "not known"}
    path = tmp_path / "behind.json"
    path.write_text(json.dumps(profile_document(OTHER) | {"front_end": behind}))
    cell = Cell("azure-conv", stand_in(str(path), DEVICE), "sjf", 1.0, 1, 20)
    built = scenario(cell)
    assert built.front_end == FrontEnd(request_s=0.02)
    assert scenario_of(cell, built.workload).front_end == built.front_end
    assert scenario_of(cell._replace(device=OTHER), built.workload).front_end is None


@pytest.mark.parametrize("claim", claims().values(), ids=claims())
def test_each_claim_knows_what_to_run_on_another_device(claim):
    for own in claim.sized(FULL).devices:
        size = claim.on(OTHER, own).sized(QUICK)
        assert all(next(iter(claim.cells(setting, size))).device == stand_in(OTHER, own) for setting in size.settings)


def test_device_that_the_claim_has_no_setting_on_is_refused():
    with pytest.raises(ExperimentError, match=r"qoserve-medha has no setting on a6000-.* it has a100-llama3-8b"):
        find_claims(["qoserve-medha"])[0].on(OTHER, "a6000-llama3.1-8b")
    with pytest.raises(ProfileError, match="unknown profile 'h900'"):
        synthetic_claim().on("h900")


def test_page_says_on_which_device_it_ran_and_is_not_of_record(tmp_path):
    claim = synthetic_claim()
    claim = dataclasses.replace(claim, prose=dataclasses.replace(claim.prose, reading="Of the own device."))
    outcome = Study(claim.on(OTHER), dataclasses.replace(TINY, name="full")).run(tmp_path, lambda done, cells: None)
    page = render(outcome, datetime.date(2026, 1, 2))
    assert f"`servegym reproduce synthetic --seeds 1 --device {OTHER} --instead-of {DEVICE}`" in page
    assert "**Not the claim's own device**: Llama-3-8B on one NVIDIA H100" in page
    assert not outcome.is_of_record and "Of the own device." not in page
    assert np.isclose(outcome.settings[0].checks[0].interval.mean, 0.5)
