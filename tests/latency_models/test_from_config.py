"""Profiles made of a config.json: what is read, what is counted, and that the times are possible on the GPU."""

import json
import os

import numpy as np
import pytest

from experiments.profiles.ascend_points import decodes, prefills
from experiments.profiles.device_specs import device
from experiments.profiles.shapes import LLAMA_3_8B, LLAMA_3_70B, QWEN3_30B_A3B, pair_flop, token_flop
from servegym.errors import ProfileError
from servegym.latency_models.building import from_config
from servegym.latency_models.building.data_sheet import DataSheet
from servegym.latency_models.building.gpus import gpu, gpus
from servegym.latency_models.building.huggingface import Model, model_of, read_model
from servegym.latency_models.building.product_devices import decoder
from servegym.latency_models.building.shapes import MixtureShape, ModelShape
from servegym.latency_models.building.specifications import kv_cache
from servegym.latency_models.profile import error_class, load_profile, parse_profile
from servegym.simulator.memory.kv_groups import KvCacheGroup

needs_data = pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no operator tables")
CONFIG = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = CONFIG | {"vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
MIXTRAL_SHAPE = MixtureShape(32, 4096, 32, 8, 128, 14336, 32000, 8, 2)
LLAMA_2_7B = ModelShape(32, 4096, 32, 32, 128, 11008, 32000)


@pytest.fixture
def no_data(monkeypatch):
    monkeypatch.delenv("SERVEGYM_DATA", raising=False)


def test_shapes_of_configs():
    assert model_of(CONFIG, "m").shape == LLAMA_3_8B
    assert model_of(CONFIG | {"num_key_value_heads": None}, "m").shape.kv_heads == 32
    assert model_of(MIXTRAL, "m").shape == MIXTRAL_SHAPE
    qwen = CONFIG | {
        "num_hidden_layers": 48, "hidden_size": 2048, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    }  # fmt: skip
    assert model_of(qwen, "m").shape == QWEN3_30B_A3B
    assert model_of({"text_config": CONFIG, "vision_config": {}}, "m").shape == LLAMA_3_8B


@pytest.mark.parametrize(("quantisation", "precision"), [
    (None, "bf16"), ({"quant_method": "fp8"}, "fp8"), ({"quant_method": "awq", "bits": 4}, "int4"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}},
     "fp8"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}},
     "int4"),
])  # fmt: skip
def test_precision_of_configs(quantisation, precision):
    assert model_of(CONFIG | {"quantization_config": quantisation}, "m").precision == precision
    assert model_of(CONFIG | {"quantization_config": quantisation}, "m", "bf16").precision == "bf16"


@pytest.mark.parametrize(("change", "words"), [
    ({"hidden_size": None}, "hidden_size is None"), ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"num_key_value_heads": 5}, "do not share 5"),
    ({"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
     "kind 'latent' are not composed; aiconfigurator-core knows more"),
    ({"attn_output_gate": True}, "gated attention"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "weights of int8 are not composed"),
    ({"quantization_config": {"quant_method": "other"}}, "give --precision"),
])  # fmt: skip
def test_what_is_no_such_model(change, words):
    with pytest.raises(ProfileError, match=words):
        model_of(CONFIG | change, "m")


def test_files(tmp_path):
    file = tmp_path / "some-model" / "config.json"
    with pytest.raises(ProfileError, match="cannot be read"):
        read_model(file)
    file.parent.mkdir()
    file.write_text("[1")
    with pytest.raises(ProfileError, match="no JSON"):
        read_model(file)
    file.write_text(json.dumps(CONFIG | {"num_nextn_predict_layers": 1}))
    model = read_model(file)
    assert model.name == "some-model"
    assert "MTP" in model.left_out[0]
    with pytest.raises(ProfileError, match="precision 'fp4'"):
        read_model(file, "fp4")
    with pytest.raises(ProfileError, match="KV precision 'int4'"):
        read_model(file, kv_precision="int4")
    assert read_model(file, kv_precision="fp8").shape.kv_number_bytes == 1
    beside = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (file.parent / "hf_quant_config.json").write_text(json.dumps(beside))
    shape = read_model(file).shape
    assert (shape.number_bytes, shape.kv_number_bytes) == (4.5 / 8, 1)
    assert read_model(file, kv_precision="bf16").shape.kv_number_bytes == 2
    assert read_model(file, "bf16").shape.kv_number_bytes == 1  # of the cache, the file's own


