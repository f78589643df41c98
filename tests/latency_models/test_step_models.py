"""Devices by SYSTEM:MODEL: their names, the form `steps`, and what aiconfigurator-core's steps become."""

import itertools
import json
import re
import sys

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from servegym.errors import ProfileError
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.profile import load_profile
from servegym.latency_models.sampling import BatchRange, random_batches
from servegym.latency_models.step_models import library, sampling
from servegym.latency_models.step_models.naming import Served, is_served, served

LLAMA = "h100_sxm:meta-llama/Meta-Llama-3.1-8B"


def test_a_name_says_how_a_model_is_served():
    one = served("h200_sxm:deepseek-ai/DeepSeek-V3:tp=8:dp=2:ep=16:engine=sglang:weights=fp8:kv=fp8:version=0.5.14")
    assert one == Served("h200_sxm", "deepseek-ai/DeepSeek-V3", 8, 2, 16, "sglang", "0.5.14", "fp8", "fp8")
    assert served(one.text) == one and served(LLAMA).text == LLAMA
    assert one.name == "h200_sxm-deepseek-v3-fp8-kv-fp8-tp8-dp2-ep16-sglang-0.5.14"
    assert not is_served("a100-llama3-8b") and not is_served("a:b.json") and not is_served("mine.json")


@pytest.mark.parametrize("name, said", [
    ("h100_sxm:m:tp=0", "tp is 0; it should be a whole number of 1 or more"),
    ("h100_sxm:m:tp=2:tp=4", "tp is given twice"),
    ("h100_sxm:m:tq=2", "unknown option 'tq'; there are: tp, dp, ep, engine"),
    ("h100_sxm:m:kv=fp4", "unknown kv 'fp4'"),
    ("h100_sxm:m:engine=vlm", "unknown engine 'vlm' (did you mean 'vllm'?)"),
    ("h100_sxm:m:tp=8:ep=3", "ep is 3; it should divide tp, 8"),
    ("h100_sxm:m:tp=2:dp=4:ep=3", "ep is 3; it should divide tp x dp, 8"),
])  # fmt: skip
def test_a_wrong_name_is_refused(name, said):
    with pytest.raises(ProfileError) as refused:
        served(name)
    assert said in str(refused.value)


KNOTS = {
    "tokens": [1.0, 3.0, 8.0, 100.0], "prefills": [1.0, 2.0, 4.0], "chunks": [1.0, 8.0, 64.0],
    "prefixes": [0.0, 16.0, 256.0, 300.0], "decodes": [1.0, 4.0, 5.0], "contexts": [1.0, 10.0, 1000.0],
}  # fmt: skip


@pytest.mark.nojit
def test_the_form_interpolates_its_tables():
    """Against scipy's interpolation: prefills alone, decodes alone, and both; at knots and between them."""
    rng = np.random.default_rng(0)
    shape = {name: len(knots) for name, knots in KNOTS.items()}
    tables = {
        "rest_s": rng.random(shape["tokens"]),
        "prefill_s": rng.random((shape["prefills"], shape["chunks"], shape["prefixes"])),
        "decode_s": rng.random((shape["decodes"], shape["contexts"])),
        "alone_s": rng.random((shape["decodes"], shape["contexts"])),
    }
    values = {"t_c": 0.25, **KNOTS, **{name: table.ravel().tolist() for name, table in tables.items()}}
    model = LatencyModel.from_values("steps", values)
    of_prefills = RegularGridInterpolator(
        [KNOTS[name] for name in ("prefills", "chunks", "prefixes")], tables["prefill_s"]
    )
    grid = [KNOTS[name] for name in ("decodes", "contexts")]
    of_decodes, alone = (RegularGridInterpolator(grid, tables[name]) for name in ("decode_s", "alone_s"))
    cases = itertools.product([0, 1, 2, 3], [1, 5, 20], [0, 10, 280], [0, 1, 3, 5], [1, 7, 500])
    batches, expected = [], []
    for prefills, chunk, prefix, decodes, context in cases:
        if prefills + decodes == 0:
            continue
        batch = np.zeros(1, random_batches(1, 0).dtype)
        batch["prefill_requests"], batch["prefill_tokens"] = prefills, prefills * chunk
        batch["prefill_tokens_squared"] = prefills * chunk**2
        batch["prefill_tokens_cached"] = prefills * chunk * prefix
        batch["decode_requests"], batch["decode_cached_tokens"] = decodes, decodes * context
        seconds = 0.25
        if prefills:
            tokens = prefills * chunk
            seconds += np.interp(tokens + decodes, KNOTS["tokens"], tables["rest_s"])
            seconds += tokens * of_prefills([[prefills, chunk, prefix]])[0]
        if decodes:
            seconds += (of_decodes if prefills else alone)([[decodes, context]])[0]
        batches.append(batch)
        expected.append(seconds)
    np.testing.assert_allclose(model.evaluate(np.concatenate(batches)), expected, rtol=1e-12)


