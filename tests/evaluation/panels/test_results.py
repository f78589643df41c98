"""Tables, pictures, report and model card, from runs made by hand."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from servegym.errors import ExperimentError
from servegym.evaluation.comparison_rows import comparison_rows
from servegym.evaluation.panels import plots
from servegym.evaluation.panels.card import model_card, save_cards
from servegym.evaluation.panels.evaluation import Evaluation, run_evaluation
from servegym.evaluation.panels.panel import SERVED, Panel, load_panel
from servegym.evaluation.panels.plots import plot_differences, plot_profile
from servegym.evaluation.panels.report import evaluation_report
from servegym.evaluation.panels.tables import (
    accounts,
    cells_table,
    conclusions,
    groups_table,
    overview,
    save_tables,
    score_array,
    scores_of,
    select,
)  # fmt: skip
from servegym.evaluation.repeats import SAME
from servegym.evaluation.summary import best_of

SMALL = Panel(
    "small",
    SERVED.replaced(trace="azure-code", device=("a100-llama3-8b", "h100-llama3-8b"), load=(0.3, 1.2), requests=40),
    seeds=3,
)
LEARNED = "slide-batching:gamma=2"
# Of the baseline in each of the four cells; seeds add 0, 0.01, 0.02 to everything.
LEVELS = {("a100-llama3-8b", 0.3): 0.9, ("a100-llama3-8b", 1.2): 0.5, ("h100-llama3-8b", 0.3): 0.8,
          ("h100-llama3-8b", 1.2): 0.4}  # fmt: skip
GAINS = {  # what the learned policy has more, by load and seed
    0.3: (0.00, 0.001, -0.001), 1.2: (0.10, 0.11, 0.12),
}  # fmt: skip


def runs_of(labels: list[str], seeds: int = 3) -> pd.DataFrame:
    rows = []
    for cell, ((device, load), level) in enumerate(LEVELS.items()):
        for seed in range(seeds):
            for index, label in enumerate(labels):
                tdg = level + 0.01 * seed + (GAINS[load][seed] if index == 1 else 0) - (0.2 if index == 2 else 0)
                rows.append(
                    {
                        "trace": "azure-code", "device": device, "policy": label, "load": load,
                        "seed": 1_000_000 + 3 * cell + seed, "rate_per_s": 5.0, "tdg_ratio": tdg, "slo_attainment": tdg,
                        "slo_attainment_high_priority": tdg, "slo_attainment_low_priority": tdg, "ttft_p99_s": 1.0,
                        "tpot_p99_s": 0.05, "evictions": 0, "starved": 0.0, "fairness_by_client": None,
                        "fairness_by_length": 0.9,
                        "violations": 1 - tdg, "violations_high_priority": 1 - tdg, "violations_low_priority": 1 - tdg,
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture
def evaluation(artifact) -> Evaluation:
    return Evaluation(SMALL, ("edf", f"learned:{artifact}", "sjf"))


@pytest.fixture
def runs(evaluation) -> pd.DataFrame:
    return runs_of(list(evaluation.candidates))


def test_scores_are_arranged_by_cell_and_seed(runs):
    scores = score_array(runs, "edf")
    assert scores == pytest.approx(np.array(list(LEVELS.values()))[:, None] + [0, 0.01, 0.02])


def test_cells_by_hand(evaluation, runs):
    """At load 1.2 the differences are 0.10, 0.11, 0.12: mean 0.11, s 0.01, t(2) 4.3027: 0.11 +- 0.02484."""
    cells = cells_table(evaluation, runs)
    assert len(cells) == 4 * 3
    cell = cells[(cells["policy"] == LEARNED) & (cells["load"] == 1.2)].iloc[1]
    assert (cell["device"], cell["verdict"], cell["held_out"]) == ("h100-llama3-8b", "better", "new trace and device")
    assert cell["tdg_ratio_difference"] == pytest.approx(0.11)
    assert cell["tdg_ratio_difference_ci_low"] == pytest.approx(0.11 - 0.024842, abs=1e-6)
    assert set(cells[cells["policy"] == "edf"]["verdict"]) == {"reference"}
    assert list(cells[(cells["policy"] == LEARNED) & (cells["load"] == 0.3)]["verdict"]) == ["not distinguishable"] * 2


def test_groups_by_hand(evaluation, runs):
    groups = groups_table(evaluation, runs)
    assert list(groups["by"].unique()) == ["all", "load", "trace", "device"]
    row = select(groups).set_index("policy").loc[LEARNED]
    assert (row["cells"], row["seeds"]) == (4, 3)
    assert row["mean"] == pytest.approx((0.9 + 0.5 + 0.8 + 0.4) / 4 + 0.01 + 0.11 / 2)
    assert row["difference"] == pytest.approx(0.11 / 2)
    assert row["improvement"] == pytest.approx((6 + 2 * 1.5) / 12)  # all of load 1.2; at 0.3 one of three, and a tie
    assert row["verdict"] == "better" and row["difference_ci_low"] > 0.05
    light = select(groups, "load").set_index(["group", "policy"]).loc["load 0.3 (light)"]
    assert light.loc[LEARNED, "verdict"] == "not distinguishable"
    assert light.loc["sjf", "verdict"] == "worse"
    assert light.loc["sjf", ["difference", "difference_ci_low", "improvement"]].tolist() == pytest.approx(
        [-0.2, -0.2, 0]
    )
    assert light.loc["edf", "verdict"] == "reference" and math.isnan(light.loc["edf", "difference"])


def test_in_words(evaluation, runs):
    words = conclusions(evaluation, groups_table(evaluation, runs))
    assert words[0] == f"All cells, by TDG ratio against edf: better: {LEARNED} (+0.0550); worse: sjf (-0.2000)."
    assert words[1].startswith("Load 0.3 (light), by TDG ratio against edf: not distinguishable: slide-batching")
    assert len(words) == 3


@pytest.mark.slow
def test_ranked_by_what_should_be_low(evaluation, runs):
    """Of the p99 of TTFT less is better: sjf, with the lowest TDG ratio, leads."""
    ranked = dataclasses.replace(evaluation, rank_by="p99-ttft")
    runs = runs.assign(ttft_p99_s=1 + runs["tdg_ratio"])
    groups = groups_table(ranked, runs)
    assert list(groups["score"].unique()) == ["ttft_p99_s", "tdg_ratio", "slo_attainment"]
    by_time, by_gain = (select(groups, score=score).set_index("policy") for score in ("ttft_p99_s", "tdg_ratio"))
    assert by_time.loc[["sjf", LEARNED], "verdict"].tolist() == ["better", "worse"]
    assert by_time.loc["sjf", "difference"] == pytest.approx(-0.2) and by_time.loc["sjf", "improvement"] == 1
    assert by_gain.loc[["sjf", LEARNED], "verdict"].tolist() == ["worse", "better"]
    words = conclusions(ranked, groups)
    assert words[0] == f"All cells, by p99 TTFT against edf: better: sjf (-0.20); worse: {LEARNED} (+0.06)."
    table = overview(ranked, runs, groups)["All 4 cells"]
    assert best_of(table) == "sjf" and comparison_rows(table, "proserve")[2]["p99 TTFT, s"] == "1.46 ± 0.01"
    with pytest.raises(ExperimentError, match="p99 TTFT is not known of every run"):
        groups_table(ranked, runs.assign(ttft_p99_s=math.nan))
    with pytest.raises(ExperimentError, match="unknown measure to rank by 'speed'"):
        dataclasses.replace(evaluation, rank_by="speed")


def test_the_overview_has_the_columns_and_means_of_a_comparison(evaluation, runs):
    tables = overview(evaluation, runs, groups_table(evaluation, runs))
    assert list(tables) == ["All 4 cells", "Load 0.3 (light)", "Load 1.2"]
    row = comparison_rows(tables["Load 0.3 (light)"], "proserve", "policy")[0]
    assert list(row)[:5] == ["policy", "TDG ratio", "SLO attainment", "p99 TTFT, s", "p99 TPOT, ms"]
    assert row["policy"] == "edf" and row["TDG ratio minus reference"] == ""
    means = runs[runs["load"] == 0.3].groupby("policy")["tdg_ratio"].mean()
    assert tables["Load 0.3 (light)"].set_index("scheduler")["tdg_ratio"].to_dict() == pytest.approx(means.to_dict())


def test_the_bound_is_a_second_score(evaluation, runs):
    assert scores_of(runs) == ["tdg_ratio", "slo_attainment"]
    bounded = runs.assign(share_of_bound=runs["tdg_ratio"] / 0.95)
    groups = groups_table(evaluation, bounded)
    both = [select(groups, score=score).set_index("policy").loc["sjf", "mean"] for score in scores_of(bounded)]
    assert both[1] == pytest.approx(both[0] / 0.95)
    bounded.loc[3, "share_of_bound"] = math.nan
    assert scores_of(bounded) == ["tdg_ratio", "slo_attainment"]


def test_at_whose_cost(evaluation, runs):
    told = accounts(cells_table(evaluation, runs.assign(starved=np.where(runs["policy"] == "sjf", 0.25, 0.0))))
    by_policy = {row.pop("policy"): row for row in told}
    assert list(by_policy) == list(evaluation.candidates)
    assert {words.split(",")[0] for words in by_policy["sjf"].values()} == {"0.2500"}
    assert {words.split(",")[0] for words in by_policy["edf"].values()} == {"0.0000"}
    assert {words.split(", ")[1] for words in by_policy["edf"].values()} == {"0.900"}


def test_tables_are_written(evaluation, runs, tmp_path):
    cells, groups = cells_table(evaluation, runs), groups_table(evaluation, runs)
    paths = save_tables(runs, cells, groups, tmp_path)
    assert [path.name for path in paths] == ["runs.parquet", "cells.csv", "groups.csv"]
    pd.testing.assert_frame_equal(pd.read_parquet(paths[0]), runs)
    assert len(pd.read_csv(paths[1])) == len(cells)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3])
def test_pictures_and_report(evaluation, tmp_path, seeds):
    runs = runs_of(list(evaluation.candidates), seeds)
    cells, groups = cells_table(evaluation, runs), groups_table(evaluation, runs)
    differences = plot_differences(evaluation, cells, groups, tmp_path / "differences.png")
    profile = plot_profile(evaluation, runs, tmp_path / "profile.png")
    assert differences.read_bytes()[:4] == profile.read_bytes()[:4] == b"\x89PNG"
    path = evaluation_report(evaluation, cells, groups, differences, profile, tmp_path / "report.html")
    text = path.read_text()
    assert text.count("data:image/png") == 2 and "http:" not in text and "https:" not in text
    for words in (
        LEARNED,
        "new trace and device in 2 of 4 cells",
        "azure-code on h100-llama3-8b",
        "+0.0550",
        "All cells",
    ):
        if seeds == 3 or words != "+0.0550":
            assert words in text


def test_a_policy_far_behind_is_drawn_inside_the_axis_near_a_tick(evaluation, tmp_path, monkeypatch):
    runs = runs_of(list(evaluation.candidates), 2)
    far = (runs["policy"] == LEARNED) & (runs["load"] == 0.3)
    runs.loc[far, "tdg_ratio"] -= 0.35
    figures = []
    monkeypatch.setattr(plots.Figure, "savefig", lambda figure, path, **_: figures.append(figure))
    plot_differences(evaluation, cells_table(evaluation, runs), groups_table(evaluation, runs), tmp_path / "d.png")
    axes = figures[0].axes[0]
    (low, high), ticks = axes.get_xlim(), axes.get_xticks()
    found = cells_table(evaluation, runs)["tdg_ratio_difference"]
    assert found.min() < -0.3 and 1.4 * found.min() > low and high > found.max()
    assert [tick for tick in ticks if tick < 0] == [-1, -0.1, -0.01]


@pytest.mark.parametrize(
    ("reach", "end"), [(0.0, 0.02), (0.01, 0.02), (0.015, 0.0225), (0.04, 0.12), (0.2, 0.3), (0.34, 1.2), (0.9, 1.35)]
)
def test_the_axis_of_differences_ends_beyond_them(reach, end):
    assert plots.end_of_axis(reach) == pytest.approx(end)


def test_the_card_says_what_it_is_and_where_it_loses(evaluation, runs):
    worse = runs.copy()
    lost = (worse["policy"] == LEARNED) & (worse["load"] == 0.3) & (worse["device"] == "h100-llama3-8b")
    worse.loc[lost, "tdg_ratio"] -= 0.05
    card = model_card(evaluation, LEARNED, cells_table(evaluation, worse), groups_table(evaluation, worse))
    for words in (
        f"# {LEARNED}",
        "- file: mine.json",
        "- kind: scheduler (heuristic)",
        "- settings.gamma: 2",
        "- traces: azure-conv",
        "- seeds: 0 to 999,999",
        "- algorithm: cma-es",
        "- search.trials: 32",
        f"New to {LEARNED}: new trace in 2 of 4 cells, new trace and device in 2 of 4 cells.",
        "Against edf, by TDG ratio, cell by cell: better in 2, not distinguishable in 1, worse in 1 of 4.",
        "| azure-code | h100-llama3-8b | 0.3 (light) | -0.0500, -0.0525 to -0.0475 |",
        "| load 0.3 (light) | -0.0250, ",
        "- Devices: a100-llama3-8b, h100-llama3-8b.",
        "Outside the loads it was trained at: 1.2.",
        "NVIDIA A100",
    ):
        assert words in card, words


def test_requests_are_drawn_with_progress():
    told: list[tuple[int, int]] = []
    Evaluation(SMALL, ("edf", "sjf")).draw(lambda *now: told.append(now))
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_a_fleet_is_named_with_all_its_devices():
    panel = load_panel("mixed_fleet").replaced({"load": 1.2}, seeds=2)
    judged = Evaluation(panel, ("min-load", "learned:mixed-fleet"), "router")
    assert "1 trace x 1 fleet x 1 load x 2 seeds" in judged.title
    assert judged.title.endswith("4 engines: 1 x h100-llama3-8b + 2 x a100-llama3-8b + 1 x a6000-llama3.1-8b")
    rows = runs_of(list(judged.candidates), seeds=2)
    rows = rows[(rows["device"] == "h100-llama3-8b") & (rows["load"] == 1.2)].assign(trace="azure-conv")
    card = model_card(judged, "learned:mixed-fleet", cells_table(judged, rows), groups_table(judged, rows))
    assert "- Devices: h100-llama3-8b, a100-llama3-8b, a6000-llama3.1-8b.\n" in card
    limits = card.partition("## Limits of use")[2]
    for profile in judged.profiles:
        assert f"Times are those of the profile {profile.name}" in limits and profile.error["statement"] in limits


@pytest.mark.slow
def test_a_card_for_each_learned_policy(evaluation, runs, tmp_path):
    cells, groups = cells_table(evaluation, runs), groups_table(evaluation, runs)
    assert [path.name for path in save_cards(evaluation, cells, groups, tmp_path)] == ["model_card.md"]
    assert "No single cell is worse" in (tmp_path / "model_card.md").read_text()
    heuristics = Evaluation(SMALL, ("edf", "sjf"))
    assert save_cards(heuristics, cells, groups, tmp_path) == []


def test_cells_with_one_run_stand_beside_cells_with_seeds():
    """A file served whole is the same run for every seed; the other cells' seeds are what an interval is over."""
    rows = [
        {"trace": trace, "device": "d", "load": 1.0, "policy": policy, "seed": seed, "tdg_ratio": score}
        for trace, scores in (("file", [0.5]), ("family", [0.1, 0.2, 0.3]))
        for seed, score in enumerate(scores)
        for policy in ("edf",)
    ]
    assert score_array(pd.DataFrame(rows), "edf").tolist() == [[0.5, 0.5, 0.5], [0.1, 0.2, 0.3]]


def test_an_evaluation_on_a_file_says_what_its_intervals_are_over(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *(f"{i},{50 + i},10" for i in range(50))]))
    spec = SERVED.with_overrides({"trace": str(path), "slo": "given", "load": 0.9, "requests": 50})
    judged = Evaluation(Panel("mine", spec, seeds=3), ("edf", "vllm-fcfs"))
    runs = run_evaluation(judged, tmp_path / "out")
    assert judged.runs == len(runs) == 2 and judged.over == SAME and "--resample" in judged.notes[0]
    groups = groups_table(judged, runs)
    assert set(groups["interval_over"]) == {SAME} and groups["mean_ci_low"].isna().all()
    assert "one run, the same for every seed" in judged.title
    short = Evaluation(Panel("mine", spec.replaced(requests=25), seeds=3), ("edf", "vllm-fcfs"))
    with pytest.raises(ExperimentError, match="room for 2 windows of 25 requests"):
        run_evaluation(short, tmp_path / "short")
