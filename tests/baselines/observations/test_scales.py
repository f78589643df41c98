"""How quantities become numbers within bounds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.baselines.observations.scales import log_share, root_ratio, share, squash

pytestmark = pytest.mark.nojit

any_number = st.floats(allow_nan=False)
positive = st.floats(0, allow_nan=False)


@given(any_number, positive)
@settings(max_examples=300, deadline=None)
def test_squash_is_within_bounds_and_has_the_sign(x, unit):
    value = squash(x, unit)
    assert -1 <= value <= 1
    assert value * x >= 0 if math.isfinite(x) else math.isinf(unit) or (value > 0) == (x > 0)


def test_squash_by_hand():
    assert squash(0.0, 2.0) == 0
    assert squash(2.0, 2.0) == 0.5 and squash(-2.0, 2.0) == -0.5
    assert squash(6.0, 2.0) == 0.75
    assert squash(0.0, 0.0) == 0 and squash(1.0, 0.0) == 1 and squash(-math.inf, 1.0) == -1
    assert squash(5.0, math.inf) == 0


@given(st.floats(0, 2**30), st.sampled_from([12.0, 20.0]))
@settings(max_examples=300, deadline=None)
def test_log_share_is_a_logarithm(x, bits):
    exact = min(1.0, math.log2(1 + x) / bits)
    assert exact - 0.0861 / bits <= log_share(x, bits) <= exact + 1e-12


def test_log_share_is_exact_at_powers_of_two_and_grows():
    assert [log_share(2.0**n - 1, 20.0) * 20 for n in range(21)] == pytest.approx(list(range(21)))
    values = [log_share(float(x), 20.0) for x in range(5000)]
    assert all(np.diff(values) > 0)
    assert log_share(-3.0, 20.0) == 0 and log_share(math.inf, 20.0) == 1


@given(positive, positive)
@settings(max_examples=200, deadline=None)
def test_ratios_are_within_bounds(part, whole):
    assert 0 <= root_ratio(part, whole) <= 1
    if math.isfinite(whole):
        assert 0 <= share(part, whole) <= 1


def test_ratios_by_hand():
    assert share(1.0, 4.0) == 0.25 and share(1.0, 0.0) == 0 and share(-1.0, 2.0) == 0 and share(3.0, 2.0) == 1
    assert root_ratio(1.0, 4.0) == 0.5 and root_ratio(0.0, 0.0) == 1 and root_ratio(0.0, 1.0) < 1e-9
