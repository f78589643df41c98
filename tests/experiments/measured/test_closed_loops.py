"""Measured closed loops: which are taken, what is simulated of them, and what choosing by simulation costs."""

import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.measured import closed_page, cpu_study, expert_experiments, few_points, ranking, wrong_closed_terms
from experiments.measured.closed_loops import CLAUSES, Loop, loop_of, read_loops, select
from experiments.measured.closed_study import CASES, figures_of, medians, profile_of, served, study, terms_of
from experiments.measured.known_terms import ASYNCHRONOUS, SYNCHRONOUS
from experiments.measured.loops_plot import plot_loops
from experiments.measured.public_runs import folder_of_runs
from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.figures import HEADLINE
from servegym.latency_models.profile import load_profile
from servegym.simulator.records.types import BATCH

needs_data = pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no measured loops")
ROW = {
    "id": "a", "series": "s", "collection": "2026-04-06.csv", "backend": "vllm", "backend_version": np.nan,
    "kind": "dense", "mode": "agg", "gpu": "h200_sxm", "model": "meta-llama/Llama-3.1-70B", "precision": "fp8",
    "wip": False, "isl": 1024, "osl": 128, "concurrency": 4, "gpus": 2, "tp_size": 2, "pp_size": 1,
    "attention_dp_size": 1, "moe_tp_size": 1, "moe_ep_size": 1, "ttft_s": 0.1, "tpot_s": 0.01,
}  # fmt: skip
EXPERTS = {"kind": "moe", "model": "MiniMaxAI/MiniMax-M2.5", "moe_tp_size": 2}
NOTHING = EngineTerms("", "")
LOOP = Loop(
    "point", "series", "NVIDIA", "h100", "Qwen/Qwen3-32B", 1, "bf16", "bf16", False, 320, 20, 2, 0.1, 0.01, "0.12.0",
    False, 8192, 1024, 1.0,
)  # fmt: skip


def test_each_clause_leaves_out_its_own():
    others = [
        {"backend": "sglang"}, {"mode": "disagg"}, {"gpu": "b200_sxm"}, {"wip": True},
        {"concurrency": None}, {"gpus": 4}, EXPERTS | {"moe_tp_size": 4}, {"model": "other"}, {"precision": "int4"},
        {"collection": "another file"},
    ]  # fmt: skip
    kept = [{}, {"precision": None, "attention_dp_size": None, "ttft_s": 0.2}, EXPERTS]
    chosen, counts = select(pd.DataFrame([ROW | one for one in [*kept, *others]]))
    assert [out for _, out, _ in counts] == [1] * len(CLAUSES) == [1] * len(others)
    assert counts[-1][2] == len(chosen) == len(kept)


def test_what_is_stated_of_an_engine():
    of_scripts = loop_of(ROW)
    assert (of_scripts.sequences, of_scripts.batch_tokens, of_scripts.kv_precision) == (4, 8192, "fp8")
    assert terms_of(of_scripts) is ASYNCHRONOUS
    lengths = of_scripts.workload().table
    assert len(lengths) == 40
    assert lengths["prompt_tokens"].min() >= 819 and lengths["prompt_tokens"].max() <= 1024
    assert lengths["output_tokens"].min() >= 102 and lengths["output_tokens"].max() <= 128
    unstated = loop_of(ROW | {"collection": "aic-auto-gap-analysis x", "precision": None, "backend_version": "0.12.0"})
    assert (unstated.sequences, unstated.precision, unstated.kv_precision) == (1024, "bf16", "bf16")
    assert terms_of(unstated) is SYNCHRONOUS
    assert set(unstated.workload().table["prompt_tokens"]) == {1024}
    spread = loop_of(ROW | EXPERTS | {"moe_tp_size": 1, "moe_ep_size": 2, "gpu": "h100_sxm"})
    assert (spread.experts, spread.expert_parallel, spread.skew) == (True, 2, 0.0)
    assert (spread.precision, spread.kv_precision, spread.sequences) == ("fp8-block", "bf16", 256)
    assert spread.configuration == "h100 tp2 ep2 fp8-block"


