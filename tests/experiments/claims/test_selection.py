"""Which rival is the best, other seeds choose than those that judge; tables of schedulers say what their rows say."""

import numpy as np
import pandas as pd
import pytest

from experiments.claims.harness import heat_map
from experiments.claims.harness.league import league, markdown
from experiments.claims.harness.selection import SHIFT, best, lead, relative_lead, split, with_selection
from tests.experiments.claims.synthetic import TINY


def rows(by_scheduler: dict[str, list[float]], seeds: list[int], load: float = 1.0) -> pd.DataFrame:
    """A row a scheduler and seed, its share in every column of a league."""
    return pd.DataFrame(
        [
            {
                "family": "azure-conv", "device": "one", "scheduler": scheduler, "load": load, "seed": seed,
                "tdg_ratio": share, "slo_attainment": share / 2, "slo_attainment_high_priority": share,
                "slo_attainment_low_priority": None, "ttft_p99_s": 1 + share,
            }
            for scheduler, shares in by_scheduler.items()
            for seed, share in zip(seeds, shares, strict=True)
        ]
    )  # fmt: skip


JUDGING, CHOOSING = [1, 2, 3], [1 + SHIFT, 2 + SHIFT, 3 + SHIFT]
# "lucky" is the best on the seeds that judge, "steady" on those that choose.
ROWS = pd.concat(
    [
        rows({"ours": [0.6, 0.7, 0.8], "steady": [0.4, 0.5, 0.6], "lucky": [0.9, 0.9, 0.9]}, JUDGING),
        rows({"ours": [0.1, 0.1, 0.1], "steady": [0.5, 0.5, 0.6], "lucky": [0.4, 0.4, 0.4]}, CHOOSING),
    ]
)


def test_the_best_is_chosen_on_other_seeds_than_those_that_judge():
    judging, choosing = split(ROWS)
    assert (sorted(judging["seed"].unique()), sorted(choosing["seed"].unique())) == (JUDGING, CHOOSING)
    assert best(choosing, "tdg_ratio", 1.0, ["lucky", "steady"]) == "steady"
    assert best(judging, "tdg_ratio", 1.0, ["lucky", "steady"]) == "lucky"
    assert best(choosing, "tdg_ratio", 1.0, ["ours"]) == "ours"


def test_seeds_of_a_size_that_choose_are_not_among_those_that_judge():
    seeds = with_selection(TINY)
    assert seeds[: len(TINY.seeds)] == list(TINY.seeds)
    assert len(set(seeds)) == 2 * len(TINY.seeds)


def test_leads_are_paired_by_seed():
    judging, _ = split(ROWS)
    shuffled = judging.sample(frac=1, random_state=0)
    assert lead(shuffled, "tdg_ratio", 1.0, "ours", "steady") == pytest.approx([0.2, 0.2, 0.2])
    assert relative_lead(shuffled, "tdg_ratio", 1.0, "ours", "steady") == pytest.approx([40.0, 40.0, 40.0])


def test_relative_to_nothing_is_no_number():
    none = rows({"ours": [0.5, 0.5], "none": [0.0, 0.0]}, [1, 2])
    assert np.isnan(relative_lead(none, "tdg_ratio", 1.0, "ours", "none")).all()


def test_league_has_means_intervals_and_paired_differences():
    judging, _ = split(ROWS)
    table = league(judging, "ours").set_index("scheduler")
    assert table.loc["steady", "tdg_ratio"] == pytest.approx(0.5)
    assert table.loc["steady", "tdg_ratio_half_width"] == pytest.approx(4.302653 * 0.1 / np.sqrt(3), rel=1e-6)
    assert table.loc["steady", "tdg_ratio_difference"] == pytest.approx(-0.2)
    assert table.loc["steady", "tdg_ratio_difference_half_width"] == pytest.approx(0, abs=1e-9)
    assert table.loc["ours", "tdg_ratio_difference"] == 0
    assert np.isnan(table.loc["ours", "slo_attainment_low_priority"])


def test_league_in_markdown_marks_what_is_better_or_worse_beyond_the_interval():
    shares = {"ours": [0.5, 0.6, 0.7], "better": [0.6, 0.7, 0.8], "worse": [0.4, 0.5, 0.6], "alike": [0.4, 0.7, 0.7]}
    lines = markdown(league(rows(shares, JUDGING), "ours"), ["better", "ours", "worse", "alike"], 1.0).splitlines()
    assert lines[2].startswith("| better | **0.700** ± 0.248 | **0.350** ± 0.124 | 0.700 / - | 1.70")
    assert lines[3].startswith("| ours | 0.600 ± ")
    assert lines[4].startswith("| worse | *0.500* ± ")
    assert lines[5].startswith("| alike | 0.600 ± ")


def test_heat_map_frames_the_best_of_a_column_and_what_is_as_good():
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    axes = Figure().subplots()
    shares = np.array([[1.0, 0.9, 0.5], [1.0, 0.904, np.nan], [1.0, 0.2, 0.1]])  # equal, two near the best, one blank
    heat_map.draw(axes, {"family": shares}, ["a", "b", "c"], ["0.3", "0.7", "1"], "TDG ratio")
    frames = [patch for patch in axes.patches if isinstance(patch, Rectangle) and not patch.get_fill()]
    assert [(int(frame.get_x()), int(frame.get_y())) for frame in frames] == [(1, 0), (1, 1), (2, 0)]
    numbers = [text.get_text() for text in axes.texts if text.get_text().isdigit() and text.get_position()[1] > 0]
    assert numbers == ["100", "100", "100", "90", "90", "20", "50", "10"]
