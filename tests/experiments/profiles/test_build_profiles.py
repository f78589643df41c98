"""Composition, and the shipped profiles against what the operator tables give."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.pages.profile_table import page
from experiments.profiles import ascend_points, ascend_recipes, build_profiles, composed_recipes
from experiments.profiles.ascend_points import decodes, prefills
from experiments.profiles.build_profiles import RECIPES, build_profile, main
from experiments.profiles.device_specs import device
from experiments.profiles.llmservingsim_a6000 import A6000_ATTENTION, a6000
from experiments.profiles.published_recipes import published
from experiments.profiles.shapes import (
    LLAMA_3_8B,
    LLAMA_3_70B,
    QWEN2_7B,
    QWEN3_8B,
    QWEN3_30B_A3B,
    QWEN3_32B,
    QWEN15_4B,
    QWEN15_7B,
    QWEN25_14B,
    token_flop,
)
from servegym.errors import ProfileError
from servegym.latency_models.building.document import BATCHES, SEED
from servegym.latency_models.building.tables import Curve, Surface, read_table
from servegym.latency_models.documents import to_text
from servegym.latency_models.fitting import measure, split
from servegym.latency_models.profile import FOLDER, load_profile, parse_profile, profile_names
from servegym.latency_models.sampling import random_batches

needs_data = pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no operator tables")
each_composed = pytest.mark.parametrize("recipe", composed_recipes.RECIPES, ids=lambda recipe: recipe.name)
each_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)


@pytest.mark.parametrize(
    ("shape", "parameters", "kv_bytes_per_token"),
    [
        (LLAMA_3_8B, 8_030_261_248, 131_072), (LLAMA_3_70B, 70_553_706_496, 327_680),
        (QWEN15_4B, 3_950_369_280, 409_600), (QWEN15_7B, 7_721_324_544, 524_288), (QWEN2_7B, 7_615_616_512, 57_344),
        (QWEN3_8B, 8_190_735_360, 147_456), (QWEN3_32B, 32_762_123_264, 262_144),
        (QWEN25_14B, 14_770_033_664, 196_608), (QWEN3_30B_A3B, 30_532_122_624, 98_304),
    ],
    ids=["Llama-3-8B", "Llama-3-70B", "Qwen1.5-4B", "Qwen1.5-7B", "Qwen2-7B", "Qwen3-8B", "Qwen3-32B",
        "Qwen2.5-14B", "Qwen3-30B-A3B"],
)  # fmt: skip
def test_weights_and_cache_of_a_token(shape, parameters, kv_bytes_per_token):
    """Against the published numbers of parameters, which hold biases and inner norms."""
    assert shape.weight_bytes == pytest.approx(2 * parameters, rel=1e-4)
    assert shape.kv_bytes_per_token == kv_bytes_per_token


def test_a_token_goes_to_some_of_the_experts_only():
    """Of the 30.5e9 weights the published 3.3e9 are activated; a batch of one reads those, less the input embedding."""
    active = QWEN3_30B_A3B.read_bytes / 2 + QWEN3_30B_A3B.vocabulary * QWEN3_30B_A3B.hidden
    assert active == pytest.approx(3.35e9, rel=0.01)
    assert QWEN3_30B_A3B.weight_bytes / 2 - active == 48 * 120 * 3 * 2048 * 768


def test_curve_between_before_and_past_its_points():
    curve = Curve.of(pd.Series([5.0, 1.0, 3.0, 3.0], index=[4, 1, 2, 2]))
    assert curve.at(np.array([0.0, 1.0, 1.5, 2.0, 3.0, 6.0])) == pytest.approx([1.0, 1.0, 2.0, 3.0, 4.0, 7.0])


def test_surface_between_and_past_its_curves():
    flat = {value: Curve(np.array([0.0, 10.0]), np.array([value, value + 10.0])) for value in (4.0, 1.0, 2.0)}
    surface = Surface.of(flat)
    at = np.array([1.0, 1.5, 2.0, 3.0, 6.0, 0.5])
    assert surface.at(at, np.full(6, 5.0)) == pytest.approx([6.0, 6.5, 7.0, 8.0, 11.0, 6.0])


def test_absent_data(monkeypatch, tmp_path):
    monkeypatch.delenv("SERVEGYM_DATA", raising=False)
    with pytest.raises(ProfileError, match="SERVEGYM_DATA is not set"):
        read_table("anything")
    monkeypatch.setenv("SERVEGYM_DATA", str(tmp_path))
    with pytest.raises(ProfileError, match=r"anything\.parquet does not exist"):
        read_table("anything")


def composed_s(recipe, batches):
    compose = recipe.make.args[0]  # make is partial(composed, compose)
    return compose().duration_s(batches)


@needs_data
@each_composed
def test_composed_times_are_of_the_right_size(recipe):
    """Reading the weights bounds a decode of one; 2 FLOP a weight and token bound a long prefill."""
    chip, devices = device(recipe.specification), recipe.tensor_parallel
    batches = np.concatenate([decodes(1, 100), prefills(1, 2048)])
    decode_s, prefill_s = composed_s(recipe, batches)
    assert 1.0 < decode_s / (recipe.shape.read_bytes / devices / chip.memory_bytes_per_s) < 2.4
    assert 1.0 < prefill_s / (token_flop(recipe.shape) * 2048 / devices / chip.peak_flop_per_s) < 2.5


@needs_data
def test_all_reduces_are_between_the_devices_of_a_layer():
    """Tokens of 8 KiB: vLLM's own all-reduce to 1023 tokens, NCCL's from 8 MiB at 1024; two a layer.

    Own, measured: 8 KiB 5.3 us (4096 numbers), 4 MiB 25.2 us (2,097,152 numbers); on with that slope to 8 MiB.
    """
    (one,) = (recipe for recipe in composed_recipes.RECIPES if recipe.name == "a100-llama3-8b-tp2")
    linear = read_table("vidur_a100_llama3_8b_linear_ops")
    linear = linear[linear["num_tensor_parallel_workers"] == 2].set_index("num_tokens")
    operators = [name for name in linear if name.endswith(".median") and ".emb." not in name]
    for tokens, low_ms, high_ms in (
        (1, 0.0052, 0.0053), (512, 0.0251, 0.0253), (1016, 0.043, 0.047), (1024, 0.08, 0.1), (2048, 0.10, 0.15),
    ):  # fmt: skip
        without_ms = linear.loc[[tokens], operators].sum(axis=1).mean()
        with_ms = one.make.args[0]().linear_s(np.array([float(tokens)]))[0] * 1e3
        assert low_ms < (with_ms - without_ms) / 2 < high_ms


@needs_data
def test_a6000_attention_follows_its_table():
    """Its keys are counted over the batch: 2 requests of 512 tokens take what is listed under 1024."""
    table = read_table(A6000_ATTENTION)
    table = table[~table["is_prefill"] & (table["kv_cache_size"] >= table["batch_size"])]
    model = a6000()
    requests = table["batch_size"].to_numpy(dtype=float)
    seconds = model.decode_attention_s(requests, table["kv_cache_size"].to_numpy() / requests)
    percent = 100 * np.abs(seconds / (table["time_stats.attn_decode.median"].to_numpy() * 1e-3) - 1)
    assert percent.mean() < 11
    assert percent.max() < 45
    one, two = model.decode_attention_s(np.array([1.0, 2.0]), np.array([512.0, 512.0]))
    assert one == pytest.approx(27.1e-6, rel=0.05)
    assert two == pytest.approx(27.5e-6, rel=0.05)


@needs_data
def test_published_coefficients_are_those_of_the_paper():
    """The figures of the paper's Table, with alpha_1 of the 4B model as its code has it."""
    expected = {
        "a100-qwen1.5-4b": (1.466e-9, 1.052e-4, 5.913e-9, 1.196e-2),
        "a100-qwen1.5-7b": (5.135e-7, 1.481e-4, 1.349e-8, 1.330e-2),
        "a5000-qwen1.5-7b": (1.859e-9, 2.175e-4, 2.117e-6, 2.727e-2),
    }
    for name, values in expected.items():
        printed = load_profile(name).device.coefficients_by_name
        assert tuple(printed.values())[:4] == pytest.approx(values, rel=1e-3)
        assert printed["t_c"] == 0.0