def test_a_closed_loop_by_hand():
    """Two clients in step: each round is one prefill of both prompts and 19 decodes of both."""
    profile = load_profile("a100-llama3-8b")
    requests = served(LOOP, profile, NOTHING)
    assert len(requests) == 20
    prefills = np.zeros(1, BATCH)
    prefills["prefill_requests"], prefills["prefill_tokens"] = 2, 640
    prefills["prefill_tokens_squared"], prefills["longest_prefill_tokens"] = 2 * 320**2, 320
    assert requests["ttft_s"].to_numpy() == pytest.approx(float(profile.device.evaluate(prefills)[0]))
    assert requests["tpot_s"].std() < 1e-9
    arrivals = np.sort(requests["arrival_s"].to_numpy()).reshape(10, 2)
    assert np.ptp(arrivals, axis=1).max() < 1e-9  # both send at the same time
    round_s = requests["ttft_s"].iloc[0] + 19 * requests["tpot_s"].iloc[0]
    assert np.diff(arrivals[:, 0]) == pytest.approx(round_s, abs=1e-6)
    slower = served(LOOP, profile, EngineTerms("", "", 0.005))
    assert (slower["tpot_s"] - requests["tpot_s"]).to_numpy() == pytest.approx(0.005)


def test_clients_apart_and_prompts_in_the_cache():
    profile = load_profile("a100-llama3-8b")
    plain = served(LOOP, profile, NOTHING)
    apart = replace(LOOP, apart_s=0.01)
    later = served(apart, profile, NOTHING)
    assert later["request"].tolist() == list(range(20))
    assert later["ttft_s"].std() > 1e-4
    assert (later["ttft_s"] - apart.later_s()).min() > 0
    assert later["ttft_s"].mean() - plain["ttft_s"].mean() > -0.01
    cached = served(replace(LOOP, prompts=2), profile, NOTHING)
    assert cached["cached_tokens"].tolist() == [0, 0] + [304] * 18  # of 320 tokens at least one is computed
    assert cached["ttft_s"].iloc[2:].max() < plain["ttft_s"].min()


def test_figures_are_means_or_medians_with_or_without_the_burst():
    requests = pd.DataFrame({
        "ttft_s": [9.0, 9.0, 1.0, 2.0, 6.0], "tpot_s": 0.1, "ttlt_s": 0.0, "output_tokens": 11, "cached_tokens": 0
    })  # fmt: skip
    requests["ttlt_s"] = requests["ttft_s"] + 1.0
    headline, median, warm = CASES[:3]
    assert figures_of(requests, LOOP, headline) == pytest.approx({"ttft": 27 / 5, "tpot": 0.1})
    assert figures_of(requests, LOOP, median)["ttft"] == pytest.approx(6.0)
    assert figures_of(requests, LOOP, warm)["ttft"] == pytest.approx(3.0)


def test_tau_pairs_and_regret_by_hand():
    measured, simulated = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.1, 3.1, 2.9, 5.0])
    assert ranking.tau(measured, simulated) == pytest.approx((5 - 1) / 6)
    assert ranking.pairs(measured, simulated) == (5, 6)
    assert ranking.pairs(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])) == (2, 2)  # a tie has no order
    assert ranking.regret(measured, simulated, higher=True) == 0.0
    assert ranking.regret(np.array([10.0, 8.0]), np.array([1.0, 2.0]), higher=True) == pytest.approx(20.0)
    assert ranking.regret(np.array([10.0, 8.0]), np.array([1.0, 2.0]), higher=False) == pytest.approx(25.0)


def points(simulated_tpot_s, tpot_s=(0.010, 0.018, 0.028)):
    """One series: three numbers of clients; TTFT takes next to no time."""
    return pd.DataFrame({
        "case": HEADLINE, "point": ["a", "b", "c"], "series": "s", "source": "NVIDIA", "gpu": "h100", "model": "m/m",
        "tp": 2, "precision": "bf16", "configuration": "h100 tp2 bf16", "isl": 1024, "osl": 101, "clients": [8, 16, 32],
        "tpot_s": tpot_s, "simulated_tpot_s": simulated_tpot_s, "ttft_s": 1e-9, "simulated_ttft_s": 1e-9,
    })  # fmt: skip