def test_weights_by_precision_and_ties():
    """Embeddings stay in 16 bits; tied ones are there once."""
    eight = ModelShape(32, 4096, 32, 8, 128, 14336, 128256, number_bytes=1)
    embeddings, norms = 2 * 2 * 128256 * 4096, 2 * (32 * 2 + 1) * 4096
    assert eight.weight_bytes - embeddings - norms == (LLAMA_3_8B.weight_bytes - embeddings - norms) / 2
    assert token_flop(eight) == token_flop(LLAMA_3_8B)
    tied = ModelShape(32, 4096, 32, 8, 128, 14336, 128256, tied=True)
    assert LLAMA_3_8B.weight_bytes - tied.weight_bytes == embeddings / 2


def built(name, shape, devices=1, precision="bf16", **words):
    document = from_config.build(gpu(name), Model("org/Some Model", shape, precision), devices, **words)
    return parse_profile(document, "built"), document


def test_a_roofline_needs_no_data(no_data):
    profile, document = built("b200", LLAMA_3_70B, 4)
    assert profile.name == "b200-some-model-tp4"
    assert error_class(profile) == "roofline"
    assert "Error class roofline" in document["error"]["statement"]
    assert document["error"]["device_vs_composition"]["mape_percent"] < 5
    assert profile.kv.total_blocks * 16 * 327_680 <= profile.kv.usable_bytes
    with pytest.raises(ProfileError, match="no operator tables of b200"):
        built("b200", LLAMA_3_70B, 4, by="tables")
    with pytest.raises(ProfileError, match="SERVEGYM_DATA is not set"):
        built("h100", LLAMA_3_8B, by="tables")


@pytest.mark.parametrize(("words", "message"), [
    ({"shape": LLAMA_3_70B}, "nothing is left for keys"),
    ({"shape": LLAMA_3_8B, "devices": 3}, "cannot share 32 attention heads"),
    ({"shape": LLAMA_3_8B, "devices": 2, "expert_parallel": 2}, "has no experts"),
    ({"shape": MIXTRAL_SHAPE, "devices": 4, "expert_parallel": 2}, "expert parallel 2"),
])  # fmt: skip
def test_what_does_not_fit(no_data, words, message):
    with pytest.raises(ProfileError, match=message):
        built("h100", **words)
    with pytest.raises(ProfileError, match="unknown GPU 'h1000'"):
        gpu("h1000")


CASES = [
    (name, by, shape, devices)
    for name, by in (("a100", "tables"), ("h100", "tables"), ("h100", "roofline"), ("l40s", "tables"),
                     ("rtx4090", "roofline"))
    for shape, devices in ((LLAMA_2_7B, 1), (LLAMA_3_70B, 4), (MIXTRAL_SHAPE, 2))
    if devices == 1 or name in ("a100", "h100")
]  # fmt: skip


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(("name", "by", "shape", "devices"), CASES)
def test_times_are_possible(name, by, shape, devices):
    """A token reads its weights, decodes their keys, prefills compute: at less than the peak, and not far below."""
    profile, _ = built(name, shape, devices, by=by, cpu_overhead_s=0.0)
    chip = gpu(name).chip
    one_s = profile.device.evaluate(decodes(1, 16))[0]
    assert 0.3 < shape.read_bytes / devices / chip.memory_bytes_per_s / one_s < 1
    cached = profile.kv.total_blocks * 16 // 64
    read = shape.weight_bytes - 2 * shape.vocabulary * shape.hidden + 64 * cached * shape.kv_bytes_per_token
    many_s = profile.device.evaluate(decodes(64, cached))[0]
    assert 0.4 < read / devices / chip.memory_bytes_per_s / many_s < 1
    flop = token_flop(shape) * 8192 + pair_flop(shape) * 8192**2 / 2
    prefill_s = profile.device.evaluate(prefills(1, 8192))[0]
    assert 0.3 < flop / devices / chip.peak_flop_per_s / prefill_s < 1


