"""Statistics over cells and seeds, against small cases by hand and known distributions."""

import math

import numpy as np
import pytest

from servegym.errors import ExperimentError
from servegym.evaluation.panels.statistics import (
    bootstrap,
    difference,
    improvement,
    iqm,
    mean,
    profile,
)  # fmt: skip

TWO_CELLS = np.array([[1.0, 2.0], [5.0, 10.0]])


def test_iqm_leaves_out_a_quarter_at_each_end():
    assert iqm(TWO_CELLS) == (2 + 5) / 2
    assert iqm(np.array([[9.0, 1.0, 2.0, 3.0, 4.0]])) == (2 + 3 + 4) / 3  # floor(5 / 4) = 1 at each end
    assert iqm(np.array([[1.0, 2.0, 6.0]])) == 3  # floor(3 / 4) = 0
    assert list(iqm(np.stack([TWO_CELLS, 10 * TWO_CELLS]))) == [3.5, 35]


def test_differences_are_paired():
    """Runs differ by 0 to 90, policies at each run by 1: the pairing leaves nothing to chance."""
    baseline = np.arange(10.0).reshape(2, 5) * 10
    found = bootstrap(difference, baseline + 1, baseline)
    assert (found.mean, found.low, found.high) == (1, 1, 1)


def test_probability_of_improvement_by_hand():
    """Better in one run of four, a tie in one: (1 + 0.5) / 4. The other way round it is the rest."""
    scores, baseline = np.array([[3.0, 2.0], [1.0, 1.0]]), np.array([[2.0, 2.0], [5.0, 5.0]])
    assert improvement(scores, baseline) == 1.5 / 4
    assert improvement(baseline, scores) == 2.5 / 4
    assert bootstrap(improvement, scores, baseline).mean == 1.5 / 4


def test_a_resample_of_two_seeds_has_one_of_them_in_each_cell():
    """Means of resamples: (1 or 2 + 5 or 10) / 2, that is 3, 3.5, 5.5, 6, each as likely."""
    found = bootstrap(mean, TWO_CELLS, resamples=4000)
    assert (found.mean, found.low, found.high) == (4.5, 3, 6)
    narrow = bootstrap(mean, TWO_CELLS, confidence=0.4, resamples=4000)  # 30 % to 70 %
    assert (narrow.low, narrow.high) == (3.5, 5.5)


def test_the_spread_of_resamples_is_that_of_the_mean():
    """Var of a mean over cells: sum of s^2 / n / cells^2. The bootstrap of n - 1 of n seeds has it without bias."""
    scores = np.random.default_rng(3).normal(size=(40, 4))
    expected = math.sqrt((scores.var(axis=1, ddof=1) / 4).sum()) / 40
    found = bootstrap(mean, scores, confidence=0.6826895, resamples=20_000)
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.05)


def test_the_same_scores_have_the_same_interval_each_time():
    scores = np.random.default_rng(1).random((6, 5))
    assert bootstrap(iqm, scores) == bootstrap(iqm, scores)
    assert bootstrap(iqm, scores, seed=1) != bootstrap(iqm, scores)


def test_one_seed_has_no_interval():
    found = bootstrap(mean, np.array([[1.0], [3.0]]))
    assert found.mean == 2 and math.isnan(found.low) and math.isnan(found.high)
    assert np.isnan(profile(np.array([[1.0], [3.0]]), np.array([2.0])).low).all()


@pytest.mark.slow
@pytest.mark.parametrize("statistic", [mean, iqm])
@pytest.mark.parametrize("cells, seeds", [(12, 3), (12, 5), (48, 5)])
def test_intervals_cover_what_they_should(statistic, cells, seeds):
    """Of 400 studies of cells of different levels with normal runs, 95 % should hold the true value: 380 +- 3 x 4.4,
    and a percentile bootstrap of few seeds is some per cent short."""
    rng = np.random.default_rng(7)
    levels = rng.random((cells, 1))
    truth = float(statistic(levels + 0.3 * rng.normal(size=(cells, 20_000))))
    held = 0
    for _ in range(400):
        found = bootstrap(statistic, levels + 0.3 * rng.normal(size=(cells, seeds)), resamples=300)
        held += found.low <= truth <= found.high
    assert 0.90 <= held / 400 <= 0.985


def test_probability_of_improvement_is_covered():
    """Differences are normal with mean 0.5 and deviation 1: a run is better with probability Phi(0.5) = 0.6915."""
    rng, held = np.random.default_rng(11), 0
    for _ in range(300):
        baseline = rng.normal(size=(24, 5))
        found = bootstrap(improvement, baseline + 0.5 + rng.normal(size=(24, 5)), baseline, resamples=300)
        held += found.low <= 0.69146 <= found.high
    assert 0.90 <= held / 300 <= 0.985


def test_a_profile_by_hand():
    found = profile(TWO_CELLS, np.array([0.0, 1.0, 4.0, 5.0, 10.0]))
    assert list(found.share) == [1, 0.75, 0.5, 0.25, 0]  # above, not at
    assert list(found.low) == [1, 0.5, 0.5, 0, 0]  # the second cell has 10 or 5, the first 1 or 2
    assert list(found.high) == [1, 1, 0.5, 0.5, 0]


@pytest.mark.parametrize("scores, problem", [
    ((np.ones((2, 3)), np.ones((3, 2))), "shapes"),
    ((np.ones(3),), "shapes"),
    ((np.ones((0, 3)),), "shapes"),
    ((np.array([[1.0, np.nan]]),), "NaN"),
])  # fmt: skip
def test_what_has_no_interval(scores, problem):
    with pytest.raises(ExperimentError, match=problem):
        bootstrap(mean if len(scores) == 1 else difference, *scores)
