"""Units: what a measured or fitted time implies of its device is below the device's peak, and not far below.

A table read in wrong units stands out: bytes for numbers of two bytes, ms for us, cached tokens of a request for those
of a batch. Half a rate or twice of it leaves the ranges here for all products and reads that keep a device busy.
"""

import os
from typing import NamedTuple

import numpy as np
import pytest

from experiments.profiles import composed_recipes
from experiments.profiles.ascend_points import decodes, prefills
from experiments.profiles.build_profiles import RECIPES
from experiments.profiles.device_specs import device
from experiments.profiles.llmservingsim_a6000 import a6000 as devices_a6000
from experiments.profiles.products import H100, H200
from experiments.profiles.shapes import LLAMA_3_8B, LLAMA_3_70B, pair_flop, token_flop
from experiments.profiles.vidur_a100 import vidur_linear
from servegym.latency_models.building import aiconfigurator, all_reduce
from servegym.latency_models.building.tables import read_table
from servegym.latency_models.profile import load_profile

needs_data = pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no operator tables")


class Peak(NamedTuple):
    """Of one device: 16-bit dense products, memory, and links to the others of its node, one way (0: not used)."""

    flop_per_s: float
    memory_bytes_per_s: float
    link_bytes_per_s: float = 0.0


# Vendors' datasheets: NVIDIA A100 80GB SXM (NVLink 3), H100 SXM and H200 (NVLink 4), RTX A6000 and A5000, without
# sparsity; Huawei's 910B2, bfloat16, as Ascend/msmodeling has it.
PEAKS = {
    "A100-SXM4": Peak(312e12, 2.039e12, 300e9), "H100-SXM": Peak(989.5e12, 3.35e12, 450e9),
    "H200-SXM": Peak(989.5e12, 4.8e12, 450e9), "RTX-A6000": Peak(154.8e12, 0.768e12),
    "RTX-A5000": Peak(111.1e12, 0.768e12), "Ascend-910B2": Peak(353.9e12, 1.76e12),
}  # fmt: skip
TABLES = {
    "A100-SXM4": aiconfigurator.A100, "H100-SXM": H100, "H200-SXM": H200,
}  # fmt: skip
each_chip = pytest.mark.parametrize("chip", TABLES)
NUMBER_BYTES = 2
L2_BYTES = 64e6  # more than any of these devices has: what is larger was read from memory
WIDE = 4096  # rows, columns and depth of a product that keeps a device busy
LONG = 4096  # tokens of a prefill that does
OWN_MESSAGE_BYTES = 4 * 2**20  # the longest measured one below vLLM's limit


@needs_data
@pytest.mark.parametrize("chip", PEAKS)
def test_peaks_are_those_that_compositions_use(chip):
    known = device(chip)
    assert known.peak_flop_per_s == pytest.approx(PEAKS[chip].flop_per_s, rel=1e-3)
    assert known.memory_bytes_per_s == pytest.approx(PEAKS[chip].memory_bytes_per_s, rel=1e-3)
    if PEAKS[chip].link_bytes_per_s:
        assert known.link_bytes_per_s == PEAKS[chip].link_bytes_per_s


def shares(amount, seconds, peak):
    """(largest, median) share of a peak at which an amount was done in so many seconds."""
    of_peak = np.asarray(amount) / np.asarray(seconds) / peak
    assert len(of_peak) > 0
    return of_peak.max(), np.median(of_peak)


@pytest.mark.slow
@needs_data
@each_chip
def test_matrix_products(chip):
    peak, measured = PEAKS[chip], aiconfigurator.products(TABLES[chip])
    rows = np.array(sorted(set(measured["m"])), dtype=float)
    flop, read = [], []
    for n, k in sorted(set(zip(measured["n"], measured["k"], strict=True)))[::4]:  # of many alike
        seconds = aiconfigurator.product(measured, n, k)(rows)
        flop += [(2 * m * n * k, s) for m, s in zip(rows, seconds, strict=True) if min(m, n, k) >= WIDE]
        if n * k * NUMBER_BYTES > L2_BYTES:
            read.append((n * k * NUMBER_BYTES, seconds[0]))
    largest, median = shares(*np.transpose(flop), peak.flop_per_s)
    assert largest < 1 and median > 0.6
    largest, median = shares(*np.transpose(read), peak.memory_bytes_per_s)
    assert rows[0] == 1
    assert largest < 1 and median > 0.6


