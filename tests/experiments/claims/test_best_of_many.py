"""proserve-fig10 and schedulers-table judge SlideBatching against the best of others, on rows made up for it."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from experiments.claims import proserve_fig10, schedulers_table
from experiments.claims.harness.checks import FAILS, HOLDS, Check
from experiments.claims.harness.registry import claims
from experiments.claims.harness.selection import SHIFT
from experiments.claims.harness.settings import Setting
from tests.experiments.claims.synthetic import DEVICE, TINY

pytestmark = pytest.mark.slow

SETTING = Setting("azure-conv", DEVICE)
WHOLE = "slide-batching"
COLUMNS = (
    "tdg_ratio", "slo_attainment", "deadline_attainment", "slo_attainment_high_priority",
    "slo_attainment_low_priority", "ttft_p99_s", "throughput_requests_per_s", "decodes_in_time_after_late_first",
)  # fmt: skip


def rows_of(claim: str, share_of) -> pd.DataFrame:
    """The claim's own cells, with share_of(cell) as every figure."""
    rows = [
        {**cell._asdict(), **dict.fromkeys(COLUMNS, share_of(cell))} for cell in claims()[claim].cells(SETTING, TINY)
    ]
    return pd.DataFrame(rows)


def share(cell, ours: float, chooses: float | None = None) -> float:
    """0.5 for all others; ours for SlideBatching in any form, another where seeds choose; seeds differ a little."""
    noise = 0.001 * (cell.seed % 3)
    if not cell.scheduler.startswith(WHOLE):
        return 0.5 + noise
    return (ours if chooses is None or cell.seed < SHIFT else chooses) + noise


def verdicts(checks: list[Check], words: str) -> set[str]:
    found = {check.verdict for check in checks if words in check.name}
    assert found, f"no check of {words}"
    return found


@pytest.mark.parametrize("claim", ["proserve-fig10", "schedulers-table"])
@pytest.mark.parametrize(
    ("ours", "low", "high"), [(0.6, HOLDS, HOLDS), (0.499, HOLDS, FAILS), (0.4, FAILS, FAILS), (0.5, HOLDS, FAILS)]
)
def test_slide_batching_has_to_be_near_the_best_at_low_load_and_ahead_at_high_load(claim, ours, low, high):
    checks = claims()[claim].judge(rows_of(claim, lambda cell: share(cell, ours)))
    assert verdicts(checks, "% over the best") == {low}
    assert verdicts([check for check in checks if "load 1" in check.name], ": lead over the best") == {high}


@pytest.mark.parametrize("claim", ["proserve-fig10", "schedulers-table"])
def test_the_best_other_is_the_one_that_other_seeds_choose(claim):
    def lucky(cell):  # sjf is ahead where seeds choose, and behind all others where they judge
        return share(cell, 0.6) + (0.0 if cell.scheduler != "sjf" else 0.3 if cell.seed > SHIFT else -0.2)

    own = [check for check in claims()[claim].judge(rows_of(claim, lucky)) if not check.examines]
    leads = [check for check in own if ": lead over the best" in check.name]
    assert [check.interval.mean for check in leads] == pytest.approx([0.3] * 4)


def test_what_examines_does_not_count_among_the_rows_that_judge():
    def wrong_where_examined(cell):
        examined = not cell.buffered or cell.exact_estimator or cell.scheduler.startswith(f"{WHOLE}:")
        return share(cell, 0.1 if examined or cell.slo.endswith("clients=2") else 0.6)

    for claim in ("proserve-fig10", "schedulers-table"):
        checks = claims()[claim].judge(rows_of(claim, wrong_where_examined))
        own = [check for check in checks if not check.examines]
        assert verdicts(own, "over the best") == {HOLDS}


def test_largest_gain_is_chosen_by_other_seeds_and_where_the_baseline_has_enough():
    def by_load(cell):
        if not cell.scheduler.startswith(WHOLE):
            return {0.3: 0.5, 0.5: 0.5, 0.7: 0.5, 1.0: 0.5, 1.4: 0.04}[cell.load]  # too little at 1.4
        chosen = {0.3: 0.5, 0.5: 0.6, 0.7: 0.9, 1.0: 0.5, 1.4: 0.9}[cell.load]  # most at 0.7
        measured = {0.3: 0.5, 0.5: 1.0, 0.7: 0.6, 1.0: 0.5, 1.4: 0.9}[cell.load]
        return measured if cell.seed < SHIFT else chosen

    found = proserve_fig10.largest_gain(rows_of("proserve-fig10", by_load), "tdg_ratio")
    assert (found.load, found.baseline) == (0.7, "vllm-fcfs")
    assert found.chosen == pytest.approx(80)
    assert found.measured == pytest.approx([20.0] * len(TINY.seeds))


def test_largest_gain_where_no_baseline_has_enough_is_no_number():
    found = proserve_fig10.largest_gain(rows_of("proserve-fig10", lambda cell: 0.01), "tdg_ratio")
    assert np.isnan(found.measured).all()


def test_deadline_first_policies_have_to_fall_below_the_others():
    def falling(cell):
        return 0.1 if cell.scheduler in proserve_fig10.DEADLINE_FIRST and cell.load >= 1 else 0.5

    checks = claims()["proserve-fig10"].judge(rows_of("proserve-fig10", falling))
    own = [check for check in checks if not check.examines and " - " in check.name]
    assert len(own) == 6 and {check.verdict for check in own} == {HOLDS}
    equal = claims()["proserve-fig10"].judge(rows_of("proserve-fig10", lambda cell: 0.5))
    assert {check.verdict for check in equal if not check.examines and " - " in check.name} == {FAILS}


def test_appendices_name_the_best_and_slide_batchings_place(tmp_path):
    def one_ahead(cell):
        return share(cell, 0.6) + (0.3 if cell.scheduler == "sjf" else 0.0)

    text = claims()["proserve-fig10"].appendix(rows_of("proserve-fig10", one_ahead), tmp_path)
    assert text.count("| azure-conv on a100-llama3-8b | *0.601*, sjf 0.801 |") == 2
    text = schedulers_table.appendix(rows_of("schedulers-table", one_ahead), tmp_path)
    assert "sjf 0.801; SlideBatching 0.601, place 2 |" in text
    table = pd.read_csv(tmp_path / "schedulers-table.csv").set_index(["scheduler", "load"])
    assert table.loc[("sjf", 1.0), "tdg_ratio_difference"] == pytest.approx(0.2)
    assert set(table["family"]) == {"azure-conv"}


def test_every_registered_scheduler_is_in_the_table():
    from servegym.baselines.registry import scheduler_names

    size = dataclasses.replace(TINY, seeds=(1,))
    plain = schedulers_table.plain(pd.DataFrame(cell._asdict() for cell in schedulers_table.cells(SETTING, size)))
    assert list(plain["scheduler"].unique()) == scheduler_names()
