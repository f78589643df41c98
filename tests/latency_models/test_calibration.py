"""Profiles from measured batches: what comes back, and every table that cannot be one."""

import json

import numpy as np
import pandas as pd
import pytest

from servegym.errors import ProfileError
from servegym.latency_models.calibration import calibrate
from servegym.latency_models.calibration_plot import plot_calibration
from servegym.latency_models.fitting import measure, split
from servegym.latency_models.measured_batches import read_batches
from servegym.latency_models.model import BATCH_COLUMNS, LatencyModel, as_batches
from servegym.latency_models.profile import load_profile, parse_profile
from servegym.latency_models.sampling import random_batches

LINEAR = {"a_p": 2e-9, "b_p": 3e-9, "c_p": 5e-5, "a_d": 8e-8, "b_d": 4e-5, "t_c": 0.01}
SIMPLE = (
    "prefill_tokens", "prefill_requests", "prefill_cached_tokens", "decode_requests", "decode_cached_tokens",
)  # fmt: skip


@pytest.fixture(scope="module")
def table():
    """300 batches that take exactly what LINEAR says."""
    batches = random_batches(300, seed=4)
    columns = {name: batches[name] for name in BATCH_COLUMNS}
    return pd.DataFrame(columns | {"duration_s": LatencyModel.from_values("linear", LINEAR).evaluate(batches)})


@pytest.fixture(scope="module")
def like():
    return load_profile("a100-llama3-8b")


def written(table, path):
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_all_columns_come_back_as_they_were(table, tmp_path, suffix):
    back = read_batches(written(table.assign(remark="x"), tmp_path / f"batches{suffix}"))
    assert list(back) == [*BATCH_COLUMNS, "duration_s"]
    assert back.to_numpy() == pytest.approx(table.to_numpy(), rel=1e-12)


def test_simple_columns_are_completed_by_equal_requests(tmp_path):
    simple = pd.DataFrame(
        {
            "prefill_tokens": [300, 0], "prefill_requests": [3, 0], "prefill_cached_tokens": [60, 0],
            "decode_requests": [0, 4], "decode_cached_tokens": [0, 1000], "duration_s": [0.02, 0.01],
        }
    )  # fmt: skip
    batches = as_batches(read_batches(written(simple, tmp_path / "simple.csv")))
    prefill, decode = batches
    assert prefill["prefill_tokens_squared"] == 3 * 100**2
    assert prefill["prefill_tokens_cached"] == 3 * 100 * 20
    assert prefill["longest_prefill_tokens"] == 100
    assert (decode["decode_requests"], decode["longest_decode_cached"]) == (4, 250)


def test_the_fewest_columns(tmp_path):
    prefills = read_batches(written(pd.DataFrame({"prefill_tokens": [7], "duration_s": [1.0]}), tmp_path / "p.csv"))
    assert prefills.loc[0, ["prefill_requests", "prefill_tokens_squared", "decode_requests"]].tolist() == [1, 49, 0]
    columns = {"decode_requests": [2], "decode_cached_tokens": [6], "duration_s": [1.0]}
    decodes = read_batches(written(pd.DataFrame(columns), tmp_path / "d.csv"))
    assert decodes.loc[0, ["prefill_requests", "longest_decode_cached"]].tolist() == [0, 3]


def test_a_profile_with_the_known_coefficients(table, like):
    result = calibrate(table, "linear", "mine", like, seed=1, held_out_share=0.2, source="batches.csv")
    profile = parse_profile(json.loads(json.dumps(result.document)), "mine")
    assert profile.device.coefficients_by_name == pytest.approx(LINEAR, rel=1e-6)
    assert profile.estimator.coefficients_by_name == pytest.approx(LINEAR, rel=1e-6)
    assert profile.basis == "measured batches"
    assert profile.cpu_overhead_s == 0.0
    assert profile.kv == like.kv
    assert profile.valid["sequences"][1] == (table["prefill_requests"] + table["decode_requests"]).max()
    assert result.predicted_s == pytest.approx(result.measured_s, rel=1e-6)
    assert (result.device.train_batches, result.device.held_out_batches) == (240, 60)
    assert len(result.regimes) == 60


@pytest.mark.parametrize("form", ["piecewise", "slowest", "table", "table-shares"])
def test_errors_are_those_of_the_held_out_batches(table, like, form):
    result = calibrate(table, form, "mine", like, seed=2, held_out_share=0.3)
    _, held_out = split(300, 2, 0.3)
    rows = table.iloc[held_out]
    again = measure(result.device.model, rows, rows["duration_s"].to_numpy())
    assert result.document["error"]["device_vs_measured"]["mape_percent"] == pytest.approx(again.mape_percent, abs=1e-3)
    assert result.document["error"]["estimator_vs_device"]["max_percent"] >= 0


def test_table_comes_close_to_a_function_of_its_own_kind(table, like):
    tokens = table["prefill_tokens"] + table["decode_requests"]
    cached = table["prefill_cached_tokens"] + table["decode_cached_tokens"]
    duration_s = 0.01 + 5e-5 * np.maximum(tokens - 128, 0) + 8e-8 * cached
    result = calibrate(table.assign(duration_s=duration_s), "table", "mine", like, seed=0, held_out_share=0.3)
    assert result.device.error.mape_percent < 0.5


def test_polynomial_and_slowest_recover_their_coefficients(table, like):
    cubic = {"c_3": 1e-13, "c_2": 2e-9, "c_1": 5e-5, "t_c": 0.02}
    slowest = {"alpha_1": 1e-9, "alpha_2": 1e-4, "gamma_1": 1e-6, "gamma_2": 0.012, "t_c": 0.0}
    for form, values, rows in (
        ("polynomial", cubic, table[table["decode_requests"] == 0].reset_index(drop=True)),
        ("slowest", slowest, table),
    ):
        duration_s = LatencyModel.from_values(form, values).evaluate(rows)
        result = calibrate(rows.assign(duration_s=duration_s), form, "mine", like, seed=0, held_out_share=0.3)
        assert result.device.model.coefficients_by_name == pytest.approx(values, rel=1e-5)