@needs_data
def test_eager_points_by_hand():
    """A run of 500 prompts of 2000 tokens and outputs of 100, in 109.3 s, 140.39 ms a token, 63.53 ms a step."""
    steps, prompts = ascend_points.eager_points()
    step, prompt = steps[-1], prompts[-1]
    requests = 49_500 * 0.14039 / 109.3
    assert step.batches["decode_requests"][0] == pytest.approx(requests)
    assert step.batches["decode_cached_tokens"][0] == pytest.approx(requests * (998057 / 500 + 50))
    assert step.duration_s == pytest.approx(0.06353)
    assert prompt.duration_s == pytest.approx((1 - 63.53 / 140.39) * 109.3 / 500)
    assert prompt.sums("prefill_tokens", "prefill_tokens_squared") == [2000, 2000**2]  # a quarter of a batch of four
    assert prompt.counts.sum() == 0.25
    whole = prompts[0]  # 32,000 tokens in three batches of 8192 and one of 7424
    assert whole.sums("prefill_tokens", "prefill_tokens_cached") == [32000, 8192 * 8192 * 3 + 7424 * 24576]
    assert whole.counts.sum() == 4


@needs_data
def test_roofline_of_one_graph_mode_step_is_that_step():
    model = ascend_recipes.roofline_model(QWEN3_8B, 1, 0.0009).plus_constant(0.0009)
    step, wave = ascend_points.graph_points()
    assert step.predicted_s(model) == pytest.approx(0.02574, rel=1e-9)
    assert wave.duration_s == pytest.approx(4000 / 1514)
    shares = model.coefficients_by_name
    assert shares["memory_efficiency"] == pytest.approx(0.35, abs=0.01)
    assert shares["compute_efficiency"] == pytest.approx(0.77, abs=0.01)