@pytest.mark.slow
@needs_data
def test_eight_bits_read_half_and_compute_faster():
    eight = ModelShape(32, 4096, 32, 8, 128, 14336, 128256, number_bytes=1)
    (wide, _), (narrow, document) = built("h100", LLAMA_3_8B), built("h100", eight, precision="fp8")
    assert document["name"].endswith("-fp8")
    for batch, low, high in ((decodes(1, 512), 0.5, 0.8), (prefills(1, 8192), 0.5, 0.95)):
        assert low < narrow.device.evaluate(batch)[0] / wide.device.evaluate(batch)[0] < high
    assert narrow.kv.total_blocks > wide.kv.total_blocks


@pytest.mark.slow
@needs_data
def test_keys_of_eight_bits_are_read_in_less_time_and_take_half_the_memory():
    small = ModelShape(32, 4096, 32, 8, 128, 14336, 128256, kv_number_bytes=1)
    (wide, _), (narrow, document) = built("h100", LLAMA_3_8B), built("h100", small)
    assert document["name"].endswith("-kv8")
    assert "--kv-precision fp8" in document["provenance"]["command"]
    assert narrow.kv.usable_bytes == wide.kv.usable_bytes
    assert narrow.kv.total_blocks - 2 * wide.kv.total_blocks in (0, 1)
    long, short = decodes(64, 8192), decodes(1, 16)
    assert 0.5 < narrow.device.evaluate(long)[0] / wide.device.evaluate(long)[0] < 0.85
    assert 0.9 < narrow.device.evaluate(short)[0] / wide.device.evaluate(short)[0] < 1.1
    assert "attention" in built("a100", small)[1]["error"]["statement"]  # that table has no such keys


@pytest.mark.slow
@needs_data
def test_what_no_table_has_is_said_to_be_derived():
    odd = MixtureShape(32, 4096, 32, 8, 128, 1024, 32000, 60, 4)
    four = ModelShape(32, 4096, 32, 8, 128, 14336, 128256, number_bytes=0.5)
    for shape, precision, what in ((odd, "bf16", "experts"), (four, "int4", "products")):
        profile, document = built("h100", shape, precision=precision)
        assert f"By the data sheet, not measured: {what}" in document["error"]["statement"]
        assert profile.basis == "operator tables, partly derived"


@needs_data
def test_data_sheets_are_those_of_the_table():
    for name, row in (("a100", "A100-SXM4"), ("h100", "H100-SXM"), ("h200", "H200-SXM"), ("a6000", "RTX-A6000")):
        known, sheet = gpu(name).chip, device(row)
        assert known.peak_flop_per_s == sheet.peak_flop_per_s
        assert known.memory_gib == sheet.memory_gib
        assert known.memory_bytes_per_s == pytest.approx(sheet.memory_bytes_per_s)


def test_error_classes_of_what_ships():
    assert error_class(load_profile("h100-llama3-8b")) == "tables"
    assert error_class(load_profile("ascend910b-qwen2-7b")) == "roofline"
    assert all(np.isfinite(one.chip.memory_bytes_per_s) and one.source for one in gpus().values())


def test_experts_of_four_bits_beside_weights_of_sixteen():
    model = model_of(MIXTRAL | {"quantization_config": {"quant_method": "mxfp4"}}, "m")
    weights = 3 * 4096 * 14336
    assert model.precision == "mxfp4"
    assert model.shape.expert_bytes == int(weights * 4.25 / 8)
    assert MIXTRAL_SHAPE.weight_bytes - model.shape.weight_bytes == 32 * 8 * (2 * weights - model.shape.expert_bytes)
    with pytest.raises(ProfileError, match="mxfp4 is one of experts"):
        model_of(CONFIG, "m", "mxfp4")


