"""Kernels of a GPU, by its tables and by its data sheet."""

import os

import numpy as np
import pytest

from experiments.measured.layer_devices import layers
from experiments.profiles import roofline_error
from experiments.profiles.ascend_points import decodes, prefills
from experiments.profiles.products import H100
from experiments.profiles.shapes import LLAMA_3_8B, QWEN3_30B_A3B, QWEN3_32B, token_flop
from servegym.errors import ProfileError
from servegym.latency_models.building import aiconfigurator, data_sheet
from servegym.latency_models.building.from_config import kernels_of
from servegym.latency_models.building.gpus import gpu, gpus
from servegym.latency_models.building.huggingface import Model
from servegym.latency_models.building.product_devices import decoder
from servegym.latency_models.building.shapes import MixtureShape, ModelShape
from servegym.latency_models.building.tables import read_table
from servegym.latency_models.sampling import random_batches

pytestmark = pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no operator tables")
WITH_TABLES = [name for name, one in gpus().items() if one.tables]
MIXTRAL = MixtureShape(32, 4096, 32, 8, 128, 14336, 32000, 8, 2)


def median_over_gpus(share_of):
    return np.median([share_of(gpu(name)) for name in WITH_TABLES])


def test_the_shares_of_the_peaks_are_those_of_the_tables():
    def products(one):
        rows = aiconfigurator.products(one.tables)
        wide = rows[rows[["m", "n", "k"]].min(axis=1) >= 4096]
        return (2.0 * wide["m"] * wide["n"] * wide["k"] / wide["latency"] / 1e-3 / one.chip.peak_flop_per_s).median()

    def reads(one):
        rows = aiconfigurator.products(one.tables)
        large = rows[(rows["m"] == 1) & (rows["n"] * rows["k"] * 2 > 96e6)]
        return (2.0 * large["n"] * large["k"] / large["latency"] / 1e-3 / one.chip.memory_bytes_per_s).median()

    def attention(one):
        rows = read_table(f"{one.tables}_context_attention_perf")
        rows = rows[(rows["kv_cache_dtype"] == "bfloat16") & (rows["isl"] >= 2048) & (rows["num_heads"] >= 8)]
        flop = 4.0 * rows["num_heads"] * 128 * rows["batch_size"] * rows["isl"] ** 2 / 2
        return (flop / rows["latency"] / 1e-3 / one.chip.peak_flop_per_s).median()

    def caches(one):
        rows = read_table(f"{one.tables}_generation_attention_perf")
        rows = rows[rows["kv_cache_dtype"] == "bfloat16"]
        moved = 4.0 * rows["batch_size"] * (rows["step"] + 1) * rows["num_key_value_heads"] * 128
        return (moved / rows["latency"] / 1e-3 / one.chip.memory_bytes_per_s)[moved > 256e6].median()

    assert median_over_gpus(products) == pytest.approx(data_sheet.PRODUCT_EFFICIENCY, abs=0.01)
    assert median_over_gpus(reads) == pytest.approx(data_sheet.READ_EFFICIENCY, abs=0.01)
    assert median_over_gpus(attention) == pytest.approx(data_sheet.PREFILL_EFFICIENCY, abs=0.01)
    assert median_over_gpus(caches) == pytest.approx(data_sheet.CACHE_EFFICIENCY, abs=0.01)


def test_the_claimed_error_of_data_sheets():
    """Of one model on one H100: 6 % on average for dense ones; of all, what the page says."""
    percents = roofline_error.percents(gpu("h100"), LLAMA_3_8B, 1)
    assert all(percents[kind] < 10 for kind in ("decode", "prefill", "mixed"))
    percents = roofline_error.percents(gpu("h100"), QWEN3_30B_A3B, 8)
    assert -33 < percents["mean"] < -25