def test_a_table_of_another_size_is_refused():
    values = {"t_c": 0.0, **KNOTS, "rest_s": [1.0] * 3, "prefill_s": [1.0] * 36, "decode_s": [1.0] * 9,
              "alone_s": [1.0] * 9}  # fmt: skip
    with pytest.raises(ProfileError, match="rest_s has 3 numbers; it must have 4, one for each of tokens"):
        LatencyModel.from_values("steps", values)


def test_without_the_library_one_line_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("SERVEGYM_CACHE", str(tmp_path))
    for name in {"aiconfigurator_core", *sys.modules}:
        if name.partition(".")[0] == "aiconfigurator_core":
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ProfileError, match="need aiconfigurator-core: pip install"):
        load_profile(LLAMA)


@pytest.fixture(scope="module")
def llama():
    pytest.importorskip("aiconfigurator_core", reason="needs aiconfigurator-core (the extra devices)")
    return library.StepModel(served(LLAMA))


@pytest.mark.slow
def test_the_form_is_true_to_the_library(llama):
    """Random steps of all kinds: median error 1 % at most, 5 % at the 99th percentile."""
    batches = sampling.alike(random_batches(1500, 7, BatchRange()))
    error = np.abs(sampling.latency_model(llama).evaluate(batches) / sampling.step_s(llama, batches) - 1)
    assert np.median(error) <= 0.01 and np.quantile(error, 0.99) <= 0.05


def test_a_step_is_the_sum_of_its_parts(llama):
    for requests, chunk, prefix in ((1, 512, 0), (4, 256, 1024)):
        parts = llama.rest_s(requests * chunk) + llama.prefill_attention_s(requests, chunk, prefix)
        assert parts == pytest.approx(llama.prefill_s(requests, chunk, prefix), rel=0.01)
    parts = llama.rest_s(64) + llama.decode_attention_s(64, 2048)
    assert parts == pytest.approx(llama.decode_s(64, 2048), rel=0.02)


@pytest.mark.slow
def test_a_profile_is_made_once(llama, monkeypatch, tmp_path):
    monkeypatch.setenv("SERVEGYM_CACHE", str(tmp_path))
    made = load_profile(LLAMA)
    assert made.kv.bytes_per_token == 131072  # 2 x 32 layers x 8 heads x 128 x 2 bytes
    assert 300_000 < made.kv.total_blocks * made.kv.block_tokens < 500_000
    assert 0.005 < made.idle_tpot_s < 0.01
    (kept,) = (tmp_path / "devices").iterdir()
    monkeypatch.setattr(library, "StepModel", None)
    assert load_profile(LLAMA).kv == made.kv and kept.suffix == ".json"


