"""What is read of a config.json: 60 public architectures and more, kinds of layers, precisions, and what is refused."""

import json
from pathlib import Path

import pytest

from experiments.pages.model_table import documents, page
from servegym.errors import ProfileError
from servegym.latency_models.model_configs.precision import Precision, precision_of
from servegym.latency_models.model_configs.reading import read

DENSE = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
}  # fmt: skip
INDEXED = {"index_topk": 64, "index_n_heads": 2, "index_head_dim": 16}
MAMBA = {
    "model_type": "mamba", "state_size": 8, "conv_kernel": 4, "time_step_rank": 4, "num_attention_heads": None,
    "num_key_value_heads": None,
}  # fmt: skip
BLOCKS = {
    "sparse_num_index_heads": 2, "sparse_index_dim": 8, "sparse_attention_freq": [0, 1, 1, 1],
    "sparse_disable_index_value": [0, 1, 1, 1], "sparse_topk_blocks": 16,
}  # fmt: skip
WIDER = {
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 16, "head_dim": 16,
    "global_head_dim": 32,
}  # fmt: skip


@pytest.mark.parametrize("document", documents(), ids=lambda document: document["model"])
def test_public_architectures(document):
    """Parameters within 1 % of what was published; bytes of the cache exact."""
    model = read(document["config"], document["model"])
    assert model.parameters == pytest.approx(document["parameters"], rel=0.01)
    assert model.kv_bytes_per_token == document["kv_bytes_per_token"]
    assert model.window_bytes == document.get("window_bytes", 0)
    assert model.state_bytes == document.get("state_bytes", 0)


def test_there_are_sixty_and_the_page_has_them():
    assert len(documents()) >= 60
    shipped = Path(__file__).parents[2] / "docs/models.md"
    assert shipped.read_text(encoding="utf-8") == page(), (
        "run: python -m experiments.pages.model_table > docs/models.md"
    )


def experts_in(**fields):
    model = read(DENSE | EXPERTS | fields, "m")
    return [type(layer.mlp).__name__ == "Experts" for layer in model.layers]


