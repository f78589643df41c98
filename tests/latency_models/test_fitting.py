"""Fitting: known coefficients come back, errors are those of batches not trained on, bad tables are named."""

import numpy as np
import pandas as pd
import pytest

from experiments.profiles.ascend_points import prefills
from servegym.errors import ProfileError
from servegym.latency_models.fitting import fit, measure, regime, split
from servegym.latency_models.forms.piecewise import knots_reached
from servegym.latency_models.model import BATCH_COLUMNS, LatencyModel, as_batches
from servegym.latency_models.profile import load_profile
from servegym.latency_models.sampling import BatchRange, random_batches

FORMS = ("table", "table-shares")
LINEAR = {"a_p": 2e-9, "b_p": 3e-9, "c_p": 5e-5, "a_d": 8e-8, "b_d": 4e-5, "t_c": 0.01}


@pytest.fixture(scope="module")
def batches():
    return random_batches(600, seed=3)


def table_of(batches, duration_s):
    return pd.DataFrame({name: batches[name] for name in BATCH_COLUMNS} | {"duration_s": duration_s})


def test_linear_recovers_known_coefficients(batches):
    truth = LatencyModel.from_values("linear", LINEAR)
    result = fit("linear", table_of(batches, truth.evaluate(batches)), seed=1)
    assert result.model.coefficients_by_name == pytest.approx(LINEAR, rel=1e-6)
    assert result.error.max_percent < 1e-6
    assert (result.train_batches, result.held_out_batches) == (420, 180)


def test_linear_recovers_coefficients_through_noise(batches):
    truth = LatencyModel.from_values("linear", LINEAR).evaluate(batches)
    noise = np.random.default_rng(0).normal(1.0, 0.02, len(truth))
    result = fit("linear", table_of(batches, truth * noise), seed=1)
    assert result.model.coefficients_by_name == pytest.approx(LINEAR, rel=0.05)
    assert result.error.mape_percent == pytest.approx(2 * np.sqrt(2 / np.pi), rel=0.15)


def test_piecewise_recovers_a_function_with_its_knots(batches):
    tokens = batches["prefill_tokens"] + batches["decode_requests"]
    duration_s = 0.01 + 5e-5 * np.maximum(tokens - 128, 0) + 8e-8 * batches["decode_cached_tokens"]
    result = fit("piecewise", table_of(batches, duration_s), seed=1)
    assert result.error.max_percent < 1e-3


@pytest.mark.parametrize(
    ("most_tokens", "last_knot"),
    [(16384, 16384.0), (2048, 2048.0), (2200, 2048.0), (2600, 3072.0), (520, 512.0), (70, 64.0), (1, 8.0)],
)
def test_piecewise_has_no_knot_past_its_batches_nor_a_step_at_the_end(most_tokens, last_knot):
    """Past the last knot the last slope goes on: a knot beyond all batches would make it 0, and tokens free."""
    knots = knots_reached(np.arange(1.0, most_tokens + 1))
    assert knots[-1] == last_knot
    assert len(knots) >= 2


def test_piecewise_fitted_to_short_batches_goes_on_as_it_rose():
    batches = random_batches(900, 0, BatchRange(1024, 4, 64, 1024, 20_000))
    truth = LatencyModel.from_values("linear", LINEAR)
    fitted = fit("piecewise", table_of(batches, truth.evaluate(batches)), seed=1).model
    longer = prefills(1, 8192.0)
    assert fitted.evaluate(longer)[0] == pytest.approx(truth.evaluate(longer)[0], rel=0.3)


@pytest.mark.parametrize("form", FORMS)
def test_tables_fitted_to_short_batches_go_on_as_they_rose(form):
    batches = random_batches(900, 0, BatchRange(1024, 4, 64, 1024, 20_000))
    truth = LatencyModel.from_values("linear", LINEAR)
    fitted = fit(form, table_of(batches, truth.evaluate(batches)), seed=1).model
    longer = prefills(1, 8192.0)
    assert fitted.evaluate(longer)[0] == pytest.approx(truth.evaluate(longer)[0], rel=0.3)


def test_table_shares_tells_prefilled_tokens_from_decodes_and_their_kv_apart(batches):
    """Of each kind of batch the mean error is close to 0; of `table`, which cannot, it is not."""
    table = table_of(batches, load_profile("h200-llama3-8b").device.evaluate(batches))
    error = {form: fit(form, table, seed=1).model.evaluate(batches) / table["duration_s"] - 1 for form in FORMS}
    kinds = regime(batches)
    assert max(abs(error["table-shares"][kinds == kind].mean()) for kind in range(3)) < 0.003
    assert max(abs(error["table"][kinds == kind].mean()) for kind in range(3)) > 0.01


