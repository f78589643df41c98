"""Confidence intervals, against numbers worked out by hand."""

import math

import pytest

from servegym.cli.output import number
from servegym.evaluation.intervals import Interval, student_interval, verdict


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


def test_as_text():
    interval = Interval(0.5, 0.45, 0.57)
    assert interval.text() == "0.5000 ± 0.0600"
    assert interval.text("+.2f") == "+0.50 ± 0.06"
    assert interval.in_words() == "+0.5000 (+0.4500 to +0.5700)"
    assert interval.bounds(".1f") == "0.5 to 0.6"
    assert Interval.about(2, 1) == (2, 1, 3)
    assert Interval.of({"x": 2.0, "x_ci_low": 1.0, "x_ci_high": None}, "x", 10)[:2] == (20, 10)


@pytest.mark.parametrize("values", [[0.5], [0.1 + 0.2, 0.3, 0.3], [0.5] * 5])
def test_equal_runs_and_one_run_have_no_interval_in_text(values):
    interval = student_interval(values)
    assert "±" not in interval.text() and "to" not in interval.in_words() and interval.bounds() == "-"


def test_an_unknown_mean_is_a_dash():
    unknown = student_interval([math.nan, 1.0])
    assert unknown.text() == unknown.in_words() == unknown.bounds() == "-"


def test_what_rounds_to_zero_has_no_minus():
    interval = Interval(-0.00001, -0.2, 0.00001)
    assert interval.text() == "0.0000 ± 0.1000"
    assert interval.in_words() == "+0.0000 (-0.2000 to +0.0000)"
    assert number(-0.0001) == "0.000" and number(-0.5) == "-0.500"


@pytest.mark.parametrize(
    ("low", "high", "higher", "expected"),
    [
        (0.1, 0.2, True, "better"),
        (0.1, 0.2, False, "worse"),
        (-0.2, -0.1, False, "better"),
        (-0.1, 0.1, True, "not distinguishable"),
        (math.nan, math.nan, True, "one run"),
    ],
)
def test_verdicts(low, high, higher, expected):
    assert verdict(Interval((low + high) / 2, low, high), higher) == expected
