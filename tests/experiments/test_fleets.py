"""The study of the learned router for fleets: what is trained, chosen and said of each place."""

import json

import numpy as np
import pytest

from experiments import fleets
from experiments.fleets import MIXED, OURS, PLACES, SESSIONS, SPECIALIST, TRAINING_SEEDS
from experiments.session_fleet import TUNED
from servegym.envs.cluster_routing import random_clusters
from servegym.scenarios.presets import spelled_out
from servegym.tuners.config import load_config


def outcomes(tdg: float, attainment: float) -> dict[str, np.ndarray]:
    """Of ours, with what it has more than a heuristic of TDG 0.9 and attainment 0.8, on three scenarios."""
    other = np.zeros((3, 5))
    other[:, 0], other[:, 1], other[:, 2] = (0.90, 0.91, 0.89), (0.80, 0.79, 0.81), 2.0
    ours = other + np.array([tdg, attainment, 1.0, 0.0, 0.25])
    return {OURS: ours, "min-load": other, TUNED: other + 1, SPECIALIST: other + np.array([0.0, 0.05, 0.0, 0.0, 0.0])}


@pytest.fixture
def folder(tmp_path):
    for seed, score in zip(TRAINING_SEEDS, (1.70, 1.75, 1.72), strict=True):
        (tmp_path / str(seed)).mkdir()
        row = {"steps": 20, "minutes": 99.0, "difference": 0.02, "half_width": 0.01, "attainment_difference": 0.03}
        rows = [row | {"steps": 0, "score": 1.6}, row | {"score": score, "wait_difference_s": 0.5}]
        (tmp_path / str(seed) / "curve.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (tmp_path / str(seed) / "summary.json").write_text(json.dumps({"cpu_minutes": 2.5}))
    return tmp_path


def test_of_each_training_the_best_in_validation_counts(folder) -> None:
    found = fleets.trainings(folder)
    assert [one["score"] for one in found] == [1.70, 1.75, 1.72]
    row = fleets.trainings_table(found).splitlines()[-2]
    assert row == "| 100000 | 20 | 2.5 | +0.0200 ± 0.0100 | +0.0300 | +0.50 |"


def test_the_other_places_are_not_among_those_that_it_is_trained_on() -> None:
    trained = {str(part.get("pools")) for part in load_config(fleets.CONFIG).mixture}
    for preset, places in PLACES.items():
        assert next(iter(places.values())) == {}, preset
        assert not {str(changes["pools"]) for changes in places.values() if "pools" in changes} & trained
        for changes in places.values():  # each can be drawn
            random_clusters(4).with_overrides(spelled_out({"preset": preset, "split": "test", **changes}))


def test_a_row_has_both_figures_waits_and_the_verdict() -> None:
    row = fleets.places_table({"here": outcomes(0.01, 0.04)}).splitlines()[-1]
    assert row.startswith("| here | 0.840 | `min-load` 0.800 | +0.040 | 0.9100 | `min-load` 0.9000 | +0.0100")
    assert row.endswith("| -0.010 | 3.0 / 2.0 | 0.250 | holds |")
    assert fleets.places_table({"here": outcomes(-0.01, 0.04)}).endswith("| behind |\n")


def test_panels_are_over_trainings() -> None:
    found = outcomes(0.0, 0.0)
    found |= {"learned:0": found["min-load"] + 0.01, "learned:1": found["min-load"] + 0.03}
    row = fleets.panels_table({MIXED: found}, ["learned:0", "learned:1"]).splitlines()[-1]
    assert row.startswith("| mixed-fleet | +0.020 ± 0.127 | +0.0200 ± 0.1271 |")


def test_the_page_names_the_places_where_a_hypothesis_fails(folder) -> None:
    results = {preset: {place: outcomes(0.01, 0.04) for place in places} for preset, places in PLACES.items()}
    results[MIXED]["eight engines"] = outcomes(-0.01, -0.04)
    results[SESSIONS]["6 requests/s"] = outcomes(-0.01, -0.04)  # of no hypothesis
    for preset in PLACES:
        first = next(iter(PLACES[preset]))
        results[preset][first] |= {f"learned:cma-fleets-{n}": results[preset][first][OURS] for n in TRAINING_SEEDS}
    text = fleets.page(fleets.trainings(folder), results)
    assert "at 8 of 9 places without sessions; not at: eight engines (behind)." in text
    assert "| `learned:cma-fleets-100000` |" not in text and f"| `{OURS}` |" in text
