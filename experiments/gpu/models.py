"""Models that are shapes: a config.json, a small tokenizer, and no weights (`load_format="dummy"`)."""

import json
from pathlib import Path
from typing import Any

from experiments.engines.tiny_model import make_tokenizer

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
MODELS = {"llama-3.1-8b": LLAMA_8B, "qwen3-30b-a3b": QWEN3_30B_A3B}
# What a rehearsal on a CPU makes of them.
TINY: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512, "bos_token_id": 256, "eos_token_id": 257,
}  # fmt: skip
TINY_EXPERTS = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}


def config_of(name: str, tiny: bool = False) -> dict[str, Any]:
    """The model's config.json; tiny: of a model as small as a test needs."""
    config = MODELS[name]
    if not tiny:
        return config
    return config | TINY | (TINY_EXPERTS if "num_experts" in config else {})


def make_shape(folder: Path, name: str, tiny: bool = False) -> Path:
    """Write the model to FOLDER/NAME; returns that."""
    path = folder / (f"tiny-{name}" if tiny else name)
    path.mkdir(parents=True, exist_ok=True)
    make_tokenizer(path)
    (path / "config.json").write_text(json.dumps(config_of(name, tiny), indent=1) + "\n", encoding="utf-8")
    return path
