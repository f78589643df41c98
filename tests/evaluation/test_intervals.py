"""Confidence intervals, against numbers worked out by hand."""

import math

import pytest

from servegym.evaluation.intervals import student_interval


def test_against_a_hand_computed_example():
    """Of 2, 4, 4, 4, 6: mean 4, s^2 = (4 + 4) / 4 = 2, t(4) at 97.5 % is 2.7764 in every table."""
    interval = student_interval([2, 4, 4, 4, 6])
    half_width = 2.7764 * math.sqrt(2) / math.sqrt(5)
    assert interval.mean == 4
    assert interval.half_width == pytest.approx(half_width, rel=1e-4)
    assert interval.low == pytest.approx(4 - half_width, rel=1e-4)


def test_two_values():
    """Of 1 and 3: s = sqrt(2), t(1) at 97.5 % is 12.706."""
    assert student_interval([1, 3]).half_width == pytest.approx(12.706, rel=1e-4)


def test_equal_values_have_no_width():
    assert student_interval([0.5] * 5) == (0.5, 0.5, 0.5)


def test_one_value_has_no_interval():
    interval = student_interval([0.5])
    assert interval.mean == 0.5
    assert math.isnan(interval.low) and math.isnan(interval.high)