def test_kv_memory_by_kinds_of_layers(llama):
    """Of the same memory a model with windows or states has room for more tokens than one that keeps all."""
    kv = {
        name: library.StepModel(served(f"h200_sxm:{name}")).kv_cache()
        for name in ("openai/gpt-oss-20b", "Qwen/Qwen3.5-35B-A3B", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    }
    windows, states, mamba = kv.values()
    assert windows["bytes_per_token"] == 24576 and states["bytes_per_token"] == 20480
    usable = int(re.search(r"(\d+) bytes for KV", windows["arithmetic"])[1])
    assert 0.999 < windows["total_blocks"] * 16 * 24576 / usable <= 1  # a block holds 16 tokens of one of two groups
    assert sorted(group["window"] for group in windows["groups"]) == [0, 128] and windows["block_tokens"] == 15
    assert 1_000_000 < states["total_blocks"] * states["block_tokens"] < 3_000_000
    assert [group["state"] for group in states["groups"]] == [True, True, True, False]
    assert "30 gated delta, 10 full" in states["arithmetic"]
    assert not any(group["checkpoints"] for group in states["groups"])
    assert all(group["checkpoints"] == group["state"] for group in mamba["groups"])
    assert "count alike" not in llama.kv_cache()["arithmetic"]


def test_keys_and_values_have_the_precision_of_the_config(llama):
    """DeepSeek-V3 has weights of 8 bits and a cache of 16."""
    name = "h200_sxm:deepseek-ai/DeepSeek-V3:tp=8"
    assert library.arguments(served(name))["kvcache_quant_mode"] == "bfloat16"
    assert library.arguments(served(f"{name}:kv=fp8"))["kvcache_quant_mode"] == "fp8"
    assert library.arguments(served("h200_sxm:Qwen/Qwen3-32B-FP8-Static-PerTensor"))["kvcache_quant_mode"] == "fp8"
    assert library.StepModel(served(name)).kv_cache()["bytes_per_token"] == 70272
    other = library.StepModel(served(f"{name}:engine=sglang"))  # has attention of 16 bits alone
    assert 0.05 < other.prefill_s(1, 2048, 0) < 0.2


def test_ranks_share_experts(llama):
    """A rank of eight computes its own attention, and the experts of all eight's tokens."""
    name = "h200_sxm:Qwen/Qwen3-235B-A22B-FP8:ep=8"
    ranks, whole = (library.StepModel(served(f"{name}:{how}")) for how in ("dp=8", "tp=8"))
    assert ranks.decode_s(8, 2048) > whole.decode_s(8, 2048)
    assert ranks.decode_s(64, 2048) < 8 * whole.decode_s(64, 2048)
    with pytest.raises(ProfileError, match="dp is for models with experts"):
        library.StepModel(served(f"{LLAMA}:dp=2"))


def test_unknown_systems_and_models_are_named(llama):
    with pytest.raises(ProfileError, match="unknown system 'h900'; there are: a100_sxm"):
        library.models("h900")
    with pytest.raises(ProfileError, match=r"aiconfigurator-core says: .*unknown model"):
        library.StepModel(served("h100_sxm:Qwen/Qwen3-8"))


def test_a_model_of_states_alone_is_composed_elsewhere(llama, tmp_path):
    config = {"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100, "state_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config | {"conv_kernel": 4, "time_step_rank": 4}))
    with pytest.raises(ProfileError, match="has no models of states alone; servegym profile from-config"):
        library.StepModel(served(f"h100_sxm:{tmp_path}"))


def test_keys_that_are_compressed_are_not_counted_whole(llama):
    """DeepSeek-V4: there are step times, and the library counts its KV cache as if nothing were compressed."""
    name = "b200_sxm:deepseek-ai/DeepSeek-V4-Flash:tp=8"
    model = library.StepModel(served(name))
    assert 0.001 < model.decode_s(64, 2048) < 0.1
    with pytest.raises(ProfileError) as error:
        model.kv_cache()
    assert "has step times of it, and counts 11,367,936 bytes of KV for each token, 9,9" in str(error.value)
    assert "compress_ratios" in str(error.value) and "\n" not in str(error.value)