def test_choices_under_a_limit_by_hand():
    right = ranking.with_throughput(points((0.011, 0.019, 0.029)))
    assert right["throughput"].tolist() == pytest.approx([8 / 1.0 / 2, 16 / 1.8 / 2, 32 / 2.8 / 2])
    assert ranking.choose(right, 0.020) == ranking.Choice(0.020, True, 0.0, 0.0, False)
    assert ranking.choose(right, 0.005) is None
    short = ranking.choose(ranking.with_throughput(points((0.011, 0.019, 0.019))), 0.020)
    assert (short.right, short.none) == (False, False)
    assert short.over == pytest.approx(40.0) and np.isnan(short.regret)
    long = ranking.choose(ranking.with_throughput(points((0.011, 0.021, 0.030))), 0.020)
    assert long.regret == pytest.approx(100 * (1 - 8 / (16 / 1.8)))
    assert ranking.choose(ranking.with_throughput(points((0.021, 0.021, 0.030))), 0.020).none
    assert [choice.limit_s for choice in ranking.choices(points((0.011, 0.019, 0.029)), ["series"])] == [0.015, 0.020]


def test_groups_are_configurations_of_the_same_work():
    one = points((0.011, 0.019, 0.029))
    other = one.assign(configuration="h200 tp1 bf16", tp=1, tpot_s=one["tpot_s"] * 1.5, simulated_tpot_s=0.02)
    groups = dict(ranking.configurations(pd.concat([one, other, one.assign(isl=4096)], ignore_index=True)))
    assert set(groups) == {("m/m", 1024, 101, clients) for clients in (8, 16, 32)}
    again = other.assign(tpot_s=1.2 * other["tpot_s"])  # a configuration that was measured twice is one
    twice = dict(ranking.configurations(pd.concat([one, other, again], ignore_index=True)))
    assert twice[("m/m", 1024, 101, 8)]["tpot_s"].tolist() == pytest.approx([0.010, 0.0165])
    orders = ranking.orders(pd.concat([one, other], ignore_index=True))
    by_tpot = orders[orders["metric"] == "tpot"]
    assert by_tpot["tau"].tolist() == [1.0, 1.0, -1.0]
    assert by_tpot["regret"].tolist() == pytest.approx([0.0, 0.0, 50.0])


def test_the_cpu_time_of_a_request_is_found_where_it_was_put(monkeypatch):
    """Measured: 50 us a client beyond the simulated; of one model twice as slow, which the fit does not follow."""
    profile = load_profile("a100-llama3-8b")
    monkeypatch.setattr(cpu_study, "profile_of", lambda loop, folder: profile)
    seen = {clients: cpu_study.simulated(replace(LOOP, clients=clients), profile, 50e-6) for clients in (2, 6)}
    loops = [
        replace(LOOP, clients=clients, model=model, gpu=gpu, tpot_s=factor * found["tpot"], ttft_s=found["ttft"])
        for model, gpu, factor in (("a/x", "h100", 1.0), ("a/y", "h200", 1.0), ("a/z", "h200", 2.0))
        for clients, found in seen.items()
    ]
    points = cpu_study.Points([*loops, replace(LOOP, asynchronous=True)], None)
    assert len(points.loops) == 6
    assert points.fit(loops[:4]) == pytest.approx(50e-6, rel=0.1)
    outcome = cpu_study.study(points)
    assert {(one.by, one.left) for one in outcome.judged} == {
        ("model", "a/x"), ("model", "a/y"), ("model", "a/z"), ("GPU", "h100"), ("GPU", "h200"),
    }  # fmt: skip
    pairs = {(fitted, judged): after for fitted, judged, _, _, after in outcome.pairs}
    assert pairs["a/x", "a/y"] < 0.3 and pairs["a/z", "a/x"] > 1
    assert "| model: all | 6 |" in cpu_study.section(outcome)


def test_what_is_shown_of_models_with_experts():
    rows = pd.concat([
        points((0.011, 0.019, 0.029)).assign(case=case, experts=True, source="InferenceX", ttft_error=-50.0,
                                              tpot_error=error, clients=(4, 8, 512), model="a/gpt")
        for case, error in ((HEADLINE, 30.0), ("skew 1.01", 10.0))
    ], ignore_index=True)  # fmt: skip
    assert "| 4 | 1 | +30 | +10 | -50 | -50 |" in expert_experiments.routing(rows)
    assert "| gpt | 1024 | 2 | 0 | 0 | -50 |" in expert_experiments.prefills(rows[:3])
    assert "| h100 tp2 bf16, 1024 / 101 | 28.0 | 18.0 with 8 clients | 0 |" in expert_experiments.limited(rows[:3])
    assert "512 clients" in expert_experiments.section(rows)


