"""How far a check's number is from the limits of its range."""

import math

import numpy as np
import pytest

from experiments.claims.harness.checks import Check, Range
from experiments.claims.harness.page import cell


@pytest.mark.parametrize(
    ("expected", "distance"),
    [
        (Range(low=0), 2.0),
        (Range(low=0, high=3), 1.0),
        (Range(low=4), -2.0),
        (Range(high=1), -1.0),
        (Range(), math.inf),
    ],
)
def test_distance_is_how_many_halves_of_the_interval_the_mean_is_inside_the_nearest_limit(expected, distance):
    values = np.array([1.0, 2.0, 3.0])
    half = Check("x", values, expected).interval.half_width
    scaled = 2.0 + (values - 2.0) / half  # an interval of 2 ± 1
    assert Check("x", scaled, expected).distance == pytest.approx(distance)


def test_there_is_no_distance_without_an_interval_or_with_a_seed_that_has_no_value():
    assert math.isnan(Check("x", np.array([1.0, 1.0]), Range(low=0)).distance)
    assert math.isnan(Check("x", np.array([1.0, np.nan, 2.0]), Range(low=0)).distance)


def test_a_cell_says_how_far_it_is_from_another_verdict():
    values = np.array([1.0, 2.0, 3.0])
    assert cell(Check("x", values, Range(low=0))).endswith(" ? (0.8)")
    assert cell(Check("x", values, Range(low=-100))).endswith(" yes (>10)")
    assert cell(Check("x", values, Range(low=100))).endswith(" **no** (<-10)")
    assert cell(Check("x", np.array([1.0, 1.0]), Range(low=0))) == "1 yes"
