"""The studies of lost-gain and of the learned router upon it: what is trained, chosen and said of each place."""

import json

import numpy as np
import pytest

from experiments import fleets, lost_gain
from experiments.fleets import OURS
from experiments.lost_gain import MIXED, PLACES, REFUSING, SESSIONS
from experiments.session_fleet import TUNED
from servegym.envs.cluster_routing import random_clusters
from servegym.scenarios.presets import spelled_out
from servegym.tuners.config import load_config

HEURISTIC, TRAINING_SEEDS = "lost-gain", (0, 100_000, 200_000)


def outcomes(tdg: float, attainment: float, name: str = OURS) -> dict[str, np.ndarray]:
    """Of a router, with what it has more than others of TDG 0.9 and attainment 0.8, on three scenarios."""
    other = np.zeros((3, 5))
    other[:, 0], other[:, 1], other[:, 2] = (0.90, 0.91, 0.89), (0.80, 0.79, 0.81), 2.0
    refusing = dict.fromkeys(REFUSING, other + np.array([0.02, 0.02, 0.0, 0.0, 0.0]))
    ours = other + np.array([tdg, attainment, 1.0, 0.0, 0.25])
    return {HEURISTIC: other, "min-load": other, TUNED: other + 1, **refusing, name: ours}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(fleets, "TRAINING_SEEDS", TRAINING_SEEDS)
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
    row = lost_gain.places_table(OURS, {"here": outcomes(0.01, 0.04)}).splitlines()[-1]
    assert row.startswith("| here | 0.840 | `lost-gain` 0.800 | +0.040 | 0.9100 | `lost-gain` 0.9000 | +0.0100")
    assert row.endswith("| 3.0 / 2.0 | 0.250 / 0.000 | holds |")
    assert lost_gain.places_table(OURS, {"here": outcomes(-0.01, 0.04)}).endswith("| behind |\n")


def test_a_router_is_judged_beside_those_that_refuse_only_if_it_refuses() -> None:
    found = outcomes(0.0, 0.0)
    assert list(lost_gain.others_of(HEURISTIC, found)) == ["min-load"]
    assert list(lost_gain.others_of(REFUSING[0], found)) == ["min-load", *REFUSING[1:]]
    assert lost_gain.judged(HEURISTIC, outcomes(0.01, 0.04, HEURISTIC)) == "holds"
    assert lost_gain.judged(HEURISTIC, found) == "not ahead of all"
    assert lost_gain.judged(REFUSING[0], outcomes(0.01, 0.01, REFUSING[0])) == "behind"  # beside others that refuse


def test_the_pages_name_the_places_where_a_hypothesis_fails(folder) -> None:
    results = {preset: {place: outcomes(0.01, 0.04) for place in places} for preset, places in PLACES.items()}
    behind = "eight engines, load 0.8 to 1.3"
    results[MIXED][behind] = outcomes(-0.01, -0.04)
    for preset in PLACES:
        first = next(iter(PLACES[preset]))
        results[preset][first] |= {f"learned:cma-fleets-{n}": results[preset][first][OURS] for n in TRAINING_SEEDS}
    text = fleets.page(fleets.trainings(folder), results, [("two", "own", "1.0", "2.0")])
    count = len(PLACES[MIXED]) + len(PLACES[SESSIONS])
    assert f"at {count - 1} of {count} places; not at: {behind} (behind)." in text
    assert "| `learned:cma-fleets-100000` |" not in text and f"| `{OURS}` |" in text
    text = lost_gain.page(results, [("two", "own", *"1234567")], 3)
    assert f"at 0 of {count} places; behind one at: none." in text and "3 scenarios a place" in text