@needs_data
@each_chip
@pytest.mark.parametrize(("shape", "devices"), [(LLAMA_3_8B, 1), (LLAMA_3_70B, 4)], ids=["8B", "70B on 4"])
def test_attention(chip, shape, devices):
    """Prefills attend to half of their length on average; decodes read keys and values of all cached tokens."""
    prefill, decode = aiconfigurator.attention(TABLES[chip], shape, devices)
    pair_flop = 4 * shape.heads // devices * shape.head_dim
    cached_bytes = 2 * shape.kv_heads // devices * shape.head_dim * NUMBER_BYTES
    flop, read = [], []
    for requests, curve in zip(prefill.parameters, prefill.curves, strict=True):
        long = curve.x >= LONG
        flop += zip(requests * pair_flop * curve.x[long] ** 2 / 2, curve.y[long], strict=True)
    for requests, curve in zip(decode.parameters, decode.curves, strict=True):
        moved = requests * cached_bytes * curve.x
        many = moved > 4 * L2_BYTES
        read += zip(moved[many], curve.y[many], strict=True)
    largest, median = shares(*np.transpose(flop), PEAKS[chip].flop_per_s)
    assert largest < 1 and median > 0.4
    largest, median = shares(*np.transpose(read), PEAKS[chip].memory_bytes_per_s)
    assert largest < 1 and median > 0.55


def on_the_bus(seconds, message_bytes, devices):
    """Bytes/s that each device sends, of a reduce-scatter and an all-gather: 2 (n - 1) / n of the message."""
    return 2 * (devices - 1) / devices * message_bytes / seconds


@needs_data
@each_chip
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_all_reduces_of_vllm(chip, devices):
    """Own: near half of the link at 4 MiB. NCCL's: most of it at 1 GiB; more than 1 where switches add (NVLink 4)."""
    link = PEAKS[chip].link_bytes_per_s
    own = aiconfigurator.all_reduce(TABLES[chip], devices)
    assert own.x[-1] == OWN_MESSAGE_BYTES
    assert 0.4 < on_the_bus(own.y[-1], own.x[-1], devices) / link < 0.7
    longest = aiconfigurator.all_reduces(TABLES[chip], devices).iloc[[-1]]
    assert 0.6 < on_the_bus(longest.iloc[0], longest.index[0], devices) / link < (0.9 if chip == "A100-SXM4" else 1.2)


@needs_data
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_two_sources_agree_on_nccls_all_reduce(devices):
    """Vidur's of a DGX, in bytes, and aiconfigurator's, in numbers: 8 to 64 MiB, on A100s."""
    theirs, nccl = aiconfigurator.all_reduces(aiconfigurator.A100, devices), all_reduce.nccl_all_reduce(devices)
    theirs = theirs[(theirs.index >= 8 * 2**20) & (theirs.index <= 64 * 2**20)]
    assert len(theirs) == 4
    assert nccl.at(theirs.index.to_numpy(dtype=float)) == pytest.approx(theirs.to_numpy(), rel=0.35)
    assert 0.4 < on_the_bus(nccl.at(np.array([2.0**26]))[0], 2.0**26, devices) / PEAKS["A100-SXM4"].link_bytes_per_s < 1


def of_operators(shape, devices=1):
    """Weights of a device, by operator of a layer."""
    width, attended = shape.qkv_width // devices, shape.heads * shape.head_dim // devices
    inner = shape.intermediate // devices
    return {
        "qkv": shape.hidden * width, "o": shape.hidden * attended,
        "gate_up": shape.hidden * 2 * inner, "down": shape.hidden * inner,
    }  # fmt: skip


def assert_linear_possible(linear, weights, peak, tokens):
    """A norm, an activation and launches are in an operator's time too, so of small ones it is a smaller share."""
    for name, count in weights.items():
        one_s, many_s = linear[name](np.array([1.0, tokens]))
        assert (0.35 if count * NUMBER_BYTES > L2_BYTES else 0.1) < count * NUMBER_BYTES / one_s / peak[1] < 1, name
        assert 0.4 < 2 * count * tokens / many_s / peak[0] < 1, name


@needs_data
@pytest.mark.parametrize(
    ("size", "shape", "devices"),
    [("8b", LLAMA_3_8B, 1), ("8b", LLAMA_3_8B, 2), ("8b", LLAMA_3_8B, 4), ("70b", LLAMA_3_70B, 4),
        ("70b", LLAMA_3_70B, 8)],
    ids=["8B", "8B on 2", "8B on 4", "70B on 4", "70B on 8"],
)  # fmt: skip
def test_vidur_operators(size, shape, devices):
    linear = vidur_linear(f"vidur_a100_llama3_{size}_linear_ops", devices)
    assert_linear_possible(linear, of_operators(shape, devices), PEAKS["A100-SXM4"], 8192.0)


