"""What the page of the learned router says of its hypothesis."""

import numpy as np
import pytest

from experiments.session_fleet import OURS, TUNED, ahead_in_attainment, elsewhere, verdict


def outcomes(tdg: float, attainment: float) -> dict[str, np.ndarray]:
    """Of ours, with what it has more than a heuristic of TDG 0.9 and attainment 0.8, on three seeds."""
    other = np.array([[0.90, 0.80], [0.91, 0.79], [0.89, 0.81]])
    return {OURS: other + np.array([tdg, attainment]), "min-load": other, TUNED: other + 1, "learned:other": other + 1}


@pytest.mark.parametrize(
    ("tdg", "attainment", "said"),
    [
        (0.0, 0.04, "holds"),
        (0.001, 0.0, "holds"),  # by an interval: the difference is the same on every seed
        (0.0, 0.02, "not ahead of all"),
        (-0.004, 0.04, "holds"),
        (-0.006, 0.04, "behind"),
        (0.02, -0.006, "behind"),
    ],
)
def test_verdicts(tdg: float, attainment: float, said: str) -> None:
    assert verdict(outcomes(tdg, attainment)) == said


def test_ahead_in_attainment_by_an_interval() -> None:
    assert ahead_in_attainment(outcomes(-0.1, 0.001))  # the difference is the same on every seed
    level = outcomes(0.0, 0.001)
    level[OURS] = level[OURS] + np.array([[0, 0.002], [0, -0.002], [0, 0]])
    assert not ahead_in_attainment(level)


def test_a_row_has_the_best_heuristic_and_the_verdict() -> None:
    row = elsewhere({"here": outcomes(0.0, 0.04)}).splitlines()[-1]
    assert row.startswith("| here | 0.840 | `min-load` 0.800 | +0.040 |") and row.endswith("| holds |")
