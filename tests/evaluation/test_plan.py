"""A plan: which numbers of engines it tries, what it finds beside a goodput, what it keeps and what it costs."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from servegym.errors import ExperimentError, SpecError
from servegym.evaluation.bisection import fewest
from servegym.evaluation.goodput import GoodputSearch, SearchCell
from servegym.evaluation.plan import MOST, Plan, PlanCell, make_plan
from servegym.evaluation.plan_plot import label_of, plot_plan
from servegym.evaluation.search_tables import summarise_plan
from servegym.evaluation.targets import parse_target
from servegym.scenarios.spec import ServingSpec

DEVICES = ("a100-llama3-8b", "h100-llama3-8b")
SPEC = ServingSpec().replaced(device=DEVICES, scheduler="edf", router="min-load")
AT_RATE = Plan(SPEC.replaced(rate_per_s=12.0), parse_target("attainment=0.8"), 2, 60.0)
OF_TWO = Plan(SPEC.replaced(engines=2), parse_target("attainment=0.8"), 2, 60.0)


@pytest.mark.parametrize("most", [1, 2, 5, 24])
def test_the_fewest_are_found_wherever_one_begins(most):
    for first in range(1, most + 2):
        for limit in range(1, most + 2):
            asked = []
            found = fewest(lambda n, asked=asked, limit=limit: asked.append(n) or n >= limit, first, most)
            assert found.runs == len(asked) == len(set(asked)) and set(asked) <= set(range(1, most + 1))
            assert (found.enough, found.too_few) == ((limit, limit - 1) if limit <= most else (None, most))


def test_fewest_engines_are_such_that_one_less_is_too_few():
    cell = PlanCell(DEVICES[0], "edf", 1)
    row = AT_RATE.run(cell)
    assert row["found"] == "within" and row["rate_per_s"] == 12.0 and row["share"] >= 0.8
    for engines, enough in ((row["engines"], True), (row["engines"] - 1, False)):
        served = AT_RATE.of(cell.device, engines, 60.0).served(SearchCell("edf", 1), 12.0)
        assert (served is not None) == enough
    assert row["output_tokens"] == AT_RATE.by_device[cell.device].workload(12.0, 1).table["output_tokens"].mean()


def test_the_highest_rate_is_the_goodput():
    row = OF_TWO.run(PlanCell(DEVICES[1], "edf", 0))
    goodput = OF_TWO.by_device[DEVICES[1]].run(SearchCell("edf", 0))
    assert (row["engines"], row["rate_per_s"], row["share"]) == (2, goodput["goodput_per_s"], goodput["share"])


def test_devices_are_asked_for_the_same():
    """The same requests with the same SLOs, which are not loosened for the slower device."""
    tables = [search.workload(9.0, 1).table for search in AT_RATE.by_device.values()]
    for field in tables[0].dtype.names:
        np.testing.assert_array_equal(tables[0][field], tables[1][field])
    slow = Plan(
        SPEC.replaced(device=("a100-llama3-8b", "a100-llama3-70b-tp4")), parse_target("attainment=0.8"), 1, 60.0
    )
    tables = [search.workload(9.0, 1).table for search in slow.by_device.values()]
    for field in tables[0].dtype.names:
        np.testing.assert_array_equal(tables[0][field], tables[1][field])


def test_what_no_number_serves(monkeypatch):
    tried = []
    monkeypatch.setattr(GoodputSearch, "served", lambda self, cell, rate: tried.append(self.setup.deployment.engines))
    row = AT_RATE.run(PlanCell(DEVICES[0], "edf", 0))
    assert (row["found"], row["engines"], row["share"], row["settled"]) == ("above", None, None, None)
    assert max(tried) == MOST * tried[0]


@pytest.mark.slow
def test_rows_are_kept_and_those_of_another_plan_refused(tmp_path, monkeypatch):
    calls = []
    row = {"found": "within", "share": 0.9, "quantile_s": None, "settled": True, "runs": 3, "engines": 4,
           "rate_per_s": 12.0, "output_tokens": 100.0}  # fmt: skip
    monkeypatch.setattr(Plan, "run", lambda self, cell: calls.append(cell) or {**cell._asdict(), **row})
    monkeypatch.setattr("servegym.evaluation.plan.compile_kernels", lambda setup: None)
    rows = make_plan(AT_RATE, tmp_path)
    assert calls == AT_RATE.cells and list(rows["device"]) == [*DEVICES, *DEVICES]
    priced = dataclasses.replace(AT_RATE, prices={DEVICES[0]: 2.0})
    pd.testing.assert_frame_equal(make_plan(priced, tmp_path), rows)
    assert len(calls) == 4  # prices are no part of what is searched
    with pytest.raises(ExperimentError, match="another comparison"):
        make_plan(dataclasses.replace(AT_RATE, spec=SPEC.replaced(rate_per_s=13.0)), tmp_path)


ROWS = pd.DataFrame(
    {"device": device, "scheduler": "edf", "seed": seed, "engines": engines, "rate_per_s": 36.0, "share": 0.99,
     "quantile_s": None, "found": "within" if engines else "above", "settled": True, "runs": 4, "output_tokens": 100.0}
    for device, counts in {"a": (4, 6), "b": (2, 2), "c": (3, None)}.items()
    for seed, engines in enumerate(counts)
)  # fmt: skip


def test_a_table_says_what_is_enough_and_what_it_costs():
    summary = summarise_plan(ROWS, {"a": 3.0, "b": None}).set_index("device")
    assert summary["engines"].tolist()[:2] == [6, 2] and math.isnan(summary.loc["c", "engines"])
    assert summary.loc["a", "mean_engines"] == 5 and summary.loc["a", "mean_engines_ci_high"] > 17  # t(1) is 12.7
    assert (summary.loc["b", "mean_engines_ci_low"], summary.loc["c", "missing"]) == (2, 1)
    assert summary.loc["a", "cost_per_hour"] == 18.0
    assert summary.loc["a", "cost_per_million_tokens"] == pytest.approx(18.0 / (36 * 100 * 3600) * 1e6)
    assert summary.loc[["b", "c"], "cost_per_hour"].isna().all()


def test_a_picture_says_it_too(tmp_path):
    summary = summarise_plan(ROWS, {"a": 3.0})
    assert [label_of(row, True) for _, row in summary.iterrows()] == [
        "6 (mean 5.00 ± 12.71), costs 18 an hour", "2", "no number is enough",
    ]  # fmt: skip
    for asks_engines in (True, False):
        path = plot_plan(summary, asks_engines, AT_RATE.title, tmp_path / f"{asks_engines}.png")
        assert path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 5000


@pytest.mark.parametrize(("wrong", "words"), [
    ({"prices": {"b200": 1.0}}, r"b200; it should be of a100-llama3-8b, h100-llama3-8b"),
    ({"prices": {DEVICES[0]: -1.0}}, "should be 0 or more"),
    ({"prices": {DEVICES[0]: math.nan}}, "should be 0 or more"),
    ({"spec": SPEC.replaced(device=("a100-llama3-8b",) * 2)}, "a100-llama3-8b is named twice"),
    ({"spec": SPEC.replaced(pools=({"device": DEVICES[0]}, {"device": DEVICES[1]}))}, "without pools; .* --spec"),
    ({"duration_s": 0.0}, "above 0"), ({"precision": 0.0}, "above 0"), ({"seeds": 0}, "at least 1"),
])  # fmt: skip
def test_wrong_plans(wrong, words):
    with pytest.raises((ExperimentError, SpecError), match=words) as error:
        dataclasses.replace(AT_RATE, **wrong)
    assert len(str(error.value).splitlines()) == 1
