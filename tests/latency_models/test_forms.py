"""The forms against cases computed by hand, and what holds for any coefficients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.latency_models.forms import forms, get_form
from servegym.latency_models.forms.piecewise import FIT_KNOTS
from servegym.latency_models.model import LatencyModel
from servegym.simulator.errors import ProfileError
from servegym.simulator.signatures import Estimator
from servegym.simulator.types import BATCH

pytestmark = pytest.mark.nojit

LINEAR = {"a_p": 1e-9, "b_p": 2e-9, "c_p": 3e-5, "a_d": 4e-8, "b_d": 5e-5, "t_c": 0.01}
PIECEWISE = {
    "a_p": 1e-9, "b_p": 2e-9, "f_p": 1e-4, "a_d": 4e-8, "f_d": 2e-4, "t_c": 1e-3,
    "knots_tokens": [1.0, 101.0, 201.0], "base_s": [0.01, 0.01, 0.03],
}  # fmt: skip
VALUES = {"linear": LINEAR, "piecewise": PIECEWISE}


def batch_of(prefills=(), decodes=()):
    """BATCH array[1] of (tokens, cached) prefills and decodes of these cached tokens."""
    tokens = np.array([pair[0] for pair in prefills], dtype=float)
    cached = np.array([pair[1] for pair in prefills], dtype=float)
    batch = np.zeros(1, dtype=BATCH)
    batch["prefill_requests"] = len(prefills)
    batch["prefill_tokens"] = tokens.sum()
    batch["prefill_tokens_squared"] = (tokens**2).sum()
    batch["prefill_tokens_cached"] = (tokens * cached).sum()
    batch["prefill_cached_tokens"] = cached.sum()
    batch["longest_prefill_tokens"] = tokens.max(initial=0)
    batch["decode_requests"] = len(decodes)
    batch["decode_cached_tokens"] = sum(decodes)
    batch["longest_decode_cached"] = max(decodes, default=0)
    return batch


def seconds(form, **batch):
    (duration_s,) = LatencyModel.from_values(form, VALUES[form]).evaluate(batch_of(**batch))
    return duration_s


def test_linear_of_an_empty_batch_is_the_constant():
    assert seconds("linear") == 0.01


def test_linear_by_hand():
    prefills = 1e-9 * (100**2 + 50**2) + 2e-9 * 50 * 200 + 3e-5 * 150
    decodes = 4e-8 * (1000 + 3000) + 5e-5 * 2
    assert seconds("linear", prefills=[(100, 0), (50, 200)]) == pytest.approx(prefills + 0.01, rel=1e-12)
    assert seconds("linear", decodes=[1000, 3000]) == pytest.approx(decodes + 0.01, rel=1e-12)
    both = seconds("linear", prefills=[(100, 0), (50, 200)], decodes=[1000, 3000])
    assert both == pytest.approx(prefills + decodes + 0.01, rel=1e-12)


def test_linear_of_a_batch_is_the_sum_of_its_requests_and_the_constant():
    model = LatencyModel.from_values("linear", LINEAR)
    alone = [(100, 0, False), (50, 200, False), (1, 1000, True), (1, 3000, True)]
    total = sum(model.request_s(*request, model.coefficients) for request in alone)
    together = seconds("linear", prefills=[(100, 0), (50, 200)], decodes=[1000, 3000])
    assert total + LINEAR["t_c"] == pytest.approx(together, rel=1e-12)


@pytest.mark.parametrize(
    ("tokens", "base_s"),
    [(1, 0.01), (50, 0.01), (101, 0.01), (151, 0.02), (201, 0.03), (301, 0.05)],
    ids=["first knot", "flat", "at a knot", "between", "last knot", "past the last"],
)
def test_piecewise_base_by_hand(tokens, base_s):
    prefill = base_s + 1e-9 * tokens**2 + 1e-4 + 1e-3
    assert seconds("piecewise", prefills=[(tokens, 0)]) == pytest.approx(prefill, rel=1e-12)
    decode = base_s + 4e-8 * tokens * 10 + 2e-4 + 1e-3
    assert seconds("piecewise", decodes=[10] * tokens) == pytest.approx(decode, rel=1e-12)


def test_piecewise_of_a_mixed_batch_counts_all_its_tokens():
    expected = 0.02 + 1e-9 * 149**2 + 2e-9 * 149 * 300 + 1e-4 + 4e-8 * 700 + 2e-4 + 1e-3
    both = seconds("piecewise", prefills=[(149, 300)], decodes=[500, 200])
    assert both == pytest.approx(expected, rel=1e-12)


def test_piecewise_of_an_empty_batch_is_its_first_knot_and_the_constant():
    assert seconds("piecewise") == pytest.approx(0.011, rel=1e-12)


scale = st.floats(0, 1e-2)
requests = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 20000)), max_size=4)
cached = st.lists(st.integers(0, 20000), max_size=6)


@st.composite
def models(draw):
    if draw(st.booleans()):
        return LatencyModel.from_values("linear", {name: draw(scale) for name in LINEAR})
    values = {name: draw(scale) for name in PIECEWISE if name not in ("knots_tokens", "base_s")}
    knots = sorted(draw(st.sets(st.integers(1, 20000), min_size=2, max_size=8)))
    steps = draw(st.lists(scale, min_size=len(knots), max_size=len(knots)))
    return LatencyModel.from_values(
        "piecewise", values | {"knots_tokens": knots, "base_s": np.cumsum(steps).tolist()}
    )


@settings(deadline=None, max_examples=60)
@given(models(), requests, cached, st.integers(0, 3000), st.integers(0, 3000))
def test_more_tokens_or_more_cached_tokens_never_take_less(model, prefills, decodes, tokens, more):
    less = [batch_of(prefills, decodes)]
    longer = [batch_of([*prefills, (tokens + 1, more)], decodes), batch_of(prefills, [*decodes, more])]
    if prefills:
        (lq, lkv), rest = prefills[0], prefills[1:]
        longer.append(batch_of([(lq + tokens, lkv), *rest], decodes))
        longer.append(batch_of([(lq, lkv + more), *rest], decodes))
    if decodes:
        longer.append(batch_of(prefills, [decodes[0] + more, *decodes[1:]]))
    (base_s,) = model.evaluate(less[0])
    for batch in longer:
        assert model.evaluate(batch)[0] >= base_s * (1 - 1e-12)


@pytest.mark.parametrize("name", list(forms()))
def test_pack_and_unpack_are_inverse(name):
    form = get_form(name)
    packed = form.pack(VALUES[name])
    assert packed.dtype == np.float64
    assert form.unpack(packed) == VALUES[name]
    assert packed[form.constant_index] == VALUES[name]["t_c"]
    assert [coefficient.name for coefficient in form.coefficients] == list(VALUES[name])


def test_every_form_says_what_it_is():
    for name, form in forms().items():
        assert form.name == name
        assert form.equation
        assert all(coefficient.unit and coefficient.meaning for coefficient in form.coefficients)


def test_knots_of_the_fit_increase():
    assert list(FIT_KNOTS) == sorted(set(FIT_KNOTS))


def test_plus_constant_makes_every_batch_longer():
    for name, values in VALUES.items():
        model = LatencyModel.from_values(name, values)
        batch = batch_of([(149, 300)], [500, 200])
        longer = model.plus_constant(0.002)
        assert longer.evaluate(batch)[0] - model.evaluate(batch)[0] == pytest.approx(0.002, rel=1e-9)


def test_as_estimator_is_what_the_loop_takes():
    model = LatencyModel.from_values("linear", LINEAR)
    estimator = model.as_estimator()
    assert isinstance(estimator, Estimator)
    assert estimator.batch_s is model.batch_s.value
    assert estimator.exec_s is model.exec_s.value


def test_a_form_without_a_time_of_a_request_is_no_estimator():
    with pytest.raises(ProfileError, match=r"'piecewise' has no time of a request alone.*'linear' can"):
        LatencyModel.from_values("piecewise", PIECEWISE).as_estimator()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("linear", {"a_p": -1e-9}, r"a_p is -1e-09; it must be a finite number, 0 or above"),
        ("linear", {"t_c": float("nan")}, r"t_c is nan"),
        ("linear", {"c_p": float("inf")}, r"c_p is inf"),
        ("linear", {"b_d": "fast"}, r"b_d is 'fast'"),
        ("linear", {"b_d": True}, r"b_d is True"),
        ("linear", {"e_p": 1.0}, r"unknown e_p; form 'linear' has a_p, b_p, c_p, a_d, b_d, t_c"),
        ("piecewise", {"base_s": 0.1}, r"base_s is 0.1; it must be a list"),
        ("piecewise", {"base_s": []}, r"base_s is \[\]; it must be a list"),
        ("piecewise", {"base_s": [0.1, -1.0, 0.2]}, r"base_s\[1\] is -1.0"),
        ("piecewise", {"base_s": [0.1, 0.2]}, r"3 knots_tokens and 2 base_s; they must be equally many"),
        ("piecewise", {"knots_tokens": [1.0], "base_s": [0.1]}, r"2 or more"),
        ("piecewise", {"knots_tokens": [1.0, 9.0, 9.0]}, r"knots_tokens\[2\] is 9.0 after 9.0"),
        ("piecewise", {"base_s": [0.2, 0.1, 0.3]}, r"base_s\[1\] is 0.1 after 0.2; they must not fall"),
    ],
)  # fmt: skip
def test_coefficients_out_of_range(name, change, message):
    with pytest.raises(ProfileError, match=message):
        LatencyModel.from_values(name, VALUES[name] | change)


def test_a_missing_coefficient_and_an_unknown_form():
    with pytest.raises(ProfileError, match=r"here: coefficient missing t_c"):
        LatencyModel.from_values("linear", {k: v for k, v in LINEAR.items() if k != "t_c"}, "here")
    with pytest.raises(ProfileError, match=r"unknown latency form 'cubic'; known: linear, piecewise"):
        get_form("cubic")


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("linear", [0.0] * 5),
        ("linear", [0.0] * 7),
        ("piecewise", [0.0] * 6 + [2, 1, 2, 2, 0.1]),
        ("piecewise", [0.0] * 6),
        ("piecewise", [0.0] * 6 + [float("nan"), 1, 2, 2, 0.1, 0.2]),
    ],
)
def test_packed_coefficients_of_another_length(name, packed):
    with pytest.raises(ProfileError, match=f"form '{name}': {len(packed)} packed numbers do not hold"):
        LatencyModel(name, np.array(packed))
