"""What the page of the learned router for unequal engines says of its trainings."""

import json

import numpy as np

from experiments.lost_gain import MIXED_PLACES
from experiments.mixed_fleet import BASE, OURS, curves_of, draw, trainings_table, unequal


def outcomes(attainment: float) -> dict[str, np.ndarray]:
    """Of the base, with a TDG of 0.9 and an attainment of 0.8, and a training that attains more, on three seeds."""
    base = np.array([[0.90, 0.80, 1.0, 50.0, 0.0], [0.91, 0.79, 1.0, 50.0, 0.0], [0.89, 0.81, 1.0, 50.0, 0.0]])
    return {BASE: base, "learned:one": base + np.array([0.01, attainment, 0, 0, 0]), OURS: base}


def test_which_places_have_unequal_engines() -> None:
    other = {place for place, changes in MIXED_PLACES.items() if not unequal(changes)}
    assert all(place.startswith(("four ", "two A100 prefill")) for place in other)
    assert len(other) == 8 and len(MIXED_PLACES) == 20


def test_a_training_is_shown_at_the_first_place_and_at_its_worst(tmp_path) -> None:
    rows = [{"steps": 100 * k, "difference": 0.01 * k, "attainment_difference": 0.02 * k, "score": k} for k in range(3)]
    (tmp_path / "curve.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    curves = curves_of({"learned:one": tmp_path / "policy.json"})
    places = {"here": outcomes(0.05), "there": outcomes(-0.03), "elsewhere": outcomes(0.0)}
    row = trainings_table(curves, places).splitlines()[-1]
    assert row == "| `learned:one` | +0.040 | +0.0200 | +0.050 | +0.010 | -0.030 | there |"
    draw(curves, tmp_path / "images/curves.png")
    assert (tmp_path / "images/curves.png").stat().st_size > 10_000
