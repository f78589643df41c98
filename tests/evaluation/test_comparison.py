"""Comparisons: what is run, in pairs, once."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from servegym.api import simulate
from servegym.errors import ExperimentError, ServegymError
from servegym.evaluation.bounds.shares import why_no_bounds
from servegym.evaluation.compared import COMPARED
from servegym.evaluation.comparing import run_comparison
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.comparison_rows import comparison_rows
from servegym.evaluation.goodput import GoodputSearch
from servegym.evaluation.panels.panel import Panel
from servegym.evaluation.summary import summarise
from servegym.evaluation.targets import Target
from servegym.scenarios.ranges import Range
from servegym.simulator.policies import gains
from servegym.simulator.policies import policy as policies
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.simulation import Simulation
from servegym.traces import build_workload

SMALL = Comparison(COMPARED.replaced(scheduler=("vllm-fcfs", "edf"), load=(0.7, 1.4), requests=50), 3)
ONE_CELL = Comparison(SMALL.spec.replaced(scheduler="edf", load=1.4), 1)


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> pd.DataFrame:
    return run_comparison(SMALL, tmp_path_factory.mktemp("small"))


def test_every_cell_once_and_in_order(cells):
    assert list(zip(cells["scheduler"], cells["load"], cells["seed"], strict=True)) == SMALL.cells
    assert len(cells) == 2 * 2 * 3


def test_the_schedulers_of_a_load_and_seed_serve_the_same_requests(cells):
    of_one = cells.groupby(["load", "seed"])["workload"].nunique()
    assert (of_one == 1).all()
    assert cells["workload"].nunique() == 2 * 3


def test_a_cell_is_what_simulate_says(cells):
    row = cells[(cells["scheduler"] == "edf") & (cells["load"] == 1.4) & (cells["seed"] == 2)].iloc[0]
    result = simulate("azure-conv", scheduler="edf", rate_per_s=row["rate_per_s"], requests=50, seed=2)
    summary = result.summary
    assert row["workload"] == result.scenario.workload.digest
    assert row["tdg_ratio"] == summary["tdg_ratio"]
    assert row["ttft_p99_s"] == summary["ttft_s"]["p99"]
    assert row["slo_attainment_high_priority"] == summary["slo_attainment_by_priority"][0]
    assert row["slo_attainment_low_priority"] == summary["slo_attainment_by_priority"][1]


def test_rates_are_relative_to_saturation(cells):
    assert (cells["rate_per_s"] == cells["load"] * SMALL.saturation_rate_per_s).all()


def test_what_is_done_is_not_run_again(tmp_path, cells, monkeypatch):
    run_comparison(SMALL, tmp_path)
    monkeypatch.setattr(Comparison, "run", lambda self, cell: pytest.fail(f"{cell} was run again"))
    seen = []
    again = run_comparison(SMALL, tmp_path, lambda done, total: seen.append((done, total)))
    pd.testing.assert_frame_equal(again, cells)
    assert seen == [(12, 12)]


def test_an_interrupt_leaves_what_is_done(tmp_path, cells):
    def stop_after_five(done, total):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_comparison(SMALL, tmp_path, stop_after_five)
    progress = []
    resumed = run_comparison(SMALL, tmp_path, lambda done, total: progress.append(done))
    assert progress[0] == 5
    pd.testing.assert_frame_equal(resumed, cells)


@pytest.mark.parametrize("jobs", [2, 5])
def test_jobs_do_not_matter(tmp_path, cells, jobs):
    pd.testing.assert_frame_equal(run_comparison(SMALL, tmp_path, jobs=jobs), cells)


@pytest.mark.parametrize("field, value, problem", [
    ("seed", 7, "not part of this comparison"),
    ("scheduler", ["edf"], "not part of this comparison"),
    ("workload", "0123", "workload of"),
    ("tdg_ratio", "high", "no number for tdg_ratio"),
])  # fmt: skip
def test_rows_of_something_else_are_refused(tmp_path, field, value, problem):
    run_comparison(SMALL, tmp_path)
    path = tmp_path / "cells.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {field: value})
    path.write_text("\n".join([*lines, ""]))
    with pytest.raises(ExperimentError, match=f"line 2: .*{problem}"):
        run_comparison(SMALL, tmp_path)


def test_the_code_of_a_policy_is_part_of_a_comparison():
    assert set(SMALL.identity["code"]) == {"loop", "latency", "vllm-fcfs", "edf", "router round-robin"}
    assert all(SMALL.identity["code"].values())


def identity_of(**changes) -> dict[str, object]:
    return Comparison(SMALL.spec.replaced(scheduler=("vllm-fcfs", "slide-batching"), **changes), 3).identity


def differing(one: dict[str, object]) -> list[str]:
    other = identity_of()
    return [key for key in one if one[key] != other[key]]


def test_what_scalers_cost_is_in_the_tables():
    fleet = SMALL.spec.replaced(scheduler="edf", load=0.7, engines=2, router="min-load")
    words = {"started": 1, "startup_s": 0.5, "scaler": ("static", "target-utilisation"), "price_per_hour": 3.0}
    scaled = Comparison(fleet.replaced(**words), 2)
    cells = pd.DataFrame([scaled.run(cell) for cell in scaled.cells])
    assert cells["cost"].to_numpy() == pytest.approx(3.0 * cells["engine_hours"].to_numpy())
    assert (cells["engine_hours"] > 0).all()
    rows = comparison_rows(summarise(cells), "proserve")
    assert {"engine-hours", "cost"} <= set(rows[0])
    fixed = Comparison(fleet, 1)
    assert not {"engine_hours", "cost"} & set(fixed.run(fixed.cells[0]))


def test_another_default_makes_another_comparison(monkeypatch):
    before, policy = identity_of(), policies.get_policy("scheduler", "slide-batching")
    changed = [dataclasses.replace(one, default=0.05) if one.name == "eta" else one for one in policy.parameters]
    assert differing(before) == []
    monkeypatch.setitem(
        policies._registry, ("scheduler", "slide-batching"), dataclasses.replace(policy, parameters=tuple(changed))
    )
    assert differing(before) == ["parameters"]


def test_so_does_another_gain_of_a_token(monkeypatch):
    before = identity_of()
    monkeypatch.setitem(gains.FUNCTIONS, "tdg", gains.FUNCTIONS["tempo"])
    assert differing(before) == ["figures"]


def test_seeds_see_other_windows_of_a_file(tmp_path):
    path = tmp_path / "mine.csv"
    rows = [f"{i},{100 + i},10" for i in range(100)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    comparison = Comparison(COMPARED.replaced(trace=str(path), scheduler="edf", load=0.5, requests=20), 3)
    firsts = [int(comparison.workloads[0.5, seed].table["prompt_tokens"][0]) for seed in range(3)]
    assert firsts[0] == 100
    assert len(set(firsts)) == 3
    for workload in comparison.workloads.values():
        assert np.all(np.diff(workload.table["prompt_tokens"]) == 1)
        assert workload.rate_per_s == pytest.approx(comparison.rate_of_load[0.5])
    assert comparison.trace_name == "mine.csv"
    assert str(tmp_path) not in json.dumps(comparison.identity)


def test_requests_are_at_most_those_of_a_file(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("prompt_tokens,output_tokens\n" + "100,10\n" * 30)
    assert Comparison(COMPARED.replaced(trace=str(path))).requests_per_run == 30
    assert Comparison().requests_per_run == 3000


@pytest.mark.parametrize("wrong", [
    {"seeds": 0}, {"scheduler": ()}, {"load": ()}, {"load": None}, {"load": (0.0,)}, {"load": Range(0.3, 1.0)},
    {"rate_per_s": (float("inf"),)}, {"load": (1.0, 1.0)}, {"scheduler": ("edf", "edf")},
    {"trace": ("azure-conv", "azure-code")},
])  # fmt: skip
def test_what_is_no_comparison(wrong):
    seeds = wrong.pop("seeds", 1)
    with pytest.raises(ServegymError):
        Comparison(COMPARED.replaced(**wrong), seeds)


def test_violations_and_classes_are_in_the_cells(tmp_path):
    comparison = Comparison(COMPARED.replaced(slo="qoserve", scheduler="edf", load=1.4, requests=60), 1)
    row = run_comparison(comparison, tmp_path).iloc[0]
    rate_per_s = comparison.rate_of_load[1.4]
    summary = simulate("azure-conv", scheduler="edf", slo="qoserve", rate_per_s=rate_per_s, requests=60).summary
    assert row["violations"] == row["violations_high_priority"] == summary["violations"]
    by_class = summary["violations_by_class"]
    assert list(by_class) == ["TTFT 6 s, TPOT 50 ms", "TTLT 600 s", "TTLT 1800 s"]
    assert {name: row[f"violations {name}"] for name in by_class} == by_class


@pytest.mark.slow
def test_gain_and_arrivals_are_part_of_what_is_compared(tmp_path):
    small = ONE_CELL
    run_comparison(small, tmp_path)
    run_comparison(
        Comparison(small.spec.replaced(gain="tdg:decode_weight=1.0"), 1), tmp_path
    )  # the same in other words
    for other in ({"gain": "ta-slo"}, {"gain": "tdg:decode_weight=2"}, {"arrivals": "gamma:cv=3"}):
        another = Comparison(small.spec.replaced(**other), 1)
        assert another.default_directory != small.default_directory
        assert next(iter(other.values())) in another.title
        with pytest.raises(ExperimentError, match="another comparison.*" + next(iter(other))):
            run_comparison(another, tmp_path)


def test_the_gain_and_the_arrivals_asked_for_are_run(tmp_path):
    told = Comparison(ONE_CELL.spec.replaced(gain="ta-slo:first_weight=3", arrivals="gamma:cv=3"), 1)
    row = run_comparison(told, tmp_path).iloc[0]
    workload = build_workload(
        "azure-conv", requests=50, rate_per_s=told.rate_of_load[1.4], arrivals="gamma:cv=3",
        idle_tpot_s=told.profile.idle_tpot_s,
    )  # fmt: skip
    summary = simulate(workload, scheduler="edf", gain=Gain("ta-slo", 3.0)).summary
    assert (row["gain"], row["gain_ratio"]) == (summary["gain"], summary["gain_ratio"])
    assert row["tdg_ratio"] is None


def test_closed_loops_of_several_sizes(tmp_path):
    """Cells by number of clients, the same requests at each, and each is what `simulate --clients` says."""
    spec = COMPARED.replaced(trace="chat-sessions", scheduler=("vllm-v1", "edf"), clients=(2, 5), requests=40)
    comparison = Comparison(spec, 2)
    cells = run_comparison(comparison, tmp_path)
    assert list(zip(cells["scheduler"], cells["clients"], cells["seed"], strict=True)) == comparison.cells
    assert cells["workload"].nunique() == 2 and "load" not in cells and "rate_per_s" not in cells
    row = cells[(cells["scheduler"] == "edf") & (cells["clients"] == 5) & (cells["seed"] == 1)].iloc[0]
    one = spec.replaced(scheduler="edf", clients=5).build(1)
    assert row["workload"] == one.workload.digest and one.clients == 5
    summary = Simulation(one).run().summary
    for name in ("tdg_ratio", "throughput_requests_per_s", "span_s"):
        assert row[name] == summary[name]
    by_clients = cells.groupby("clients")["throughput_requests_per_s"].mean()
    assert by_clients[5] > by_clients[2]
    pd.testing.assert_frame_equal(run_comparison(comparison, tmp_path), cells)
    with pytest.raises(ExperimentError, match=r"another comparison: .*clients"):
        run_comparison(Comparison(spec.replaced(clients=(2, 6)), 2), tmp_path)


def test_closed_loops_need_no_saturation():
    """A closed loop has no load."""
    pools = [{"device": device} for device in ("a100-llama3-8b", "h100-llama3-8b")]
    comparison = Comparison(COMPARED.with_overrides({"pools": pools, "clients": 3, "router": "min-load"}), 1)
    assert comparison.identity["clients"] == [3] and "saturation_rate_per_s" not in comparison.identity
    assert comparison.default_directory != Comparison(comparison.spec.replaced(clients=4), 1).default_directory


def test_what_has_no_clients():
    closed = Comparison(COMPARED.replaced(scheduler="edf", clients=4, requests=40), 1)
    with pytest.raises(ExperimentError, match="a goodput is a rate, and clients have none"):
        GoodputSearch(closed, Target("attainment", 0.9))
    with pytest.raises(ExperimentError, match="a panel has loads; compare serves closed loops"):
        Panel("mine", closed.spec)
    with pytest.raises(ExperimentError, match="clients 4 is named twice"):
        Comparison(COMPARED.replaced(clients=(4, 4)), 1)
    assert "arrivals depend on completions" in (why_no_bounds(closed) or "")


@pytest.mark.parametrize("arrivals", ["at-once", "waves:n=5,gap_s=0.1"])
def test_arrivals_without_a_rate_are_not_compared(arrivals):
    with pytest.raises(ExperimentError, match="pace of their own"):
        Comparison(COMPARED.replaced(arrivals=arrivals))
