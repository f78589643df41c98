"""The benchmarks at sizes that take seconds: what they report and that they measure what they say; never how fast."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from experiments.benchmarks import budgets, cluster, decisions, overload, schedulers, sessions, startup, suite
from experiments.benchmarks.figures import Figure
from experiments.benchmarks.scenarios import Sizes, scenario, workload
from servegym.baselines.registry import router_names, scheduler_names
from servegym.errors import ExperimentError
from servegym.simulator.runs.simulation import Simulation

pytestmark = pytest.mark.slow

SIZES = Sizes(
    requests=200,
    repetitions=2,
    queue_length=300,
    other_queue_lengths=(150, 600),
    memory_requests=2000,
    streamed_days=2,
    process_requests=50,
    process_repetitions=1,
    scheduler_queue_length=100,
    scheduler_iterations=20,
    cluster_requests=60,
    cluster_engines=3,
    cluster_repetitions=1,
    session_requests=600,
    session_engines=3,
    routed_engines=4,
    routed_requests_per_engine=20,
    routed_decisions=10,
    environment_steps=60,
    episode_requests=10,
    ppo_rollouts=1,
)
COMPILES = "the first process ever"  # takes longer than all tests here
NAMES = {
    "million_requests_rss_mb",
    "streamed_day_s",
    "streamed_day_rss_mb",
    "streamed_rss_mb_per_day",
    "simulate_requests_per_s",
    "reset_ms",
    "overload_iterations_per_s",
    "overload_mean_queued_requests",
    "overload_ns_per_queued_150",
    "overload_ns_per_queued_300",
    "overload_ns_per_queued_600",
    "overload_cost_growth_ratio",
    "cli_s",
    "import_ratio",
    "simulate_start_ratio",
    "env_start_ratio",
    "package_lines",
    "study_lines",
    "cluster_minload_s",
    "cluster_minload_bound_ratio",
    "cluster_minload_rss_mib",
    "cluster_minload_rss_mib_per_million",
    "vector_steps_per_s",
    "vector_steps_per_s_overload",
    "routing_steps_per_s",
    "routing_steps_per_s_overload",
    "vector_share",
    "vector_share_overload",
    "routing_share",
    "routing_share_overload",
    "session_steps_per_s",
    "session_share",
    "step_per_s",
    "env_reset_ms",
    "ppo_share",
}
VECTORS = [
    f"{kind}_{what}{end}"
    for kind in ("vector", "routing")
    for what in ("steps_per_s", "share")
    for end in ("", "_overload")
]
SPREAD = (*VECTORS, "session_steps_per_s", "session_share", "step_per_s", "ppo_share")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "QUICK", SIZES)
    monkeypatch.delitem(suite.BENCHMARKS, COMPILES)
    monkeypatch.setattr(budgets, "WHEELS", budgets.ROOT / "none")
    monkeypatch.setattr(cluster, "BOUNDS_S", {"min-load": 45.0, "no-such-router": 90.0})


@pytest.mark.usefixtures("tiny")
def test_the_suite_reports_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    values = suite.run("-", quick=True)
    out, err = capsys.readouterr()
    assert json.loads(out) == values
    routed = {f"router_{name.replace('-', '_')}_requests_per_s" for name in router_names()}
    decided = {f"{name}_decision_ratio" for name, _ in decisions.cases()}
    spreads = {f"{name}_{end}" for name in (*routed, *decided, *SPREAD) for end in ("low", "high")}
    assert set(values) == NAMES | routed | decided | spreads
    assert all(math.isfinite(value) for value in values.values())
    assert all(value > 0 for name, value in values.items() if not name.endswith(("per_million", "per_day")))
    assert 1e3 < 1e6 * values["million_requests_rss_mb"] / SIZES.memory_requests < 1e6  # bytes per request
    assert "dynamo_setup.sh" in err and "vidur_setup.sh" in err
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
    values = suite.run("-", quick=True, asked_for=("schedulers",))
    out, err = capsys.readouterr()
    assert json.loads(out) == values
    ratios = {f"{name.replace('-', '_')}_iteration_ratio" for name in scheduler_names()}
    spreads = {f"{name}_{end}" for name in ratios for end in ("low", "high")}
    assert set(values) == {"sarathi_fcfs_iteration_us"} | ratios | spreads
    assert all(0 < values[f"{name}_low"] <= values[name] <= values[f"{name}_high"] for name in ratios)
    assert "at most 3" in err and "dynamo_setup.sh" not in err


def test_sessions_are_served_with_and_without_caching() -> None:
    values = {figure.name: figure.value for figure in sessions.measure(SIZES)}
    assert 0.5 < values["sessions_hit_rate"] < 1 and values["sessions_cache_ratio"] > 0
    assert values["sessions_cpu_s"] > 0 and values["sessions_s"] > 0
    assert values["sessions_rss_mib"] > 50


def test_a_run_of_sessions_that_fails_is_an_error() -> None:
    with pytest.raises(ExperimentError, match=r"(?s)sessions sometimes 2 20 failed \(\d+\): .*sometimes"):
        sessions.side_by_side([("sometimes", 2, 20)])


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


def test_a_python_that_is_none_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="no/such/python is no program; dynamo_setup"):
        suite.run(None, dynamo_python="no/such/python")
    with pytest.raises(ExperimentError, match="bin/python is no program; vidur_setup"):
        suite.run(None, vidur=str(tmp_path))


def test_an_environment_is_given_as_its_folder_or_its_python(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    assert suite.checked_python(str(tmp_path), "") == suite.checked_python(str(python), "") == str(python)
    assert suite.checked_python(None, "") is None
