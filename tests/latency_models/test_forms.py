"""The forms against cases computed by hand, and what holds for any coefficients."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.errors import ProfileError
from servegym.latency_models.forms import estimator_forms, forms, get_form
from servegym.latency_models.forms.piecewise import FIT_KNOTS
from servegym.latency_models.model import LatencyModel
from servegym.simulator.records.signatures import Estimator
from servegym.simulator.records.types import RANK, REQUEST
from tests.latency_models.batches import LINEAR, PIECEWISE, TABLE, VALUES, batch_of
from tests.models import models as any_models

pytestmark = pytest.mark.nojit


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


def test_piecewise_of_a_mixed_batch_counts_all_its_tokens_and_of_an_empty_one_its_first_knot():
    expected = 0.02 + 1e-9 * 149**2 + 2e-9 * 149 * 300 + 1e-4 + 4e-8 * 700 + 2e-4 + 1e-3
    both = seconds("piecewise", prefills=[(149, 300)], decodes=[500, 200])
    assert both == pytest.approx(expected, rel=1e-12)
    assert seconds("piecewise") == pytest.approx(0.011, rel=1e-12)  # and the constant


@pytest.mark.parametrize(
    ("tokens", "cached", "table_s"),
    [
        (1, 0, 0.01), (11, 100, 0.05), (6, 0, 0.02), (1, 50, 0.015), (6, 50, 0.0275), (16, 50, 0.055),
        (31, 0, 0.05), (1, 200, 0.03), (31, 200, 0.25),
    ],
    ids=["corner", "knot", "rows", "columns", "inside", "next cell", "past rows", "past columns", "past both"],
)  # fmt: skip
def test_table_by_hand(tokens, cached, table_s):
    assert seconds("table", prefills=[(tokens, cached)]) == pytest.approx(table_s + 1e-3, rel=1e-12)
    decodes = [cached] + [0] * (tokens - 1)
    assert seconds("table", decodes=decodes) == pytest.approx(table_s + 1e-3, rel=1e-12)


def test_table_adds_tokens_and_cached_tokens_of_both_phases():
    assert seconds("table", prefills=[(4, 20)], decodes=[10, 20]) == pytest.approx(0.0275 + 1e-3, rel=1e-12)


def test_table_shares_by_hand():
    """Decodes read their KV once; 6 prefilled tokens after 5 read half of 6 x 5 + 6^2 / 2; both run their kernels."""
    assert seconds("table-shares") == pytest.approx(0.01 + 1e-3, rel=1e-12)
    decodes = seconds("table-shares", decodes=[20, 30] + [0] * 4)
    assert decodes == pytest.approx(0.0275 + 5e-4 + 1e-3, rel=1e-12)
    right = (6 * 5 + 18) / 2 / 100
    table_s, prefill_s = 0.02 + right * 0.015, 0.5e-4 + right * 1e-4
    prefill = seconds("table-shares", prefills=[(6, 5)])
    assert prefill == pytest.approx(table_s + 6 * prefill_s + 3e-4 + 1e-3, rel=1e-12)
    right = (50 + (2 * 0 + 2) / 2) / 100
    table_s, prefill_s = 0.02 + right * 0.015, 0.5e-4 + right * 1e-4
    mixed = seconds("table-shares", prefills=[(2, 0)], decodes=[50, 0, 0, 0])
    assert mixed == pytest.approx(table_s + 2 * prefill_s + 3e-4 + 5e-4 + 1e-3, rel=1e-12)


def test_slowest_is_the_longest_prefill_or_the_longest_decode():
    assert seconds("slowest") == 1e-3
    prefill = 1e-9 * 300**2 + 1e-4 * 300
    assert seconds("slowest", prefills=[(300, 0), (200, 999)]) == pytest.approx(prefill + 1e-3, rel=1e-12)
    decode = 1e-8 * 5000 + 0.012
    assert seconds("slowest", decodes=[5000, 10, 10]) == pytest.approx(decode + 1e-3, rel=1e-12)
    both = seconds("slowest", prefills=[(300, 0)], decodes=[5000])
    assert both == pytest.approx(max(prefill, decode) + 1e-3, rel=1e-12)
    assert seconds("slowest", prefills=[(10, 0)], decodes=[5000]) == pytest.approx(decode + 1e-3, rel=1e-12)


def test_polynomial_of_the_summed_prefill_tokens():
    expected = 1e-12 * 300**3 + 1e-9 * 300**2 + 1e-5 * 300 + 0.01
    assert seconds("polynomial", prefills=[(100, 0), (200, 50)]) == pytest.approx(expected, rel=1e-12)
    assert seconds("polynomial", prefills=[(300, 0)], decodes=[7]) == pytest.approx(expected, rel=1e-12)
    assert seconds("polynomial") == 0.01


def test_roofline_by_hand():
    weights_s = 1e10 / 0.8e12
    assert seconds("roofline") == pytest.approx(weights_s + 1e-3, rel=1e-12)
    decode = weights_s + 1e5 * 4000 / 0.8e12 + 2 * 1e5 / 1e11
    assert seconds("roofline", decodes=[1000, 3000]) == pytest.approx(decode + 1e-3, rel=1e-12)
    prefill = 1e10 * 500 / 0.5e14 + 1e6 * 500**2 / 2 / 0.5e14 + 1e6 * 500 * 800 / 0.25e14 + 500 * 1e5 / 1e11
    assert seconds("roofline", prefills=[(500, 800)]) == pytest.approx(prefill + 1e-3, rel=1e-12)


@pytest.mark.parametrize("name", estimator_forms())
@pytest.mark.parametrize("request_of", [(300, 0, False), (40, 700, False), (1, 900, True)])
def test_a_request_alone_takes_its_own_time_and_that_of_an_empty_batch(name, request_of):
    """Where the form can tell: `slowest` and `polynomial` neglect what they say they cannot express."""
    model = LatencyModel.from_values(name, VALUES[name])
    batch = {"decodes": [request_of[1]]} if request_of[2] else {"prefills": [request_of[:2]]}
    alone = model.request_s(*request_of, model.coefficients) + seconds(name)
    assert alone == pytest.approx(seconds(name, **batch), rel=1e-12)


@pytest.mark.parametrize("name", estimator_forms())
def test_the_queue_s_times_are_those_of_its_requests(name):
    requests = np.zeros(3, dtype=REQUEST)
    requests["prompt_tokens"], requests["computed_tokens"] = [300, 740, 890], [0, 700, 900]
    requests["num_output_tokens"] = [0, 0, 11]
    model = LatencyModel.from_values(name, VALUES[name])
    plan, queue = np.zeros(2, dtype=RANK), np.array([2, 1], dtype=np.int32)
    model.exec_s(requests, queue, model.coefficients, plan)
    expected = [model.request_s(*args, model.coefficients) for args in ((1, 900, True), (40, 700, False))]
    assert plan["exec_s"] == pytest.approx(expected, rel=1e-12)


scale = st.floats(0, 1e-2)
requests = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 20000)), max_size=4)
cached = st.lists(st.integers(0, 20000), max_size=6)


@st.composite
def models(draw):
    form = draw(st.sampled_from(sorted(VALUES.keys() - {"steps"})))  # whose tables fall where what was measured does
    if form in ("roofline", "table", "table-shares"):
        return LatencyModel.from_values(form, VALUES[form])
    if not form.startswith("piecewise"):
        return LatencyModel.from_values(form, {name: draw(scale) for name in VALUES[form]})
    values = {name: draw(scale) for name in VALUES[form] if name not in ("knots_tokens", "base_s")}
    knots = sorted(draw(st.sets(st.integers(1, 20000), min_size=2, max_size=8)))
    steps = draw(st.lists(scale, min_size=len(knots), max_size=len(knots)))
    return LatencyModel.from_values(form, values | {"knots_tokens": knots, "base_s": np.cumsum(steps).tolist()})


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
@settings(deadline=None, max_examples=30)
@given(data=st.data(), by=st.sampled_from([0.5, 3.0, 1e-30, 1e30]))
def test_times_are_proportional_to_the_coefficients_that_are_scaled(name, data, by):
    model = data.draw(any_models(name))
    assert model.scaled.dtype == np.bool_ and model.scaled.shape == model.coefficients.shape
    assert model.scaled[model.definition.constant_index]
    times = LatencyModel(name, np.where(model.scaled, by * model.coefficients, model.coefficients))
    batch = batch_of(data.draw(requests), data.draw(cached))
    assert times.evaluate(batch) == pytest.approx(by * model.evaluate(batch), rel=1e-9)
    if name in estimator_forms():
        for alone in ((300, 7, False), (1, 900, True)):
            expected = by * model.request_s(*alone, model.coefficients)
            # A difference of times is exact up to their size: of 300 tokens that each take a coefficient.
            largest = 300 * by * model.coefficients[model.scaled].max()
            assert times.request_s(*alone, times.coefficients) == pytest.approx(expected, rel=1e-9, abs=1e-9 * largest)


@pytest.mark.parametrize("name", list(forms()))
def test_what_is_not_scaled_is_neither_a_time_nor_work(name):
    """Knots, rates and lengths of vectors: by their units."""
    form, values = get_form(name), VALUES[name]
    fixed = [c.name for c in form.coefficients if c.name not in form.scaled]
    assert {c.unit for c in form.coefficients if c.name in fixed} <= {"tokens", "requests", "FLOP/s", "bytes/s", "1"}
    expected = []
    for c in form.coefficients:
        numbers = np.atleast_1d(values[c.name]).tolist()
        expected += [False] * c.vector + [c.name not in fixed] * len(numbers)
    assert form.scaled_places(form.pack(values)).tolist() == expected


def test_a_form_that_scales_what_it_does_not_have_is_refused():
    form = get_form("table")
    with pytest.raises(ProfileError, match=r"form 'table': scaled is t_c, rows; it has no rows"):
        dataclasses.replace(form, scaled=("t_c", "rows"))
    with pytest.raises(ProfileError, match=r"scaled is table_s; its constant t_c is not among them"):
        dataclasses.replace(form, scaled=("table_s",))


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
        assert form.cannot
        assert all(coefficient.unit and coefficient.meaning for coefficient in form.coefficients)


def test_knots_of_the_fit_increase():
    assert list(FIT_KNOTS) == sorted(set(FIT_KNOTS))


def test_plus_constant_makes_every_batch_longer():
    for name, values in VALUES.items():
        model = LatencyModel.from_values(name, values)
        batch = batch_of([(149, 300)], [500, 200])
        longer = model.plus_constant(0.002)
        assert longer.evaluate(batch)[0] - model.evaluate(batch)[0] == pytest.approx(0.002, rel=1e-9)


def test_times_makes_every_batch_as_many_times_as_long():
    for name, values in VALUES.items():
        model = LatencyModel.from_values(name, values)
        batch = batch_of([(149, 300)], [500, 200])
        assert model.times(1.25).evaluate(batch)[0] == pytest.approx(1.25 * model.evaluate(batch)[0], rel=1e-12)


def test_as_estimator_is_what_the_loop_takes():
    model = LatencyModel.from_values("linear", LINEAR)
    estimator = model.as_estimator()
    assert isinstance(estimator, Estimator)
    assert estimator.batch_s is model.batch_s.value
    assert estimator.exec_s is model.exec_s.value


def test_a_form_without_a_time_of_a_request_is_no_estimator():
    can = ", ".join(estimator_forms())
    with pytest.raises(ProfileError, match=f"'piecewise' has no time of a request alone.*these can: {can}$"):
        LatencyModel.from_values("piecewise", PIECEWISE).as_estimator()


@pytest.mark.parametrize(("name", "change", "message"), [
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
    ("table", {"tokens": [1.0]}, r"1 tokens, 2 cached_tokens and 6 table_s; there must be 2 or more"),
    ("table", {"table_s": [0.1] * 5}, r"3 tokens, 2 cached_tokens and 5 table_s"),
    ("table", {"tokens": [1.0, 9.0, 9.0]}, r"tokens\[2\] is 9.0 after 9.0; they must increase"),
    ("table", {"cached_tokens": [9.0, 1.0]}, r"cached_tokens\[1\] is 1.0 after 9.0; they must increase"),
    ("table", {"table_s": [0.3, 0.3, 0.2, 0.3, 0.4, 0.5]}, r"table_s falls along tokens or cached_tokens"),
    ("table", {"table_s": [0.3, 0.2, 0.4, 0.4, 0.5, 0.5]}, r"table_s falls along tokens or cached_tokens"),
    ("table-shares", {"prefill_s": [0.1] * 5}, r"3 tokens, 2 cached_tokens and 5 prefill_s"),
    ("table-shares", {"prefill_s": [0.3, 0.2, 0.4, 0.4, 0.5, 0.5]}, r"prefill_s falls along tokens or cached_tok"),
    ("slowest", {"gamma_2": -0.1}, r"gamma_2 is -0.1"),
    ("polynomial", {"c_2": -1e-9}, r"c_2 is -1e-09"),
    ("roofline", {"memory_efficiency": 1.2}, r"memory_efficiency is 1.2; it must be 1 or less"),
    ("roofline", {"prefix_efficiency": 0.0}, r"prefix_efficiency is 0.0; it must be above 0"),
    ("roofline", {"link_bytes_per_s": 0.0}, r"link_bytes_per_s is 0.0; it must be above 0"),
])  # fmt: skip
def test_coefficients_out_of_range(name, change, message):
    with pytest.raises(ProfileError, match=message):
        LatencyModel.from_values(name, VALUES[name] | change)


def test_a_missing_coefficient_and_an_unknown_form():
    with pytest.raises(ProfileError, match=r"here: coefficient missing t_c"):
        LatencyModel.from_values("linear", {k: v for k, v in LINEAR.items() if k != "t_c"}, "here")
    with pytest.raises(ProfileError, match=f"unknown latency form 'cubic'; there are: {', '.join(forms())}$"):
        get_form("cubic")


@pytest.mark.parametrize(("name", "packed"), [
    ("linear", [0.0] * 5),
    ("linear", [0.0] * 7),
    ("piecewise", [0.0] * 6 + [2, 1, 2, 2, 0.1]),
    ("piecewise", [0.0] * 6),
    ("piecewise", [0.0] * 6 + [float("nan"), 1, 2, 2, 0.1, 0.2]),
])  # fmt: skip
def test_packed_coefficients_of_another_length(name, packed):
    with pytest.raises(ProfileError, match=f"form '{name}': {len(packed)} packed numbers do not hold"):
        LatencyModel(name, np.array(packed))


def test_decodes_cost_more_beside_prefills_by_hand():
    alone = {"prefills": [(50, 10)], "decodes": []}
    assert seconds("piecewise-mixed", **alone) == seconds("piecewise", **alone)
    alone = {"prefills": [], "decodes": [100, 300]}
    assert seconds("piecewise-mixed", **alone) == seconds("piecewise", **alone)
    both = {"prefills": [(50, 10)], "decodes": [100, 300]}
    more = seconds("piecewise-mixed", **both) - seconds("piecewise", **both)
    assert more == pytest.approx(5e-8 * 400 + 2 * 1e-5)


def test_cpu_time_of_each_request_by_hand():
    both = {"prefills": [(50, 10)], "decodes": [100, 300]}
    assert seconds("piecewise-requests", **both) - seconds("piecewise-mixed", **both) == pytest.approx(3 * 3e-5)
    for name in ("piecewise", "piecewise-mixed", "piecewise-requests"):
        model = LatencyModel.from_values(name, VALUES[name])
        longer = model.plus_per_request(1e-4)
        for batch, requests in ((batch_of(**both), 3), (batch_of(decodes=[5] * 7), 7)):
            assert longer.evaluate(batch) - model.evaluate(batch) == pytest.approx(requests * 1e-4)
    with pytest.raises(ProfileError, match="form 'table' has no time a request"):
        LatencyModel.from_values("table", TABLE).plus_per_request(1e-4)
