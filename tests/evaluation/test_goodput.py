"""A goodput search: what a rate is judged by, paired seeds, bounds of the search, and what is kept."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from servegym.errors import ExperimentError
from servegym.evaluation import goodput
from servegym.evaluation.compared import COMPARED
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.goodput import JUDGED, LOADS, GoodputSearch, SearchCell, search_goodput
from servegym.evaluation.repeats import BLOCKS, SAME, WINDOWS
from servegym.evaluation.search_tables import summarise_goodput
from servegym.evaluation.targets import parse_target
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

SETUP = Comparison(COMPARED.replaced(scheduler=("sarathi-fcfs", "edf"), load=1.0), 2)
SEARCH = GoodputSearch(SETUP, parse_target("attainment=0.8"), 60.0)
CELL = SearchCell("edf", 1)


def setup(**words: object) -> Comparison:
    return Comparison(SETUP.spec.replaced(**words), SETUP.seeds)


def test_targets():
    assert parse_target("attainment=0.99").most_failed == pytest.approx(0.01)
    assert parse_target("violations=0.01").most_failed == 0.01
    for text in ("ttft_p99=2", "p99-ttft=2", "p99_ttft=2"):
        target = parse_target(text)
        assert (target.text, target.title) == ("ttft_p99=2", "p99 TTFT of at most 2 s")
        assert target.most_failed == pytest.approx(0.01)
    assert parse_target("tpot_p50=0.06").shown.title == "p50 TPOT, ms"
    for wrong in (
        "attainment", "attainment=2", "violations=x", "ttft=0.5", "violations=nan", "attainment=-0.1", "ttft_p99=0",
        "ttft_p100=1", "p5_ttft_p9=1", "tbt_p99=1", "ttft_p99=",
    ):  # fmt: skip
        with pytest.raises(ExperimentError, match=r"attainment=0\.99 or violations=0\.01"):
            parse_target(wrong)


@pytest.mark.parametrize("target", ["attainment=0.8", "violations=0.2"])
def test_a_rate_is_judged_by_its_steady_part_run_to_the_end(target):
    search = dataclasses.replace(SEARCH, target=parse_target(target))
    column = "attained" if target.startswith("attainment") else "violated"
    answers = set()
    for rate_per_s in (1.0, 4.0, 6.0, 20.0):
        workload = search.workload(rate_per_s, CELL.seed)
        candidate = SETUP.candidates["edf"]
        table = Simulation(Scenario(workload, SETUP.deployment, candidate.scheduler)).run().requests
        first, last = table["arrival_s"].iloc[[0, -1]]
        inside = table["arrival_s"].between(*(first + share * (last - first) for share in JUDGED))
        share = table[column][inside].mean()
        enough = share >= 0.8 if column == "attained" else share <= 0.2
        served = search.served(CELL, rate_per_s)
        assert (served is not None) == enough
        answers.add(bool(enough))
        if served is not None:
            assert served["share"] == pytest.approx(share)
            assert served["ttlt_p99_s"] == pytest.approx(np.quantile(table["ttlt_s"][inside], 0.99))
    assert answers == {True, False}


@pytest.mark.parametrize(("target", "column"), [("ttft_p90=0.5", "ttft_s"), ("tpot_p90=0.03", "tpot_s")])
def test_a_quantile_of_a_latency_is_a_target(target, column):
    search = dataclasses.replace(SEARCH, target=parse_target(target))
    answers = set()
    for rate_per_s in (1.0, 4.0, 20.0):
        workload = search.workload(rate_per_s, CELL.seed)
        table = Simulation(Scenario(workload, SETUP.deployment, SETUP.candidates["edf"].scheduler)).run().requests
        first, last = table["arrival_s"].iloc[[0, -1]]
        inside = table["arrival_s"].between(*(first + share * (last - first) for share in JUDGED))
        times = table[column][inside].dropna()
        served = search.served(CELL, rate_per_s)
        assert (served is not None) == ((times > search.target.bound).mean() <= 0.1)
        answers.add(served is not None)
        if served is not None:
            assert served["quantile_s"] == np.quantile(times, 0.9, method="inverted_cdf") <= search.target.bound
    assert answers == {True, False}


def test_seeds_are_paired():
    slow, fast = (SEARCH.workload(rate, 1) for rate in (1.0, 2.5))
    assert (len(slow), len(fast)) == (60, 150)
    np.testing.assert_allclose(slow.table["arrival_s"], 2.5 * fast.table["arrival_s"][:60])
    for field in ("prompt_tokens", "output_tokens", "priority"):
        np.testing.assert_array_equal(slow.table[field], fast.table[field][:60])
    assert (SEARCH.workload(1.0, 0).table["prompt_tokens"] != slow.table["prompt_tokens"]).any()


def test_arrivals_last_longer_where_slos_do():
    assert dataclasses.replace(SEARCH, duration_s=None).lasting_s == 600
    tiers = dataclasses.replace(SEARCH, setup=setup(slo="qoserve"), duration_s=None)
    assert tiers.lasting_s == 8 * 1800
    assert SEARCH.lasting_s == 60


def test_a_file_is_served_whole_at_most(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("prompt_tokens,output_tokens\n" + "500,50\n" * 40)
    search = dataclasses.replace(SEARCH, setup=setup(trace=str(path)))
    assert (len(search.workload(0.5, 0)), len(search.workload(5.0, 0))) == (30, 40)


@pytest.mark.parametrize("limit", [0.0, 0.5, 1.3, 99.0])
def test_a_search_says_where_the_limit_is(limit, monkeypatch):
    saturation = SETUP.saturation_rate_per_s
    figures = {"share": 0.9, "quantile_s": None, "ttlt_p99_s": 50.0, "span_s": 60.0}
    monkeypatch.setattr(
        GoodputSearch, "served", lambda self, cell, rate: figures if rate <= limit * saturation else None
    )
    row = SEARCH.run(CELL)
    if limit in (0.5, 1.3):
        assert limit / 1.02 <= row["goodput_per_s"] / saturation <= limit < row["refused_per_s"] / saturation
        assert (row["found"], row["share"], row["settled"]) == ("within", 0.9, False)
        return
    assert row["goodput_per_s"] is None
    if limit == 0:
        assert (row["found"], row["served_per_s"], row["settled"]) == ("below", None, None)
        assert row["refused_per_s"] == pytest.approx(LOADS[0] * saturation)
    else:
        assert (row["found"], row["refused_per_s"]) == ("above", None)
        assert row["served_per_s"] == pytest.approx(LOADS[1] * saturation)


def test_refused_requests_are_missed_but_take_no_time():
    some = setup(engines=2, scheduler=("vllm-v1",), router=("lost-gain:refuse=0.5",))
    search = dataclasses.replace(SEARCH, setup=some, target=parse_target("attainment=0.1"))
    (label,) = some.candidates
    figures = search.served(SearchCell(label, 0), 3 * some.saturation_rate_per_s)
    assert figures is not None and 0.1 < figures["share"] < 0.9  # more than 1 % are refused
    assert figures["ttlt_p99_s"] < 30


@pytest.mark.slow
def test_what_is_searched_is_kept(tmp_path, monkeypatch):
    rows = search_goodput(SEARCH, tmp_path)
    assert list(zip(rows["scheduler"], rows["seed"], strict=True)) == SEARCH.cells
    assert (rows["found"] == "within").all() and (rows["share"] >= 0.8).all()
    path = tmp_path / goodput.SEARCHES_FILE
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join(lines[:3]) + b"\n" + lines[3][:20])  # two searches, and one that was being written
    seen = []
    again = search_goodput(SEARCH, tmp_path, lambda done, total: seen.append((done, total)))
    pd.testing.assert_frame_equal(again, rows)
    assert seen == [(2, 4), (3, 4), (4, 4)]
    monkeypatch.setattr(GoodputSearch, "run", lambda self, cell: pytest.fail(f"{cell} was searched again"))
    search_goodput(SEARCH, tmp_path)
    for other in ({"target": parse_target("violations=0.01")}, {"duration_s": 61.0}, {"precision": 0.1}):
        with pytest.raises(ExperimentError, match="another comparison"):
            search_goodput(dataclasses.replace(SEARCH, **other), tmp_path)
    gain = dataclasses.replace(SEARCH, setup=setup(gain="ta-slo"))
    with pytest.raises(ExperimentError, match="other gain"):
        search_goodput(gain, tmp_path)


def test_wrong_searches():
    for wrong in ({"duration_s": 0.0}, {"duration_s": float("inf")}, {"precision": 0.0}, {"precision": 2.0}):
        with pytest.raises(ExperimentError, match="above 0"):
            dataclasses.replace(SEARCH, **wrong)
    failing = setup(incidents=["fail:0@5"])
    with pytest.raises(ExperimentError, match="steady state"):
        dataclasses.replace(SEARCH, setup=failing)


def rows_of(goodputs: dict[str, list[float | None]], found: str = "within") -> pd.DataFrame:
    return pd.DataFrame(
        {
            "scheduler": label, "seed": seed, "goodput_per_s": value, "found": "within" if value else found,
            "share": 0.99, "quantile_s": None, "settled": True, "runs": 7,
        }
        for label, values in goodputs.items()
        for seed, value in enumerate(values)
    )  # fmt: skip


def test_differences_are_paired_by_seed():
    summary = summarise_goodput(rows_of({"a": [5.0, 7.0], "b": [4.0, 6.0]}), 10.0).set_index("scheduler")
    assert summary.loc["b", "goodput_per_s"] == 5 and summary.loc["b", "load"] == 0.5
    assert summary.loc["b", "goodput_per_s_ci_high"] > 10  # t(1) is 12.7
    assert summary.loc["b", ["difference", "difference_ci_low", "difference_ci_high"]].tolist() == [-1, -1, -1]
    assert list(summary["reference"]) == ["a", "a"] and list(summary["runs"]) == [14, 14]
    assert summarise_goodput(rows_of({"a": [5.0], "b": [4.0]}), 10.0, "b")["difference"].tolist() == [1, 0]
    with pytest.raises(ExperimentError, match="not compared"):
        summarise_goodput(rows_of({"a": [5.0]}), 10.0, "b")


@pytest.mark.parametrize(("found", "best"), [("below", "a"), ("above", "b")])
def test_a_seed_without_a_goodput_leaves_no_mean(found, best):
    summary = summarise_goodput(rows_of({"a": [5.0, 5.0], "b": [9.0, None]}, found), 10.0).set_index("scheduler")
    assert np.isnan(summary.loc["b", "goodput_per_s"]) and summary.loc["b", found] == 1
    assert summary.loc["a", "reference"] == best


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.csv"
    rows = [f"{i / 2},{200 + i % 7},20" for i in range(400)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return str(path)


def test_a_file_too_short_for_the_arrivals_asked_for_settles_nothing(file):
    search = GoodputSearch(setup(trace=file, slo="given"), parse_target("attainment=0"), 600.0, about_per_s=2.0)
    assert search.repeats.over == SAME and len(search.cells) == 2  # schedulers
    figures = search.served(SearchCell("edf", 0), 2.0)
    assert (figures["requests"], figures["is_short"]) == (400, True)
    assert figures["ttlt_p99_s"] < 100 and not search.is_settled(figures)
    assert search.served_words(2.0) == "the 400 requests that there are (200 s of arrivals, not 600)"
    enough = dataclasses.replace(search, duration_s=200.0)
    assert (
        enough.is_settled(enough.served(SearchCell("edf", 0), 2.0)) and enough.served_words(2.0) == "200 s of arrivals"
    )


def test_a_resampled_file_is_as_long_as_it_takes(file):
    search = GoodputSearch(setup(trace=file, slo="given", resample=True), parse_target("attainment=0"), 600.0)
    assert len(search.workload(2.0, 1)) == 1200 and search.repeats.over == BLOCKS
    figures = search.served(SearchCell("edf", 1), 2.0)
    assert search.is_settled(figures) and figures["requests"] == 1200


def test_seeds_have_windows_of_a_file_that_is_long_enough(file):
    search = GoodputSearch(setup(trace=file, slo="given"), parse_target("attainment=0"), 60.0, about_per_s=2.0)
    assert search.windows == (0, 200) and search.repeats.over == WINDOWS and search.most_requests == 200
    for rate in (1.0, 3.0):
        firsts = [int(search.workload(rate, seed).table["prompt_tokens"][0]) for seed in (0, 1)]
        assert firsts == [200, 200 + 200 % 7]
    assert search.is_short(4.0) and not search.is_short(3.0)


def test_a_percentile_of_what_never_came_is_no_number():
    assert goodput.p99(np.array([1.0, 2.0])) == pytest.approx(1.99)
    assert goodput.p99(np.array([1.0, np.nan])) == goodput.p99(np.zeros(0)) == np.inf
    assert goodput.run_figures({"ttft_p99_s": np.inf, "tpot_p99_s": 0.1})["ttft_p99_s"] is None