def test_a_calibration_finds_what_was_put_in():
    simulated, clients = np.array([0.010, 0.012, 0.020]), np.array([4.0, 64.0, 16.0])
    measured = 1.1 * simulated + 40e-6 * clients
    assert few_points.calibration(measured, simulated, clients) == pytest.approx((1.1, 40e-6))
    assert few_points.calibration(measured[:1], simulated[:1], clients[:1]) == pytest.approx((1.1 + 0.016, 0.0))
    assert few_points.calibration(measured[:0], simulated[:0], clients[:0]) == (1.0, 0.0)
    assert few_points.calibration(0.9 * simulated, simulated, clients) == pytest.approx((0.9, 0.0))
    rows = pd.concat([points(simulated, measured)] * 4).assign(clients=np.tile(clients, 4), configuration="h100")
    (left,) = few_points.curves(rows).to_numpy()
    assert left[0] > 10
    assert left[-1] < 1  # five of twelve rows, of three kinds: at least two kinds are among them
    assert not len(few_points.curves(rows[:9]))


def test_hypotheses_are_judged_with_and_without_experts():
    rows = [
        points((0.011, 0.019, 0.029)).assign(
            case=case, experts=experts, tpot_error=error, ttft_error=40.0, configuration=f"tp{tp}", tp=tp,
            tpot_s=0.01 / tp, simulated_tpot_s=0.01 / tp,
        )
        for case, experts, error in ((HEADLINE, False, 5.0), (HEADLINE, True, 20.0), ("skew 1.01", True, 11.0))
        for tp in (1, 2, 4)
    ]  # fmt: skip
    judged = [cpu_study.Judged(LOOP, "model", "a", 5e-5, {"tpot": 9.0}, {"tpot": 10.0})]
    text = closed_page.verdicts(pd.concat(rows, ignore_index=True), cpu_study.Outcome(judged, [], 5e-5))
    for row in (
        "| 1, TPOT, 9 points, dense | 5.0 % | 12 % | met |", "| 1, TTFT, 18 points | 40.0 % | 30 % | missed |",
        "| 2, tau by TPOT, dense | 1.000 | 0.9 | met |", "| 3, TPOT, models with experts | 20.0 % | 12 % | missed |",
        "| 4, TPOT, experts, skew 1.01 | 11.0 % | below 20.0 % | met |",
        "| 5, TPOT, 1 synchronous points, CPU time a request of other models | 10.0 % | below 9.0 % | missed |",
    ):  # fmt: skip
        assert row in text


@needs_data
def test_the_selection_has_what_the_page_says():
    loops, counts = read_loops(folder_of_runs())
    assert len(loops) == counts[-1][2] == len({loop.name for loop in loops}) == 286
    assert sum(not loop.experts for loop in loops) == 144
    assert sum(loop.source == "InferenceX" for loop in loops) == 190


@pytest.mark.slow
@needs_data
def test_a_measured_point_comes_out(tmp_path):
    """Llama-3.1-70B on eight H200s, 1024 / 1024, 4 clients: the page says 2.1 % of TPOT; nothing is fitted to it."""
    folder = folder_of_runs()
    (loop,) = (
        one for one in read_loops(folder)[0]
        if (one.gpu, one.tensor_parallel, one.isl, one.osl, one.clients) == ("h200", 8, 1024, 1024, 4)
        and not one.experts
    )  # fmt: skip
    errors = study([loop], folder, CASES)
    applied = set(errors["case"])
    assert {"headline", "16-bit keys", "roofline"} <= applied and "100 prompts" not in applied
    assert medians(errors[errors["case"] == HEADLINE])["tpot"] < 4
    assert profile_of(loop, folder).name == "h200-llama-3.1-70b-instruct-fp8-kv8-tp8"
    assert plot_loops(errors[errors["case"] == HEADLINE], tmp_path / "loops.png").stat().st_size > 10_000
    assert f"| {HEADLINE} |" in closed_page.by_case(errors)
    assert 0 < wrong_closed_terms.compute_share(loop, folder) < 0.1