def test_kv_blocks_of_ones_own(table, like):
    result = calibrate(table, "linear", "mine", like, seed=0, held_out_share=0.3, total_blocks=1000)
    assert parse_profile(result.document, "mine").kv.total_blocks == 1000
    assert result.document["kv"]["usable_bytes"] == 1000 * 16 * like.kv.bytes_per_token


def test_the_same_seed_gives_the_same_profile(table, like):
    one, same, other = (
        calibrate(table, "piecewise", "mine", like, seed=seed, held_out_share=0.3).document for seed in (3, 3, 4)
    )
    assert one == same
    assert one["device"] != other["device"]


@pytest.mark.slow
def test_the_picture_is_a_png(table, like, tmp_path):
    decodes = table[table["prefill_requests"] == 0].reset_index(drop=True)
    for name, rows in (("all", table), ("decodes", decodes)):
        result = calibrate(rows, "piecewise", name, like, seed=0, held_out_share=0.3)
        assert plot_calibration(result, tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("change", "message"), [
    (lambda t: t.drop(columns="duration_s"), r"column 'duration_s' is missing; it has prefill_tokens, "),
    (lambda t: t[["prefill_requests", "duration_s"]], r"neither column 'prefill_tokens' nor 'decode_requests'"),
    (lambda t: t.drop(columns="decode_cached_tokens"), r"column 'decode_cached_tokens' is missing; the time"),
    (lambda t: t.head(0), r"bad\.csv has no rows"),
    (lambda t: t.assign(duration_s=[np.nan] + [1.0] * 299), r"bad\.csv: duration_s is nan in row 1"),
    (lambda t: t.assign(prefill_tokens="many"), r"prefill_tokens is 'many' in row 1; it must be a number"),
    (lambda t: t.assign(duration_s=[1.0, "soon"] + [1.0] * 298), r"duration_s is 'soon' in row 2; it must be a number"),
    (lambda t: t.assign(decode_requests=-1.0), r"decode_requests is -1\.0 in row 1; it must be finite, 0 or above"),
    (lambda t: t.assign(prefill_tokens=0, decode_requests=0), r"row 1 is an empty batch"),
    (lambda t: t.assign(prefill_requests=2e6), r"row \d+ has fewer prefill_tokens than prefill_requests"),
    (lambda t: t.assign(prefill_requests=0), r"row \d+ has prefill tokens but no prefill_requests"),
    (lambda t: t.assign(decode_requests=0), r"row \d+ (is an empty batch|has decode_cached_tokens but no)"),
])  # fmt: skip
def test_tables_of_the_wrong_shape(table, tmp_path, change, message):
    path = written(change(table[[*SIMPLE, "duration_s"]]), tmp_path / "bad.csv")
    with pytest.raises(ProfileError, match=message) as caught:
        read_batches(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_tables(tmp_path):
    with pytest.raises(ProfileError, match=r"batches\.xlsx: batches are read from \.csv and \.parquet files"):
        read_batches(tmp_path / "batches.xlsx")
    with pytest.raises(ProfileError, match=r"absent\.csv cannot be read: No such file"):
        read_batches(tmp_path / "absent.csv")
    for name in ("empty.csv", "text.parquet"):
        (tmp_path / name).write_text("" if name == "empty.csv" else "no parquet")
        with pytest.raises(ProfileError, match=rf"{name} is not a (csv|parquet) table: ") as caught:
            read_batches(tmp_path / name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("form", "rows", "name", "message"), [
    ("roofline", slice(None), "mine", r"form 'roofline' is made from specifications, not fitted to batches"),
    ("cubic", slice(None), "mine", r"unknown latency form 'cubic'; there are: linear, "),
    ("polynomial", slice(None), "mine", r"form 'polynomial' has no time of a decode, and \d+ of the 210 batches"),
    ("slowest", slice(1, None, 3), "mine", r"form 'slowest' is fitted .* and 0 of the 70 .* are of decodes only"),
    ("linear", slice(3), "mine", r"3 rows leave 2 to train on and 1 held out"),
    ("linear", slice(None), "My GPU", r"profile 'My GPU': name: 'My GPU' does not match"),
])  # fmt: skip
def test_what_cannot_be_calibrated(table, like, form, rows, name, message):
    with pytest.raises(ProfileError, match=message) as caught:
        calibrate(table.iloc[rows].reset_index(drop=True), form, name, like, seed=0, held_out_share=0.3)
    assert "\n" not in str(caught.value)


def test_late_batches_count_in_the_total_time_only(table, like):
    late = table.assign(duration_s=table["duration_s"] * np.where(np.arange(len(table)) % 10, 1.0, 3.0))
    train, _ = split(len(late), 1, 0.2)
    batches = as_batches(late)[train]
    least, same = (
        calibrate(late, "linear", "mine", like, seed=1, held_out_share=0.2, same_total=same) for same in (False, True)
    )
    factor = late["duration_s"].to_numpy()[train].sum() / table["duration_s"].to_numpy()[train].sum()
    expected = {name: factor * value for name, value in LINEAR.items()}
    assert same.device.model.coefficients_by_name == pytest.approx(expected, rel=1e-6)
    total_s = late["duration_s"].to_numpy()[train].sum()
    assert least.device.model.evaluate(batches).sum() < 0.95 * total_s
    assert same.document["provenance"]["command"].endswith(" --same-total")
