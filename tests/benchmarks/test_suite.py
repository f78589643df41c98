"""The benchmarks at sizes that take seconds: what they report and that they measure what they say; never how fast."""

import json
import math
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from servegym.baselines.registry import scheduler_names
from servegym.experiments.benchmarks import dynamo_comparison, overload, schedulers, startup, suite
from servegym.experiments.benchmarks.figures import Figure
from servegym.experiments.benchmarks.scenarios import Sizes, scenario, workload
from servegym.experiments.errors import ExperimentError
from servegym.simulator.simulation import Simulation

SIZES = Sizes(
    requests=200,
    repetitions=2,
    queue_length=300,
    other_queue_lengths=(150, 600),
    memory_requests=2000,
    process_requests=50,
    process_repetitions=1,
    scheduler_queue_length=100,
    scheduler_iterations=20,
)
COMPILES = "the first process ever"  # takes longer than all tests here
NAMES = {
    "million_requests_rss_mb",
    "simulate_requests_per_s",
    "reset_ms",
    "overload_iterations_per_s",
    "overload_mean_queued_requests",
    "overload_ns_per_queued_150",
    "overload_ns_per_queued_300",
    "overload_ns_per_queued_600",
    "overload_cost_growth_ratio",
    "cli_s",
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "QUICK", SIZES)
    monkeypatch.delitem(suite.BENCHMARKS, COMPILES)


@pytest.mark.usefixtures("tiny")
def test_the_suite_reports_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    values = suite.run("-", None, quick=True)
    out, err = capsys.readouterr()
    assert json.loads(out) == values
    assert set(values) == NAMES
    assert all(math.isfinite(value) and value > 0 for value in values.values())
    assert 1e3 < 1e6 * values["million_requests_rss_mb"] / SIZES.memory_requests < 1e6  # bytes per request
    assert "dynamo_setup.sh" in err
    assert all(name in err for name in ("numba", "load average", "at least 100,000", "at most 1,500"))


def test_what_is_queued_is_what_is_asked() -> None:
    lengths = [150, 300, 600]
    case = overload.overloaded(overload.saturation_per_s(SIZES.requests), lengths[-1])
    windows = overload.find_windows(Simulation(case).run(), lengths)
    assert [window.mean_queued for window in windows] == pytest.approx(lengths, rel=0.15)
    # The timed runs see those lengths too: at the end of each window it is 10 % longer than in the middle.
    simulation = Simulation(case)
    for window, length in zip(windows, lengths, strict=True):
        overload.run_until(simulation, window.end_s)
        assert simulation.arrays.engines[0].queue_length == pytest.approx(1.1 * length, abs=1)


def test_a_queue_that_never_gets_so_long_is_an_error() -> None:
    result = Simulation(scenario(workload(50))).run()
    with pytest.raises(ExperimentError, match="700 are to be measured"):
        overload.find_windows(result, [700])


@pytest.mark.usefixtures("tiny")
def test_every_registered_scheduler_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    values = suite.run("-", None, quick=True, compare_schedulers=True)
    out, err = capsys.readouterr()
    assert json.loads(out) == values
    ratios = {f"{name.replace('-', '_')}_iteration_ratio" for name in scheduler_names()}
    spreads = {f"{name}_{end}" for name in ratios for end in ("low", "high")}
    assert set(values) == {"sarathi_fcfs_iteration_us"} | ratios | spreads
    assert all(0 < values[f"{name}_low"] <= values[name] <= values[f"{name}_high"] for name in ratios)
    assert "at most 3" in err and "dynamo_setup.sh" not in err


def test_a_scheduler_is_timed_over_the_iterations_that_were_found() -> None:
    case = schedulers.overloaded(SIZES)
    assert len(np.unique(case.workload.table["client"])) > 1
    timed = schedulers.Timed(case, "slide-batching", SIZES)
    begin_s, end_s, mean_queued, mean_batch = timed.stretch
    assert mean_queued == pytest.approx(SIZES.scheduler_queue_length, rel=0.2) and 1 <= mean_batch <= mean_queued
    simulation = Simulation(timed.simulation.scenario)
    _, before = overload.run_until(simulation, begin_s)
    assert simulation.arrays.engines[0].queue_length == SIZES.scheduler_queue_length
    _, after = overload.run_until(simulation, end_s)
    assert after - before == SIZES.scheduler_iterations
    assert timed.iteration_s() > 0