def test_some_layers_without_experts():
    """Every second layer dense, of its own width, as the means over all layers."""
    config = MIXTRAL | {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 28672}
    shape = model_of(config, "m").shape
    assert (shape.dense_layers, shape.dense, shape.intermediate) == (16, 28672, 14336)
    expert = 3 * 4096 * 14336
    assert MIXTRAL_SHAPE.weight_bytes - shape.weight_bytes == 2 * 16 * (8 * expert + 4096 * 8 - 2 * expert)
    sheet = DataSheet(gpu("h100").chip, 1e15)
    both, whole, dense = (
        decoder(sheet, gpu("h100").chip, shape).linear
        for shape in (shape, MIXTRAL_SHAPE, ModelShape(32, 4096, 32, 8, 128, 28672, 32000))
    )
    tokens = np.array([1.0, 100.0, 8192.0])
    norm_s = (both["gate"](tokens) - 0.5 * whole["gate"](tokens)) * 2
    dense_s = dense["gate_up"](tokens) + dense["down"](tokens) - norm_s
    np.testing.assert_allclose(both["experts"](tokens), (whole["experts"](tokens) + dense_s) / 2)


def test_windows_keep_their_tokens(no_data):
    """As gpt-oss has them: vLLM's two groups of 16 layers."""
    half = ["sliding_attention", "full_attention"] * 16
    shape = model_of(CONFIG | {"sliding_window": 128, "layer_types": half}, "m").shape
    kv = kv_cache(shape, 80, 1, request_tokens=1024)
    page = 16 * 16 * 2 * 8 * 128 * 2  # tokens x layers x key and value x heads x width x bytes
    of_request, of_step = 64 + 9, (64 + 64) - (64 + 9)
    assert kv["total_blocks"] == kv["usable_bytes"] // page
    assert kv["block_tokens"] == int((kv["total_blocks"] - of_step) / of_request * 1024) // kv["total_blocks"] == 14
    assert sorted(group["window"] for group in kv["groups"]) == [0, 128]
    assert "window of 128 tokens" in kv["arithmetic"]
    every = model_of(CONFIG | {"sliding_window": 128}, "m").shape
    kv = kv_cache(every, 80, 1)
    assert kv["total_blocks"] * kv["block_tokens"] * kv["bytes_per_token"] <= kv["usable_bytes"]
    built = parse_profile(from_config.build(gpu("h100"), Model("m", every, "bf16")), "built")
    assert built.kv.groups == built.deployment().kv_groups == (KvCacheGroup(16, window=128),)


def test_each_device_has_a_key_head():
    """Four key heads on eight devices are there twice."""
    few = ModelShape(32, 4096, 32, 4, 128, 14336, 128256)
    assert kv_cache(few, 80, 8)["total_blocks"] == kv_cache(LLAMA_3_8B, 80, 8)["total_blocks"] + (
        LLAMA_3_8B.weight_bytes - few.weight_bytes
    ) // (16 * LLAMA_3_8B.kv_bytes_per_token)


def test_layers_with_a_window_keep_and_attend_to_no_more(no_data):
    half = ["sliding_attention", "full_attention"] * 16
    windowed = model_of(CONFIG | {"sliding_window": 128, "layer_types": half}, "m")
    assert windowed.left_out == ()
    assert windowed.shape.kv_bytes_per_token == LLAMA_3_8B.kv_bytes_per_token / 2
    whole, within = (
        decoder(DataSheet(gpu("h100").chip, 1e15), gpu("h100").chip, shape) for shape in (LLAMA_3_8B, windowed.shape)
    )
    requests = np.ones(2)
    short, long = (np.array([length, length]) for length in (100.0, 10_000.0))
    assert within.decode_attention_s(requests, short) == pytest.approx(whole.decode_attention_s(requests, short))
    mean = (whole.decode_attention_s(requests, long) + whole.decode_attention_s(requests, 0 * long + 128)) / 2
    assert within.decode_attention_s(requests, long) == pytest.approx(mean)
    assert (within.prefill_attention_s(requests, long) < 0.52 * whole.prefill_attention_s(requests, long)).all()
    assert within.cached_slope_s == whole.cached_slope_s / 2


MAMBA = {
    "model_type": "mamba", "num_hidden_layers": 64, "hidden_size": 2560, "vocab_size": 50280, "state_size": 16,
    "conv_kernel": 4, "time_step_rank": 160,
}  # fmt: skip
MAMBA2 = MAMBA | {"model_type": "mamba2", "num_heads": 80, "head_dim": 64, "n_groups": 1, "state_size": 128}


