"""A claim has the settings all have, or its own; a family has the SLOs of its paper."""

import dataclasses

import numpy as np
import pytest

from experiments.claims.harness.cells import Cell, scenario
from experiments.claims.harness.settings import FULL, LONGER, QUICK, Setting, seed_of, slo_recipe, workload
from servegym.errors import ExperimentError
from tests.experiments.claims.synthetic import DEVICE, synthetic_claim


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


def test_families_have_arrivals_of_their_own_and_devices_of_a_family_share_them():
    def gaps(family, device, seed=3000):
        gaps_s = np.diff(workload(Setting(family, device), 1.0, seed, 200).table["arrival_s"])
        return gaps_s / gaps_s.mean()

    conv, code = gaps("azure-conv", DEVICE), gaps("azure-code", DEVICE)
    assert abs(np.corrcoef(conv, code)[0, 1]) < 0.25
    assert gaps("azure-conv", "ascend910b-qwen3-8b") == pytest.approx(conv)
    assert abs(np.corrcoef(conv, gaps("azure-conv", DEVICE, 3001))[0, 1]) < 0.25


def test_seed_of_a_family_is_a_number_that_does_not_change_from_release_to_release():
    assert seed_of("azure-conv", 3000) == 157101698166766
    assert seed_of("azure-code", 3000) != seed_of("azure-conv", 3000) != seed_of("azure-conv", 3001)


def test_runs_without_a_length_of_their_own_are_longer_in_full_size():
    conv, long = Setting("azure-conv", DEVICE), Setting("mooncake-conversation", DEVICE)
    assert FULL.requests_of(conv) == LONGER * FULL.requests and FULL.requests_of(long) == LONGER * FULL.requests // 3
    assert QUICK.requests_of(conv) == QUICK.requests


def test_fresh_seeds_are_as_many_from_another_one_on():
    size = FULL.seeded(10_000)
    assert size.seeds == (10_000, 10_001, 10_002, 10_003, 10_004)
    assert dataclasses.replace(size, seeds=FULL.seeds) == FULL == FULL.seeded(FULL.seeds[0])


@pytest.mark.parametrize(
    ("first", "named"),
    [
        (-1, "a seed is 0 or more"),
        (0, "0 to 999"),
        (500, "0 to 999"),
        (1996, "2000 to 2004"),
        (2004, "2000 to 2004"),
        (1000, "seeds 2000 to 2004, which choose the best baseline, have some in common"),
        (6004, "7000 to 7004"),
        (7000, "7000 to 7004"),
    ],
)
def test_seeds_that_were_looked_at_are_refused(first, named):
    with pytest.raises(ExperimentError, match=named):
        FULL.seeded(first)