def test_a_scheduler_whose_queue_never_gets_so_long_is_an_error() -> None:
    simulation = Simulation(scenario(workload(50)))
    with pytest.raises(ExperimentError, match=r"sarathi-fcfs.*: 0 of 20 iterations with 100 requests queued"):
        schedulers.find_stretch(simulation, 100, 20)


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure("a_per_s", 10, "", at_least=10), "yes"),
        (Figure("a_per_s", 9, "", at_least=10), "NO"),
        (Figure("a_s", 2, "", at_most=2), "yes"),
        (Figure("a_s", 2.1, "", at_most=2), "NO"),
        (Figure("a_s", 2, ""), ""),
    ],
)
def test_a_bound_is_met_or_marked(figure: Figure, met: str) -> None:
    assert figure.met == met


def test_a_figure_says_its_spread() -> None:
    figure = Figure("a_ratio", 2.0, "", low=1.25, high=3.0)
    assert figure.measured == "2 (1.25 to 3)"
    assert figure.values == {"a_ratio": 2.0, "a_ratio_low": 1.25, "a_ratio_high": 3.0}
    assert Figure("a_s", 2000.4, "").measured == "2,000" and Figure("a_s", 0.5, "").values == {"a_s": 0.5}


def test_a_first_run_that_says_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "simulate", lambda requests, cache: (1.0, "nothing"))
    with pytest.raises(ExperimentError, match="compiling kernels"):
        startup.measure_first(SIZES)


def test_every_block_of_the_dynamo_trace_is_its_own(tmp_path: Path) -> None:
    served, path = workload(100), tmp_path / "requests.jsonl"
    dynamo_comparison.write_mooncake(served, path, 16)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["timestamp"] for line in lines] == pytest.approx(1e3 * served.table["arrival_s"])
    assert [line["input_length"] for line in lines] == served.table["prompt_tokens"].tolist()
    assert [line["output_length"] for line in lines] == served.table["output_tokens"].tolist()
    assert [len(line["hash_ids"]) for line in lines] == [math.ceil(line["input_length"] / 16) for line in lines]
    blocks = [block for line in lines for block in line["hash_ids"]]
    assert blocks == list(range(len(blocks)))


def test_a_python_that_is_none_is_an_error_at_once() -> None:
    with pytest.raises(ExperimentError, match="no/such/python is no program"):
        suite.run(None, "no/such/python", quick=True)


def test_a_python_without_dynamo_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="replay failed"):
        dynamo_comparison.replay(sys.executable, tmp_path / "requests.jsonl", {"block_size": 16})


FAKE_DYNAMO = """#!/bin/sh
echo '{"loop_s": 2.0, "call_s": 3.0, "requests": %d, "prompt_tokens": %d, "output_tokens": %d,
"mean_ttft_s": 0.25, "mean_tpot_s": 0.028}'
"""


@pytest.mark.parametrize("missing_tokens", [0, 1])
def test_dynamo_counts_only_for_the_same_work(tmp_path: Path, missing_tokens: int) -> None:
    table = workload(SIZES.requests).table
    python = tmp_path / "python"
    work = len(table), table["prompt_tokens"].sum(), table["output_tokens"].sum() - missing_tokens
    python.write_text(FAKE_DYNAMO % work)
    python.chmod(0o755)
    benchmark = {"NVIDIA Dynamo": partial(dynamo_comparison.measure, dynamo_python=str(python))}
    if missing_tokens:
        with pytest.raises(ExperimentError, match="not the same work"):
            suite.measure(benchmark, SIZES, Console(stderr=True))
        return
    values = {figure.name: figure.value for figure in suite.measure(benchmark, SIZES, Console(stderr=True))}
    assert values["dynamo_requests_per_s"] == SIZES.requests / 2
    ours = values["dynamo_our_requests_per_s"]
    assert values["dynamo_ratio"] == values["dynamo_equal_times_ratio"] == pytest.approx(ours / (SIZES.requests / 2))
    assert values["dynamo_whole_call_ratio"] == pytest.approx(1.5 * values["dynamo_ratio"])
