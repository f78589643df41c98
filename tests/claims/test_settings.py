"""A claim has the settings all have, or its own; a family has the SLOs of its paper."""

import dataclasses

from servegym.experiments.claims.harness.cells import Cell, scenario
from servegym.experiments.claims.harness.settings import FULL, QUICK, slo_recipe
from tests.claims.synthetic import DEVICE, synthetic_claim


def test_claim_without_settings_of_its_own_has_those_of_the_size():
    assert synthetic_claim().sized(FULL) == FULL


def test_claim_has_all_its_own_settings_in_full_size_and_the_first_in_a_smaller_one():
    claim = dataclasses.replace(synthetic_claim(), families=("qoserve-code", "semantic"), devices=("one", "other"))
    assert [setting.name for setting in claim.sized(FULL).settings] == [
        "qoserve-code on one", "semantic on one", "qoserve-code on other", "semantic on other",
    ]  # fmt: skip
    assert [setting.name for setting in claim.sized(QUICK).settings] == ["qoserve-code on one"]
    assert claim.sized(FULL).seeds == FULL.seeds


def test_recipe_is_of_the_familys_paper_and_of_the_models_size():
    assert slo_recipe(DEVICE, "qoserve-code").startswith("qoserve:idle_tpot_s=")
    assert slo_recipe(DEVICE, "semantic") == "semantic"
    assert slo_recipe(DEVICE, "azure-conv") == slo_recipe(DEVICE)
    assert slo_recipe("a100-llama3-70b-tp4").startswith("proserve-32b:")


def test_cell_may_have_a_recipe_of_its_own():
    cell = Cell("azure-conv", DEVICE, "sjf", 1.0, 3, 40)
    own = cell._replace(slo=f"{slo_recipe(DEVICE)},clients=4")
    plain, clients = scenario(cell).workload.table, scenario(own).workload.table
    assert set(plain["client"]) == {0} and len(set(clients["client"])) > 1
    assert (plain["priority"] == clients["priority"]).all()
