"""The old verdicts are read from the pages as they print them; stand-ins differ from old profiles in what is said."""

from pathlib import Path

import pytest

from experiments.better_devices import tuned, verdicts
from experiments.better_devices.devices import put_right
from experiments.better_devices.page import by_claim, changed, found, read
from experiments.better_devices.plan import CHEAP, PLAN, left_out
from experiments.better_devices.study import verdicts_file
from experiments.claims.harness.checks import FAILS, HOLDS, UNDECIDED, Range
from experiments.claims.harness.outcome import Outcome, SettingOutcome
from experiments.claims.harness.page import device_table
from experiments.claims.harness.registry import claims
from experiments.claims.harness.settings import Setting
from experiments.measured.known_terms import FRONT_END
from servegym.errors import ExperimentError
from servegym.latency_models.profile import load_profile, parse_profile
from tests.experiments.claims.synthetic import DEVICE, TINY, check, synthetic_claim

PAGES = Path(__file__).parents[3] / "docs" / "results"
NAN = float("nan")


def settings() -> list[SettingOutcome]:
    """Every verdict there is, a check without a value, one that examines, and two that differ in what is expected."""
    of_one = [check([1, 1.2, 1.1]), check([1, 1.2, 1.1], Range(high=0)), check([-1, 1, 0], examines="another way")]
    of_other = [check([-1, 1, 0.1]), check([1, NAN, 1], Range(high=0)), check([5, 5, 5], examines="another way")]
    return [
        SettingOutcome(Setting("azure-conv", DEVICE), of_one),
        SettingOutcome(Setting("sharegpt", DEVICE), of_other),
    ]


def test_checks_read_from_a_page_are_those_it_was_written_from():
    import pandas as pd

    outcome = Outcome(synthetic_claim(), TINY, settings(), pd.DataFrame(), pd.DataFrame())
    of_page = verdicts.of_page(f"# A page\n\n{device_table(DEVICE, settings())}\nmore\n", DEVICE, "a page")
    assert sorted(of_page) == sorted(verdicts.of_outcome(outcome))
    assert [one.verdict for one in of_page] == [HOLDS, UNDECIDED, FAILS, FAILS]


def test_page_without_the_device_or_with_another_table_is_refused():
    with pytest.raises(ExperimentError, match="a page has no table of h100"):
        verdicts.of_page(device_table(DEVICE, settings()), "h100-llama3-8b", "a page")
    with pytest.raises(ExperimentError, match="a page: 'much' of difference is no measured check"):
        verdicts.of_page(
            f"| {DEVICE} | expected | sharegpt |\n| - | - | - |\n| difference | > 0 | much |", DEVICE, "a page"
        )


def test_changes_are_by_setting_name_and_range_and_flips_are_between_holding_and_failing():
    one = verdicts.Found("sharegpt", "lead", "> 0", "1 ± 0.1", HOLDS)
    again = [one._replace(verdict=FAILS), one._replace(expected="> 2", verdict=UNDECIDED)]
    flip, other = verdicts.changes([one, one._replace(expected="> 2")], again, "a page")
    assert (flip.changed, flip.flips, other.changed, other.flips) == (True, True, True, False)
    with pytest.raises(ExperimentError, match="a page has no check 'lag' of sharegpt"):
        verdicts.changes([one], [one._replace(name="lag")], "a page")


def test_every_claim_of_the_plan_is_on_a_page_in_the_families_planned(tmp_path):
    for planned in PLAN:
        claim = read(planned, PAGES, tmp_path)
        assert claim.page and planned.without not in {one.family for one in claim.page}


def test_what_is_not_planned_is_told():
    told = {id: olds for id, olds, _ in left_out()}
    for id, claim in claims().items():
        planned = {one.old for one in PLAN if one.claim == id}
        assert set(told.get(id, [])) == set(claim.devices or ("a100-llama3-8b", "ascend910b-qwen3-8b")) - planned


def test_tables_count_what_was_run_and_show_the_checks_that_are_other(tmp_path):
    planned = next(one for one in CHEAP if one.claim == "proserve-mape")
    (page,) = read(planned, PAGES, tmp_path).page
    verdicts.save([page._replace(verdict=FAILS, measured="9 ± 1")], verdicts_file(planned, "judged", tmp_path))
    claim = read(planned, PAGES, tmp_path)
    assert any("| 1 | 0 (0%) | 1 (100%) | 1 (100%) | refuted |" in line for line in found([claim]))
    assert "| 0 / 0 / 1 | 1, 1 |" in list(by_claim([claim]))[-1]
    assert "| 9 ± 1, **fails** |" in list(changed([claim]))[-1]


def test_old_profile_put_right_has_no_cpu_time_of_a_step_and_a_front_end():
    old = load_profile(DEVICE)
    new = parse_profile(put_right(DEVICE), "put right")
    assert new.front_end is not None
    assert new.front_end.request_s == FRONT_END.before_s
    for role in ("device", "estimator"):
        less = getattr(old, role).plus_constant(-old.cpu_overhead_s)
        assert getattr(new, role).coefficients == pytest.approx(less.coefficients, rel=1e-6)
    assert new.kv == old.kv


def test_published_winners_are_read_from_the_page_of_the_tuning(tmp_path):
    found_there = tuned.published(PAGES / tuned.PAGE)
    assert list(found_there) == list(tuned.STUDIES)
    assert found_there["router"].startswith("scheduler slide-batching + router gorouting:alpha=")
    (tmp_path / "page.md").write_text("# Another page\n")
    with pytest.raises(ExperimentError, match="names no winner of engine, router, joint"):
        tuned.published(tmp_path / "page.md")


def test_tuning_is_moved_with_its_traces_loads_and_seeds():
    config, published = tuned.moved("h100-llama3-8b"), tuned.load_tuning(tuned.TUNING)
    for name in ("panel", "validation", "test"):
        here, there = getattr(config, name), getattr(published, name)
        assert here.devices == ("h100-llama3-8b",)
        assert (here.traces, here.loads, here.seeds, here.first_seed) == (
            there.traces, there.loads, there.seeds, there.first_seed,
        )  # fmt: skip
