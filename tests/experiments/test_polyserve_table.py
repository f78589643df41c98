"""What the page of PolyServe's latency table says of its errors and hypotheses."""

import itertools

import numpy as np
import pandas as pd
import pytest

from experiments.polyserve_table import COLUMNS, ESTIMATORS, FORMED, PRINTED, RANDOM, answers, figures_of, page
from servegym.latency_models.fitting import REGIMES


def rows(printed: float, ours: float) -> pd.DataFrame:
    """Three seeds; mean errors of the printed table and of the others, which have no batches of prefills alone."""
    found = []
    for of, kind, form, seed in itertools.product((RANDOM, FORMED), REGIMES, ESTIMATORS, (1, 2, 3)):
        if kind != "prefill" or form == PRINTED:
            mean = (printed if form == PRINTED else ours) + 0.01 * seed
            found.append({"of": of, "kind": kind, "form": form, "seed": seed} | dict.fromkeys(COLUMNS, mean))
    return pd.DataFrame(found)


def test_over_and_under_prediction_are_apart():
    found = figures_of(np.array([-3.0, -1.0, 2.0, 10.0]))
    assert list(found.values())[:5] == [2.0, 4.0, 50.0, 2.0, 6.0]
    assert found["5th percentile"] == pytest.approx(-2.7) and found["95th percentile"] == pytest.approx(8.8)
    assert np.isnan(figures_of(np.array([1.0, 2.0]))["too short, mean"])


def test_verdicts():
    assert [line.split(": ")[-1] for line in answers(rows(-2.0, 0.0))] == ["holds."] * 4
    assert [line.split(": ")[-1] for line in answers(rows(-0.5, 0.4))] == ["fails.", "fails.", "holds.", "fails."]
    assert [line.split(": ")[-1] for line in answers(rows(-1.02, 0.24))][:2] == ["undecided.", "undecided."]


def test_the_page_has_a_row_for_each_kind_that_there_is():
    text = page(rows(-2.0, 0.0), 3, 100)
    assert text.count("| mixed | `table-shares` |") == 2 and text.count("| prefill | `table` |") == 2
    assert "| prefill | `table-shares` |" not in text and "| -2.00" not in text.split("## What holds")[0]