def test_claimed_serving_errors_are_those_of_the_points_not_fitted_to():
    for name in profile_names():
        error = load_profile(name).error.get("device_vs_serving")
        if error is None:
            continue
        points = [point for point in error["points"] if not point["fitted"]] or error["points"]
        percent = [100 * abs(point["predicted_ms"] / point["measured_ms"] - 1) for point in points]
        assert error["mape_percent"] == pytest.approx(np.mean(percent), abs=0.01)
        assert error["max_percent"] == pytest.approx(max(percent), abs=0.01)


@needs_data
def test_an_unknown_chip_and_coefficients_that_are_not_published():
    with pytest.raises(ProfileError, match=r"has no device 'TPU'; it has A100-SXM4-80GB, "):
        device("TPU")
    with pytest.raises(ProfileError, match=r"has 0 rows of a 70B model on A100; it should have one"):
        published("A100", "70B", np.zeros(0), 0, 0.0)


@pytest.mark.slow
@needs_data
@each_recipe
def test_the_shipped_profile_is_what_the_tables_give(recipe):
    shipped = json.loads((FOLDER / f"{recipe.name}.json").read_text())
    assert_close(shipped, build_profile(recipe))


def assert_close(shipped, built):
    if isinstance(shipped, dict):
        assert list(shipped) == list(built)
        for key in shipped:
            assert_close(shipped[key], built[key])
    elif isinstance(shipped, list):
        assert len(shipped) == len(built)
        for one, other in zip(shipped, built, strict=True):
            assert_close(one, other)
    elif isinstance(shipped, float):
        assert built == pytest.approx(shipped, rel=1e-9)
    else:
        assert built == shipped


@pytest.mark.slow
@needs_data
@each_composed
def test_claimed_errors_measured_again(recipe):
    profile = load_profile(recipe.name)
    _, held_out = split(BATCHES, SEED)
    batches = random_batches(BATCHES, SEED, recipe.limits)[held_out]
    estimator = measure(profile.estimator, batches, profile.device.evaluate(batches))
    assert asdict(estimator) == pytest.approx(profile.error["estimator_vs_device"], abs=1e-3)
    device_error = measure(without_overhead(recipe), batches, composed_s(recipe, batches))
    assert asdict(device_error) == pytest.approx(profile.error["device_vs_composition"], abs=1e-3)
    assert device_error.mape_percent < 3.5
    assert estimator.mape_percent < (8.5 if profile.operators.derived else 6.0)


def without_overhead(recipe):
    document = json.loads((FOLDER / f"{recipe.name}.json").read_text())
    return parse_profile(document | {"cpu_overhead_s": 0.0}, recipe.name).device


@pytest.mark.slow
@needs_data
@each_composed
def test_errors_hold_for_batches_of_another_seed(recipe):
    profile = load_profile(recipe.name)
    batches = random_batches(900, 99, recipe.limits)
    device_error = measure(without_overhead(recipe), batches, composed_s(recipe, batches))
    estimator = measure(profile.estimator, batches, profile.device.evaluate(batches))
    assert device_error.mape_percent < 3.5
    assert estimator.mape_percent < (8.5 if profile.operators.derived else 6.0)


@pytest.mark.slow
@needs_data
def test_main_writes_the_same_bytes_and_prints_the_errors(tmp_path, capsys, monkeypatch):
    few = [recipe for recipe in RECIPES if recipe.name in ("a100-qwen1.5-4b", "ascend910b-qwen3-8b-eager")]
    monkeypatch.setattr(build_profiles, "RECIPES", few)
    main(tmp_path)
    printed = capsys.readouterr().out
    for recipe in few:
        written = (tmp_path / f"{recipe.name}.json").read_text()
        assert written == to_text(json.loads(written)) == (FOLDER / f"{recipe.name}.json").read_text()
        assert recipe.name in printed
    assert "4.50" in printed


def test_every_profile_that_ships_has_a_recipe():
    assert [recipe.name for recipe in RECIPES] == profile_names()


def test_the_page_of_profiles_is_up_to_date():
    shipped = Path(__file__).parents[3] / "docs" / "profiles.md"
    assert shipped.read_text() == page(), "run: python -m experiments.pages.profile_table > docs/profiles.md"
