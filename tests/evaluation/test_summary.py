"""Tables of a comparison, from cells made by hand."""

import math

import pandas as pd
import pytest

from servegym.errors import ExperimentError
from servegym.evaluation.measures import ratio_of
from servegym.evaluation.summary import conclusion, rank_of, save_tables, summarise

# At each seed the workload adds the same to all; "close" differs from "best" by -1, 0, +1 hundredths and more.
TDG = {
    "best": [0.50, 0.70, 0.90], "close": [0.49, 0.70, 0.89], "poor": [0.40, 0.60, 0.81],
}  # fmt: skip


def cells_of(tdg: dict[str, list[float]], load: float = 1.0) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "scheduler": scheduler, "load": load, "seed": seed, "rate_per_s": 7.0, "tdg_ratio": value,
            "slo_attainment": value / 2, "violations": 1 - value, "violations_high_priority": 1 - value,
            "violations_low_priority": None, "violations TTLT 600 s": value / 10,
            "slo_attainment_high_priority": value, "slo_attainment_low_priority": None, "ttft_p99_s": 1.0 + value,
            "tpot_p99_s": 0.05, "evictions": seed, "starved": 0.0, "fairness_by_client": None,
            "fairness_by_length": 0.9,
        }
        for scheduler, values in tdg.items()
        for seed, value in enumerate(values)
    )  # fmt: skip


def test_means_and_paired_differences_by_hand():
    """t(2) at 97.5 % is 4.3027. poor - best: -0.10, -0.10, -0.09: mean -0.09667, s 0.0057735."""
    summary = summarise(cells_of(TDG)).set_index("scheduler")
    poor = summary.loc["poor"]
    assert poor["reference"] == "best"
    assert poor["tdg_ratio"] == pytest.approx(0.60333, abs=1e-5)
    assert poor["tdg_ratio_difference"] == pytest.approx(-0.096667, abs=1e-6)
    half_width = 4.3027 * 0.0057735 / math.sqrt(3)
    assert poor["tdg_ratio_difference_ci_low"] == pytest.approx(-0.096667 - half_width, abs=1e-5)
    assert poor["evictions"] == 1
    assert poor["violations"] == pytest.approx(1 - poor["tdg_ratio"])
    assert poor["violations_difference"] == pytest.approx(-poor["tdg_ratio_difference"])
    assert poor["violations TTLT 600 s"] == pytest.approx(poor["tdg_ratio"] / 10)
    assert math.isnan(poor["slo_attainment_low_priority"])
    # Paired by seed the difference is sure, though the two intervals overlap nearly wholly.
    assert poor["tdg_ratio_ci_high"] > summary.loc["best", "tdg_ratio_ci_low"]
    assert list(summary["verdict"]) == ["reference", "not distinguishable", "worse"]


def test_in_words():
    words = conclusion(summarise(cells_of(TDG)))
    same = "statistically not distinguishable from it: close"
    assert words == f"Load 1 (high): best by TDG ratio is best; {same}; worse: poor."


def test_many_are_counted_in_words():
    words = conclusion(summarise(cells_of(TDG | {f"poor{k}": TDG["poor"] for k in range(8)})))
    assert words.endswith("it: close; worse: 9 others.")


def test_against_a_baseline():
    summary = summarise(cells_of(TDG), baseline="poor")
    assert list(summary["verdict"]) == ["better", "better", "reference"]
    assert conclusion(summary) == "Load 1 (high): by TDG ratio against poor; better: best, close."


def test_the_best_is_by_what_is_asked_for():
    """Of latencies the lowest; a scheduler whose measure is unknown is never the best."""
    cells = cells_of(TDG)
    summary = summarise(cells, rank_by="p99-ttft").set_index("scheduler", drop=False)
    assert set(summary["reference"]) == {"poor"} and summary.loc["best", "verdict"] == "worse"
    assert summary.loc["best", "ttft_p99_s_difference"] == pytest.approx(0.096667, abs=1e-6)
    assert conclusion(summary).startswith("Load 1 (high): best by p99 TTFT is poor;")
    cells.loc[cells["scheduler"] == "poor", "ttft_p99_s"] = math.nan
    assert set(summarise(cells, rank_by="p99-ttft")["reference"]) == {"close"}
    assert summarise(cells, rank_by="late-token")["reference"].iloc[0] == "best"
    with pytest.raises(ExperimentError, match=r"unknown measure to rank by 'ttft' .*there are: tdg, attainment"):
        summarise(cells, rank_by="ttft")


def test_the_best_is_chosen_at_each_load():
    other = {"best": TDG["poor"], "close": TDG["close"], "poor": TDG["best"]}
    summary = summarise(pd.concat([cells_of(TDG, 1.0), cells_of(other, 0.3)]))
    assert summary.groupby("load", sort=False)["reference"].first().to_dict() == {1.0: "best", 0.3: "poor"}


def test_one_seed_leaves_the_order_open():
    summary = summarise(cells_of({name: values[:1] for name, values in TDG.items()}))
    assert list(summary["verdict"]) == ["reference", "one run", "one run"]
    assert "one run" in conclusion(summary)


def test_a_baseline_that_is_not_there():
    with pytest.raises(ExperimentError, match="best, close, poor"):
        summarise(cells_of(TDG), baseline="other")


def test_tables_are_written(tmp_path):
    cells = cells_of(TDG)
    summary = summarise(cells)
    cells_path, summary_path = save_tables(cells, summary, tmp_path)
    assert len(pd.read_parquet(cells_path)) == 9
    assert list(pd.read_csv(summary_path)["scheduler"]) == list(TDG)


def test_another_gain_is_judged_by_its_own_ratio():
    cells = cells_of(TDG).assign(tdg_ratio=None)
    cells["gain_ratio"] = cells_of(TDG)["tdg_ratio"]
    summary = summarise(cells)
    assert "tdg_ratio" not in summary and ratio_of(cells) == ratio_of(summary) == rank_of(summary)
    assert rank_of(summary).title == "gain / ideal gain"
    by_tdg = summarise(cells_of(TDG)).rename(columns=lambda name: name.replace("tdg_ratio", "gain_ratio"))
    pd.testing.assert_frame_equal(summary, by_tdg)
    assert conclusion(summary).endswith("worse: poor.")