@pytest.mark.parametrize(("fields", "expected"), [
    ({}, [1, 1, 1, 1]), ({"first_k_dense_replace": 1}, [0, 1, 1, 1]), ({"decoder_sparse_step": 2}, [0, 1, 0, 1]),
    ({"interleave_moe_layer_step": 2}, [0, 1, 0, 1]), ({"mlp_only_layers": [2]}, [1, 1, 0, 1]),
    ({"expert_layer_period": 2, "expert_layer_offset": 1}, [0, 1, 0, 1]),
    ({"moe_layer_freq": [0, 1, 1, 0]}, [0, 1, 1, 0]),
    ({"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}, [0, 1, 1, 1]),
    ({"moe_layer_start_index": 1, "moe_layer_end_index": 2}, [0, 1, 1, 0]), ({"num_experts": 0}, [0, 0, 0, 0]),
])  # fmt: skip
def test_which_layers_have_experts(fields, expected):
    assert experts_in(**fields) == [bool(one) for one in expected]


def test_dense_layers_and_experts_have_widths_of_their_own():
    """As Llama 4 has them: every second layer dense, of `intermediate_size_mlp`."""
    config = DENSE | {"num_local_experts": 8, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}
    model = read(config | {"intermediate_size_mlp": 256, "model_type": "llama4_text"}, "m")
    assert [layer.mlp.inner for layer in model.layers] == [256, 128, 256, 128]
    assert model.layers[1].mlp.shared == 128


@pytest.mark.parametrize(("fields", "kinds"), [
    ({"hybrid_override_pattern": "M-*E", "ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 8} | EXPERTS,
     {"Mamba-2": 1, "none": 2, "full": 1}),
    ({"sliding_window": 16}, {"window 16": 4}),
    ({"sliding_window": 16, "use_sliding_window": False}, {"full": 4}),
    ({"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 3}, {"window 16": 1, "full": 3}),
    ({"sliding_window": 16, "max_position_embeddings": 16}, {"full": 4}),
    ({"sliding_window": 16, "sliding_window_pattern": 2}, {"window 16": 2, "full": 2}),
    ({"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 16},
     {"window 16": 3, "full": 1}),
    ({"attention_chunk_size": 16, "model_type": "llama4_text"}, {"local 16": 3, "full": 1}),
    (LATENT, {"latent": 4}),
    (LATENT | INDEXED | {"indexer_types": ["full", "shared", "shared", "full"]}, {"latent, indexed": 2, "latent": 2}),
    (LATENT | INDEXED | {"index_topk_freq": 2, "index_skip_topk_offset": 1}, {"latent, indexed": 2, "latent": 2}),
    ({"sparse_attention_config": BLOCKS}, {"full": 1, "full, indexed": 3}),
    ({"sparse_attention_config": BLOCKS | {"use_sparse_attention": False}}, {"full": 4}),
    (WIDER | {"num_global_key_value_heads": 1, "attention_k_eq_v": True}, {"window 16": 3, "full": 1}),
    (MAMBA, {"Mamba": 4}),
    (MAMBA | {"model_type": "mamba2", "num_heads": 8, "head_dim": 16, "n_groups": 2}, {"Mamba-2": 4}),
])  # fmt: skip
def test_kinds_of_layers(fields, kinds):
    assert dict(read(DENSE | fields, "m").kinds) == kinds


def test_full_layers_of_gemma_4_have_heads_and_a_product_of_their_own():
    full, window = (read(DENSE | WIDER, "m").layers[i].mixer for i in (3, 0))
    assert (full.head_dim, full.kv_heads, window.head_dim, window.kv_heads) == (32, 2, 16, 2)
    alike = read(DENSE | WIDER | {"num_global_key_value_heads": 1, "attention_k_eq_v": True}, "m").layers[3].mixer
    assert alike.token_numbers() == full.token_numbers() / 2  # keys and values of one head, kept apart
    assert full.weights - alike.weights == 64 * (2 * 2 * 32 - 32)


def test_a_key_that_chooses_blocks_is_kept_in_16_bits_on_each_device():
    model = read(DENSE | {"sparse_attention_config": BLOCKS}, "m")
    first, chooses = (model.token_bytes(model.layers[i].mixer, 2) for i in (0, 1))
    assert chooses - first == 2 * 8


def test_experts_beside_the_mlp_of_every_layer():
    model = read(DENSE | EXPERTS | {"enable_moe_block": True}, "m")
    assert {layer.mlp.shared for layer in model.layers} == {128}


@pytest.mark.parametrize("nested", ["text_config", "llm_config", "language_config"])
def test_the_language_model_may_be_nested(nested):
    model = read({nested: DENSE, "vision_config": {"hidden_size": 8}, "tie_word_embeddings": True}, "m")
    assert model.tied and model.parameters < read(DENSE, "m").parameters
    assert nested in model.left_out[0]


@pytest.mark.parametrize(("config", "said"), [
    (DENSE | {"moe_number": 8}, "m: moe_number: not understood"),
    (DENSE | {"block_configs": [1]}, "block_configs: not understood"),
    (DENSE | {"layer_types": ["other"] * 4}, "layer_types has layers 'other'"),
    (DENSE | {"layer_types": ["full_attention"]}, "one value for each of 4 layers"),
    (DENSE | {"num_attention_heads": True}, "num_attention_heads is True"),
    (DENSE | {"mamba_d_state": 16}, "Mamba layers are not named"),
    (DENSE | MAMBA | {"state_size": None}, "state_size is None.*default of the class of mamba"),
    (DENSE | MAMBA | {"model_type": "mamba2", "num_heads": 8, "head_dim": 16}, "n_groups is None"),
    (DENSE | EXPERTS | {"num_experts_per_tok": 9}, "a token chooses 9 of 8 experts"),
    ({"text_config": {"model_type": "gemma3_text"}}, "hidden_size is None.*default of the class of gemma3"),
    ({"text_config": DENSE | {"model_type": "gemma3_text"}}, "head_dim is missing, and gemma3_text has a default"),
    (DENSE | {"model_type": "mistral"}, "sliding_window is missing, and mistral has a default of its own"),
    ({"text_config": DENSE, "llm_config": DENSE}, "which is the language model"),
    (DENSE | {"compress_ratios": [0, 0, 4, 128], "hc_mult": 4}, "compress_ratios, hc_mult: not understood"),
    (DENSE | LATENT | INDEXED | {"indexer_types": ["other"] * 4}, "should be a list of full and shared"),
    (DENSE | {"sparse_attention_config": BLOCKS | {"sparse_disable_index_value": [0] * 4}}, "indexers with values"),
    ({"text_config": DENSE | {"model_type": "gemma4_text", "sliding_window": 16, "head_dim": 16}},
     "global_head_dim is missing, and gemma4_text has a default of its own"),
])  # fmt: skip
def test_what_is_refused_by_name(config, said):
    with pytest.raises(ProfileError, match=said):
        read(config, "m")


def groups(weights, inputs=None):
    return {"group_0": {"weights": weights, "input_activations": inputs, "targets": ["Linear"]}}


FP4, FP8 = ({"num_bits": bits, "type": "float", "group_size": 16} for bits in (4, 8))
INT4 = {"num_bits": 4, "type": "int", "group_size": 128}
LAYERS = {"attention": {0, 1}, "mlp": {0}, "experts": {1}}


@pytest.mark.parametrize(("quantisation", "expected"), [
    ({"quant_method": "fp8"}, Precision.of_all("fp8", "fp8", "bf16")),
    ({"quant_method": "compressed-tensors", "config_groups": groups(INT4), "kv_cache_scheme": FP8},
     Precision.of_all("int4", "bf16", "fp8")),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": FP8},
     Precision.of_all("nvfp4", "nvfp4", "fp8")),
    ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
     Precision.of_all("fp8", "fp8", "fp8")),
    ({"quant_method": "compressed-tensors", "config_groups": groups(FP4, FP4), "ignore": ["re:.*self_attn.*"]},
     Precision("bf16", "nvfp4", "nvfp4", "nvfp4", "bf16")),
    ({"quant_method": "compressed-tensors", "config_groups": groups(INT4),
      "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj.*"]},
     Precision("bf16", "bf16", "int4", "bf16", "bf16")),
    ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"]},
     Precision("bf16", "bf16", "mxfp4", "bf16", "bf16")),
    ({"quant_method": "awq", "bits": 4}, Precision.of_all("int4", "bf16", "bf16")),
    ({"quant_method": "fp8", "modules_to_not_convert": [f"model.layers.{i}.self_attn.o_proj" for i in (0, 1)]},
     Precision("bf16", "fp8", "fp8", "fp8", "bf16")),
])  # fmt: skip
def test_precisions_are_each_their_own(quantisation, expected):
    assert precision_of(quantisation, "m", LAYERS) == expected


@pytest.mark.parametrize(("quantisation", "said"), [
    ({"quant_method": "quark"}, "quark is not known; give --precision"),
    ({"quant_method": "gptq", "bits": 3}, "gptq of 3 bits"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn"]}, "part of the attention"),
    ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1.other"]}, "leaves 'model.layers.1.other'"),
    ({"quant_method": "fp8", "online": True}, "online: not understood"),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "MIXED_PRECISION is not known"),
    ({"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "unknown KV precision 'fp4'"),
])  # fmt: skip
def test_quantisations_that_are_refused(quantisation, said):
    with pytest.raises(ProfileError, match=said):
        precision_of(quantisation, "m", LAYERS)


def test_weights_take_the_bytes_of_their_precision():
    of_all = read(DENSE, "m")
    nvfp4 = read(DENSE | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "m")
    products = sum(of_all.parts().values())
    assert of_all.weight_bytes == 2 * of_all.parameters
    assert nvfp4.weight_bytes == of_all.weight_bytes - 2 * products + products * 4.5 / 8


def test_the_files_of_the_table_name_their_source():
    for document in documents():
        assert document["source"] and json.dumps(document["config"])