def test_piecewise_of_noise_stays_monotone_and_non_negative(batches):
    noise = np.random.default_rng(0).uniform(0.01, 0.02, len(batches))
    values = fit("piecewise", table_of(batches, noise), seed=1).model.coefficients_by_name
    assert (np.diff(values["base_s"]) >= 0).all()
    assert min(np.min(value) for value in values.values()) >= 0


def test_a_coefficient_that_would_be_negative_is_zero(batches):
    duration_s = 0.05 - 2e-7 * np.minimum(batches["prefill_tokens"], 1e5)
    assert fit("linear", table_of(batches, duration_s)).model.coefficients_by_name["c_p"] == 0.0


def test_held_out_rows_have_no_part_in_the_fit(batches):
    truth = LatencyModel.from_values("linear", LINEAR)
    duration_s = truth.evaluate(batches)
    _, held_out = split(len(batches), seed=1)
    duration_s[held_out] *= 2
    result = fit("linear", table_of(batches, duration_s), seed=1)
    assert result.model.coefficients_by_name == pytest.approx(LINEAR, rel=1e-6)
    assert result.error.mape_percent == pytest.approx(50.0)


def test_split_is_disjoint_complete_and_set_by_its_seed():
    train, held_out = split(100, seed=5)
    assert sorted([*train, *held_out]) == list(range(100))
    assert len(held_out) == 30
    assert (split(100, seed=5)[1] == held_out).all()
    assert not np.array_equal(split(100, seed=6)[1], held_out)


def test_errors_by_regime(batches):
    truth = LatencyModel.from_values("linear", LINEAR)
    off = np.array([1.25, 2.0, 0.8])[regime(batches)]  # model / truth - 1: -20 %, -50 %, +25 %
    error = measure(truth, batches, truth.evaluate(batches) * off)
    by_regime = (error.decode_mape_percent, error.prefill_mape_percent, error.mixed_mape_percent)
    assert by_regime == pytest.approx((20.0, 50.0, 25.0))
    assert error.mape_percent == pytest.approx(95 / 3)
    assert error.max_percent == pytest.approx(50.0)


def test_a_regime_without_batches_has_no_error(batches):
    decodes = batches[regime(batches) == 0]
    truth = LatencyModel.from_values("linear", LINEAR)
    error = measure(truth, decodes, truth.evaluate(decodes))
    assert np.isnan(error.prefill_mape_percent)
    assert error.decode_mape_percent == 0.0


def test_random_batches_keep_to_their_range_and_their_seed():
    limits = BatchRange(1000, 4, 64, 2000, 20000)
    batches = random_batches(300, 7, limits)
    assert (batches == random_batches(300, 7, limits)).all()
    assert not (batches == random_batches(300, 8, limits)).all()
    assert (np.bincount(regime(batches)) == 100).all()
    assert (batches["prefill_tokens"] <= 1000).all()
    assert (batches["decode_requests"] <= 64).all()
    assert (batches["longest_decode_cached"] <= 2000).all()
    assert (batches["decode_cached_tokens"] <= 20000 + 64).all()
    assert (batches["prefill_tokens"] >= batches["prefill_requests"]).all()


def test_evaluate_takes_a_frame_or_an_array(batches):
    model = LatencyModel.from_values("linear", LINEAR)
    frame = table_of(batches, 1.0)
    assert (model.evaluate(frame) == model.evaluate(batches)).all()
    assert (as_batches(frame) == batches).all()


@pytest.mark.parametrize(("spoil", "message"), [
    (lambda t: t.drop(columns="prefill_tokens"), "column 'prefill_tokens' is missing"),
    (lambda t: t.drop(columns="duration_s"), "column 'duration_s' is missing"),
    (lambda t: t.assign(duration_s=0.0), "duration_s is 0.0 in row 0; it must be finite and above 0"),
    (lambda t: t.assign(duration_s=np.nan), "duration_s is nan in row 0"),
    (lambda t: t.assign(decode_requests=-1.0), "decode_requests is -1.0 in row 0; it must be finite"),
    (lambda t: t.assign(prefill_tokens=np.inf), "prefill_tokens is inf in row 0"),
    (lambda t: t.head(3), "3 rows leave 2 to train on and 1 held out; each needs 2 or more"),
])  # fmt: skip
def test_bad_tables(batches, spoil, message):
    with pytest.raises(ProfileError, match=message):
        fit("linear", spoil(table_of(batches, 0.01)))


def test_fitting_an_unknown_form(batches):
    with pytest.raises(ProfileError, match="unknown latency form 'cubic'"):
        fit("cubic", table_of(batches, 0.01))