@needs_data
def test_vidur_attention_excerpt():
    """Its cached tokens are those of each request, and its heads those of a device."""
    table = read_table(all_reduce.VIDUR_ATTENTION, ".csv")
    seconds, devices = table["attn_time_median_ms"] * 1e-3, table["num_tensor_parallel_workers"]
    cached, chunk, peak = table["kv_cache_size"], table["prefill_chunk_size"], PEAKS["A100-SXM4"]
    flop = 4 * LLAMA_3_8B.heads * LLAMA_3_8B.head_dim * chunk * (cached + chunk / 2) / devices
    long = chunk >= all_reduce.FILLING_CHUNK_TOKENS
    largest, median = shares(flop[long], seconds[long], peak.flop_per_s)
    assert largest < 1 and median > 0.35
    read = table["batch_size"] * cached * 2 * LLAMA_3_8B.kv_heads * LLAMA_3_8B.head_dim * NUMBER_BYTES / devices
    many = (chunk == 0) & (read > 4 * L2_BYTES)
    largest, median = shares(read[many], seconds[many], peak.memory_bytes_per_s)
    assert largest < 1 and median > 0.55


@needs_data
def test_a6000_operators():
    """Prefills to 2048 tokens. Its kernel reads keys once for each query head, four times as often as it must."""
    a6000, peak, shape = devices_a6000(), PEAKS["RTX-A6000"], LLAMA_3_8B
    assert_linear_possible(a6000.linear, of_operators(shape), peak, 2048.0)
    weights = shape.vocabulary * shape.hidden
    assert 0.7 < weights * NUMBER_BYTES / a6000.head_s(np.array([1.0]))[0] / peak.memory_bytes_per_s < 1
    flop = 4 * shape.heads * shape.head_dim * 2048**2 / 2
    assert 0.3 < flop / a6000.prefill_attention_s(np.array([1.0]), np.array([2048.0]))[0] / peak.flop_per_s < 1
    requests, cached = np.array([8.0, 16.0, 32.0]), np.array([8192.0, 4096.0, 2048.0])
    read = requests * cached * 2 * shape.kv_heads * shape.head_dim * NUMBER_BYTES
    largest, median = shares(read, a6000.decode_attention_s(requests, cached), peak.memory_bytes_per_s)
    assert largest < 1 and median > 0.1


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("recipe", composed_recipes.RECIPES, ids=lambda recipe: recipe.name)
def test_cached_prefixes(recipe):
    """A chunk's token and one cached before it cost a product with its key and one with its value."""
    slope_s = recipe.make.args[0]().cached_slope_s
    flop = pair_flop(recipe.shape) / recipe.shape.layers / recipe.tensor_parallel
    assert 0.3 < flop / slope_s / PEAKS[recipe.specification].flop_per_s < 1


def possible_s(recipe, flop=0.0, moved_bytes=0.0):
    """The least seconds in which the devices of a profile can compute and move so much."""
    peak = PEAKS[recipe.specification]
    return max(flop / peak.flop_per_s, moved_bytes / peak.memory_bytes_per_s) / recipe.tensor_parallel


# Least share of the peak in a prefill of the longest batch: alpha_1 of this one is as the authors' code has it, and the
# profile says that it makes prefills implausibly slow.
LEAST = {recipe.name: 0.15 for recipe in RECIPES} | {"a100-qwen1.5-7b": 0.03}
each_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)


@each_recipe
def test_one_token_of_a_shipped_profile_reads_the_weights(recipe):
    """Ascend in eager mode waits for the host most of the time."""
    seconds = load_profile(recipe.name).device.evaluate(decodes(1, 16))[0]
    assert 0.15 < possible_s(recipe, moved_bytes=recipe.shape.read_bytes) / seconds < 1


@each_recipe
def test_a_long_prefill_of_a_shipped_profile_computes(recipe):
    """To eight times the tokens a profile was fitted to: its form goes on past them, and must give none away."""
    profile, shape = load_profile(recipe.name), recipe.shape
    most = profile.valid["batch_tokens"][1]
    tokens = np.array([512, 1024, most, 2 * most, 8 * most])
    seconds = np.array([profile.device.evaluate(prefills(1, count))[0] for count in tokens])
    flop = token_flop(shape) * tokens + pair_flop(shape) * tokens**2 / 2
    share = [possible_s(recipe, count) for count in flop] / seconds
    assert share.max() < 1
    assert share[2] > LEAST[recipe.name]


# But for `slowest`, which knows no other decode than the longest.
@pytest.mark.parametrize(
    "recipe", [recipe for recipe in RECIPES if recipe.estimator != "slowest"], ids=lambda recipe: recipe.name
)
def test_decodes_of_a_shipped_profile_read_their_keys(recipe):
    profile, shape = load_profile(recipe.name), recipe.shape
    for requests in (1, 16, 128):
        cached = min(profile.valid["cached_tokens"][1], profile.valid["cached_tokens_in_batch"][1] // requests)
        moved = shape.read_bytes + requests * cached * shape.kv_bytes_per_token
        seconds = profile.device.evaluate(decodes(requests, cached))[0]
        assert 0.1 < possible_s(recipe, moved_bytes=moved) / seconds < 1
