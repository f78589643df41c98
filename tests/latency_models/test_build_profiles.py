"""Composition, and the shipped profiles against what the operator tables give."""

import json
import os
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from servegym.latency_models.build_profiles import BATCHES, RECIPES, SEED, build_profile, main, to_text
from servegym.latency_models.fitting import measure, split
from servegym.latency_models.profile import FOLDER, load_profile, parse_profile
from servegym.latency_models.sampling import random_batches
from servegym.latency_models.shapes import LLAMA_3_8B
from servegym.latency_models.tables import Curve, Surface, read_table
from servegym.simulator.errors import ProfileError

needs_data = pytest.mark.skipif(
    "SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no operator tables"
)
each_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)


def test_weights_and_cache_of_llama_3_8b():
    assert LLAMA_3_8B.weight_bytes == 2 * 8_030_261_248  # the published number of parameters
    assert LLAMA_3_8B.kv_bytes_per_token == 131_072


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


@needs_data
@each_recipe
def test_composed_times_are_of_the_right_size(recipe):
    """Reading 16 GB of weights bounds a decode of one; 2 FLOP a weight and token bound a long prefill."""
    bandwidth, flops = {"a100-llama3-8b": (2.039e12, 312e12), "h100-llama3-8b": (3.35e12, 989e12)}[
        recipe.name
    ]
    batches = np.zeros(2, dtype=random_batches(1, 0).dtype)
    batches["decode_requests"], batches["decode_cached_tokens"] = [1, 0], [100, 0]
    for name, value in (("requests", 1), ("tokens", 4096), ("tokens_squared", 4096**2)):
        batches[f"prefill_{name}"] = [0, value]
    decode_s, prefill_s = recipe.compose().duration_s(batches)
    assert 1.0 < decode_s / (LLAMA_3_8B.weight_bytes / bandwidth) < 1.5
    assert 1.0 < prefill_s / (LLAMA_3_8B.weight_bytes * 4096 / flops) < 2.0


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


@needs_data
@each_recipe
def test_claimed_errors_measured_again(recipe):
    profile = load_profile(recipe.name)
    _, held_out = split(BATCHES, SEED)
    batches = random_batches(BATCHES, SEED)[held_out]
    estimator = measure(profile.estimator, batches, profile.device.evaluate(batches))
    assert asdict(estimator) == pytest.approx(profile.error["estimator_vs_device"], abs=1e-3)
    device = measure(without_overhead(recipe), batches, recipe.compose().duration_s(batches))
    assert asdict(device) == pytest.approx(profile.error["device_vs_composition"], abs=1e-3)
    assert device.mape_percent <= 3.0
    assert 4.0 < estimator.mape_percent < 5.0


def without_overhead(recipe):
    document = json.loads((FOLDER / f"{recipe.name}.json").read_text())
    return parse_profile(document | {"cpu_overhead_s": 0.0}, recipe.name).device


@needs_data
@each_recipe
def test_errors_hold_for_batches_of_another_seed(recipe):
    profile = load_profile(recipe.name)
    batches = random_batches(900, seed=99)
    device = measure(without_overhead(recipe), batches, recipe.compose().duration_s(batches))
    estimator = measure(profile.estimator, batches, profile.device.evaluate(batches))
    assert device.mape_percent < 3.0
    assert estimator.mape_percent < 5.0


@needs_data
def test_main_writes_the_same_bytes_and_prints_the_errors(tmp_path, capsys):
    main(tmp_path)
    printed = capsys.readouterr().out
    for recipe in RECIPES:
        written = (tmp_path / f"{recipe.name}.json").read_text()
        assert written == to_text(json.loads(written))
        assert printed.count(recipe.name) == 2
    assert "4.50" in printed