def test_a_model_of_states_alone_holds_a_block_for_each_request(no_data):
    """Mamba-2.8B: 64 states of 194,560 bytes; one of the blocks is vLLM's own."""
    shape = model_of(MAMBA, "m").shape
    kv = kv_cache(shape, 80, 1)
    assert kv["total_blocks"] == kv["usable_bytes"] // (64 * 5120 * (3 + 16) * 2) - 1
    assert kv["block_tokens"] == 4096 and "a state in each layer" in kv["arithmetic"]
    profile = parse_profile(from_config.build(gpu("h100"), model_of(MAMBA, "m")), "built")
    assert profile.kv.groups == (KvCacheGroup(16, state=True),)
    assert profile.operators.names == ("in", "scan", "o")
    assert "compared with nothing" in profile.error["statement"]
    with pytest.raises(ProfileError, match="nothing is left for states"):
        kv_cache(shape, 8, 1)


@pytest.mark.parametrize("config", [MAMBA, MAMBA2], ids=["mamba", "mamba2"])
def test_a_step_reads_and_writes_the_state_of_each_request(no_data, config):
    profile = parse_profile(from_config.build(gpu("h100"), model_of(config, "m")), "built")
    few, many = (profile.device.evaluate(decodes(n, 1000))[0] for n in (64, 256))
    state_bytes = 64 * model_of(config, "m").shape.state.bytes()
    moved_s = 2 * 192 * state_bytes / gpu("h100").chip.memory_bytes_per_s
    assert moved_s < many - few < 1.6 * moved_s + 3e-3  # and the products of 192 more rows
    later, earlier = (profile.device.evaluate(decodes(64, tokens))[0] for tokens in (50_000, 500))
    assert later == pytest.approx(earlier, rel=0.01)  # a state is as large whatever it has read
    short, long = (profile.device.evaluate(prefills(1, tokens))[0] for tokens in (2048, 8192))
    assert 3 < long / short < 4.1  # linear in the tokens


def test_states_are_cut_by_heads_groups_and_channels(no_data):
    whole, half = (from_config.build(gpu("h100"), model_of(MAMBA, "m"), n, cpu_overhead_s=0.0) for n in (1, 2))
    assert half["kv"]["total_blocks"] > 2 * whole["kv"]["total_blocks"]
    one, other = (parse_profile(document, "m").device.evaluate(prefills(1, 8192))[0] for document in (whole, half))
    assert 0.5 * one < other < 0.75 * one
    one_group, three = MAMBA2, MAMBA2 | {"n_groups": 3}
    assert kv_cache(model_of(one_group, "m").shape, 80, 2)["total_blocks"] > 0  # each device has a copy of the group
    for config, said in ((three, "2 devices cannot share 3 groups"), (MAMBA2 | {"num_heads": 81}, "81 heads")):
        with pytest.raises(ProfileError, match=said):
            from_config.build(gpu("h100"), model_of(config, "m"), 2)
    with pytest.raises(ProfileError, match="the model has no experts"):
        from_config.build(gpu("h100"), model_of(MAMBA, "m"), 2, 2)


@pytest.mark.slow
@needs_data
def test_routing_that_is_skewed():
    (even, _), (skewed, document) = (built("h100", MIXTRAL_SHAPE, 2, skew=skew) for skew in (0.0, 1.01))
    assert document["name"].endswith("-skew1.01-tp2")
    assert "--expert-skew 1.01" in document["provenance"]["command"]
    assert skewed.device.evaluate(prefills(1, 8192))[0] > 1.01 * even.device.evaluate(prefills(1, 8192))[0]
    _, document = built("h100", MIXTRAL_SHAPE, 2, by="roofline", skew=1.01)
    assert "evenly, whatever the skew" in document["error"]["statement"]
    with pytest.raises(ProfileError, match="no experts with a skew of 3"):
        built("h100", MIXTRAL_SHAPE, 2, skew=3.0)
    with pytest.raises(ProfileError, match="the model has no experts"):
        built("h100", LLAMA_3_8B, skew=1.01)