def test_many_key_heads_are_many_requests():
    """32 key heads of 5 requests take what 8 of 20 take; 32 query heads for 32 key heads what 8 for 8."""
    many = ModelShape(32, 4096, 32, 32, 128, 11008, 32000)
    few = ModelShape(32, 4096, 8, 8, 128, 11008, 32000)
    requests, cached = np.array([1.0, 5.0, 64.0]), np.array([100.0, 1000.0, 2000.0])
    _, decode = aiconfigurator.attention(H100, many)
    _, narrow = aiconfigurator.attention(H100, few)
    assert decode.at(requests, cached) == pytest.approx(narrow.at(4 * requests, cached))


def test_a_product_between_two_widths_and_two_depths():
    measured = aiconfigurator.products(H100)
    rows = np.array([1.0, 64.0, 4096.0])
    low, high = (aiconfigurator.product(measured, n, k)(rows) for n, k in ((8192, 4096), (10240, 5120)))
    between = aiconfigurator.product(measured, 9000, 4500)(rows)
    assert (low < between).all() and (between < high).all()
    with pytest.raises(ProfileError, match="70000 wide is not in the tables"):
        aiconfigurator.product(measured, 70000, 4096)


def test_experts_are_looked_up_where_they_were_measured():
    kernels, _ = kernels_of(gpu("h100"), Model("m", MIXTRAL, "bf16"))
    linear = decoder(kernels, gpu("h100").chip, MIXTRAL, 2).linear
    alone = aiconfigurator.experts(H100, MIXTRAL, 2, 1, "bfloat16")
    reduce_s = kernels.all_reduce(MIXTRAL, 2)
    tokens = np.array([1.0, 64.0, 2048.0])
    assert linear["experts"](tokens) == pytest.approx(alone.at(tokens) + reduce_s(tokens))
    spread = decoder(kernels, gpu("h100").chip, MIXTRAL, 2, 2).linear["experts"](tokens)
    assert (np.abs(spread / linear["experts"](tokens) - 1) < 0.6).all()
    assert kernels.derived == []
    read_bytes = 8 * MIXTRAL.expert_bytes / 2
    assert 0.7 < read_bytes / alone.at(np.array([64.0]))[0] / gpu("h100").chip.memory_bytes_per_s < 1


@pytest.mark.parametrize(("name", "gpu_name", "shape", "devices", "ranks"), [
    ("rtx4090_llama31_8b", "rtx4090", LLAMA_3_8B, 1, 1),
    ("rtxpro6000_qwen3_32b", "rtxpro6000", QWEN3_32B, 2, 1),
    ("rtxpro6000_qwen3_30b_a3b", "rtxpro6000", QWEN3_30B_A3B, 1, 2),
])  # fmt: skip
def test_layer_tables_imply_possible_rates(name, gpu_name, shape, devices, ranks):
    chip, composed = gpu(gpu_name).chip, layers(name, shape, devices, ranks)
    one_s, many_s, prefill_s = composed.duration_s(
        np.concatenate([decodes(1, 16), decodes(32, 1024), prefills(1, 2048)])
    )
    assert 0.25 < shape.read_bytes / devices / chip.memory_bytes_per_s / one_s < 1
    moved = shape.read_bytes + 32 * 1024 * shape.kv_bytes_per_token
    if isinstance(shape, MixtureShape):
        used = float(data_sheet.used_experts(shape, np.array([32.0 * ranks]))[0]) / ranks
        moved += shape.layers * (used - shape.chosen) * shape.expert_bytes
    assert 0.2 < moved / devices / chip.memory_bytes_per_s / many_s < 1
    assert 0.15 < token_flop(shape) * 2048 / devices / chip.peak_flop_per_s / prefill_s < 1


def test_a_batch_of_both_kinds_takes_more_than_the_two():
    composed = layers("rtx4090_llama31_8b", LLAMA_3_8B)
    batches = random_batches(300, 0)
    both = batches[(batches["prefill_requests"] > 0) & (batches["decode_requests"] > 0)]
    apart = both.copy()
    seconds = composed.attention_s(both)
    for kind in ("decode", "prefill"):
        apart = both.copy()
        for field in [field for field in apart.dtype.names if kind in field]:
            apart[field] = 0
        seconds = seconds - composed.attention_s(apart)
    assert (seconds >= -1e-12).all() and seconds.mean() > 1e-5
