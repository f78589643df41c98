"""How the runs of a scenario differ: where they do not there is one and no interval; else what it is over is said."""

import math

import pytest

from servegym.evaluation.compared import COMPARED, REQUESTS
from servegym.evaluation.comparing import run_comparison
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.intervals import UNKNOWN
from servegym.evaluation.repeats import (
    ARRIVALS,
    BLOCKS,
    ENGINES,
    ONE,
    PRIORITIES,
    SAME,
    SEEDS,
    WINDOWS,
    Repeats,
    windows_of,
)  # fmt: skip
from servegym.evaluation.summary import conclusion, summarise


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.csv"
    rows = [f"{i},{100 + i},10" for i in range(100)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return str(path)


def compared(file: str, seeds: int = 5, **words) -> Comparison:
    spec = COMPARED.replaced(trace=file, slo="given", scheduler=("edf", "vllm-fcfs"), load=0.5)
    return Comparison(spec.with_overrides(words), seeds)


@pytest.mark.parametrize("words, over, runs", [
    ({}, SAME, 1),
    ({"slo": "proserve"}, PRIORITIES, 5),
    ({"arrivals": "poisson"}, ARRIVALS, 5),
    ({"requests": 20}, WINDOWS, 5),
    ({"requests": 30}, WINDOWS, 3),
    ({"requests": 30, "slo": "proserve"}, WINDOWS, 3),
    ({"requests": 60}, SAME, 1),
    ({"requests": 20, "window": "first"}, SAME, 1),
    ({"resample": True}, BLOCKS, 5),
    ({"resample": True, "requests": 300}, BLOCKS, 5),
    ({"noise": 0.1}, ENGINES, 5),
    ({"noise": 0.1, "noise_seed": 3}, SAME, 1),
    ({"trace": "azure-conv", "requests": 20}, SEEDS, 5),
])  # fmt: skip
def test_what_differs_is_found_in_the_requests(file, words, over, runs):
    comparison = compared(file, **words)
    assert (comparison.repeats.over, comparison.repeats.runs) == (over, runs)
    assert len(comparison.cells) == 2 * runs and len(comparison.workloads) == runs
    if over != SAME:
        assert len({workload.digest for workload in comparison.workloads.values()}) == (1 if over == ENGINES else runs)


def test_one_seed_is_one_run(file):
    assert compared(file, 1, slo="proserve").repeats.over == ONE


def test_windows_lie_evenly_and_do_not_overlap(file):
    firsts = [int(one.table["prompt_tokens"][0]) - 100 for one in compared(file, requests=30).workloads.values()]
    assert firsts == list(windows_of(100, 30, 5)) == [0, 35, 70]
    assert windows_of(100, 100, 5) == windows_of(100, 51, 5) == (0,)
    assert windows_of(100, 10, 2) == (0, 90)


def test_a_file_with_no_two_windows_is_served_whole(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("prompt_tokens,output_tokens\n" + "100,10\n" * (REQUESTS + 1) + "5000,10\n")
    assert compared(str(path)).requests_per_run == REQUESTS + 2
    assert compared(str(path), max_prompt_tokens=1000).requests_per_run == REQUESTS + 1


def test_equal_runs_have_no_interval(file, tmp_path):
    comparison = compared(file)
    summary = summarise(run_comparison(comparison, tmp_path / "out"))
    assert set(summary["interval_over"]) == {SAME} and set(summary["seeds"]) == {1}
    assert summary["tdg_ratio_ci_low"].isna().all()
    assert UNKNOWN in set(summary["verdict"]) and "one run" in conclusion(summary)
    assert "one run, the same for every seed" in comparison.title
    assert comparison.own_rate_per_s == pytest.approx(1.0)


def test_a_verdict_over_priorities_says_so(file, tmp_path):
    summary = summarise(run_comparison(compared(file, slo="proserve"), tmp_path / "out"))
    assert "(over invented priorities only)" in conclusion(summary)
    assert not math.isnan(summary["tdg_ratio_ci_low"].iloc[0])


def test_words():
    assert Repeats(WINDOWS, 3, 5, True).times("30 requests") == "30 requests x 3 windows of the file"
    assert Repeats(SEEDS, 1, 1).times("30 requests") == "30 requests x 1 seed"
    assert "room for 3 windows" in Repeats(WINDOWS, 3, 5, True).notes[0]
    assert Repeats(WINDOWS, 5, 5, True).notes == Repeats(SEEDS, 5, 5).notes == []
    assert "--resample" in Repeats(SAME, 1, 5, True).notes[0] and "--resample" not in Repeats(SAME, 1, 5).notes[0]
    assert "interval over" not in Repeats(SAME, 1, 5, True).legend
