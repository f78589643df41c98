"""Reads the mixer of each layer: attention to all tokens or to the last ones, or a state of fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from servegym.errors import ProfileError
from servegym.latency_models.model_configs.keys import Fields
from servegym.latency_models.model_configs.kinds import Attention, Latent, Mixer, Scan, State

FULL, WINDOW, LOCAL, LINEAR, NONE = "full", "window", "local", "linear", "none"
WORDS = {
    "full_attention": FULL, "attention": FULL, "sliding_attention": WINDOW, "chunked_attention": LOCAL,
    "linear_attention": LINEAR, "mamba": LINEAR, "moe": NONE, "mlp": NONE,
}  # fmt: skip
LETTERS = {"*": FULL, "M": LINEAR, "-": NONE, "E": NONE}  # of hybrid_override_pattern
STATES_ALONE = ("mamba", "mamba2", "falcon_mamba")  # of these model_types all layers are Mamba or Mamba-2, without MLPs
ALTERNATING = ("gemma2",)  # every second layer has a window, beginning with the first
# Fields for which the classes of these model_types have their own defaults.
OWN_DEFAULTS = {
    "head_dim": ("gemma", "gemma2", "gemma3_text", "gemma4_text", "qwen3", "gpt_oss"),
    "num_key_value_heads": ("gemma", "gemma2", "gemma3_text", "gemma4_text", "qwen3", "mistral", "mixtral", "gpt_oss"),
    "sliding_window": ("gemma2", "gemma3_text", "gemma4_text", "mistral", "gpt_oss"),
    "global_head_dim": ("gemma4_text",),
}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def mixers(fields: Fields, layers: int, hidden: int) -> list[Mixer | None]:
    """Read the mixer of each layer. Raises ProfileError for unknown kinds."""
    for key, kinds_of_models in OWN_DEFAULTS.items():
        fields.check_written(key, kinds_of_models)
    kinds = kinds_of(fields, layers)
    made: dict[str, Mixer | None] = {NONE: None}
    if LINEAR in kinds:
        made[LINEAR] = _state(fields, hidden)
    if FULL in kinds:
        made[FULL] = _attention(fields, hidden, 0)
    if WINDOW in kinds:
        made[WINDOW] = _attention(fields, hidden, fields.number("sliding_window"))
    if LOCAL in kinds:
        made[LOCAL] = _attention(fields, hidden, fields.number("attention_chunk_size"), local=True)
    return with_indexers(fields, [made[kind] for kind in kinds])


def with_indexers(fields: Fields, made: list[Mixer | None]) -> list[Mixer | None]:
    """Set which layers have an indexer of their own to choose tokens."""
    listed = fields.each("indexer_types", len(made))
    every = fields.number("index_topk_freq", otherwise=1)
    offset = fields.number("index_skip_topk_offset", otherwise=2, least=0)
    if listed is None:
        listed = ["shared" if max(i - offset + 1, 0) % every else "full" for i in range(len(made))]
    if set(listed) - {"full", "shared"}:
        raise ProfileError(f"{fields.where}: indexer_types should be a list of full and shared")
    if "sparse_attention_config" in fields:
        of_blocks = Fields(fields.take("sparse_attention_config"), f"{fields.where}: sparse_attention_config")
        return _choosing_blocks(of_blocks, made)
    return [
        replace(mixer, indexer=(0, 0)) if isinstance(mixer, Latent) and how == "shared" else mixer
        for mixer, how in zip(made, listed, strict=True)
    ]


def _choosing_blocks(fields: Fields, made: list[Mixer | None]) -> list[Mixer | None]:
    """Read MiniMax sparse attention, in which some layers score blocks of tokens by separate keys."""
    indexer = (fields.number("sparse_num_index_heads"), fields.number("sparse_index_dim"))
    chooses = fields.each("sparse_attention_freq", len(made)) or [1] * len(made)
    valueless = fields.each("sparse_disable_index_value", len(made)) or [0] * len(made)
    if not fields.take("use_sparse_attention", otherwise=True):
        chooses = [0] * len(made)
    if any(one and not other for one, other in zip(chooses, valueless, strict=True)):
        raise ProfileError(f"{fields.where}: sparse_disable_index_value is 0; indexers with values are not known")
    for key in ("sparse_block_size", "sparse_init_block", "sparse_local_block", "sparse_score_type"):
        fields.take(key)
    fields.take("sparse_topk_blocks")
    fields.check_all_taken()
    return [
        replace(mixer, indexer=indexer) if isinstance(mixer, Attention) and one else mixer
        for mixer, one in zip(made, chooses, strict=True)
    ]


def kinds_of(fields: Fields, layers: int) -> Sequence[str]:
    """Read the kind of each layer, from the first field that names kinds."""
    if fields.document.get("model_type") in STATES_ALONE:
        return [LINEAR] * layers
    pattern = fields.take("hybrid_override_pattern", "layers_block_type", "layer_types")
    if pattern:
        fields.take("sliding_window_pattern", "full_attention_interval", "attn_layer_period", "attn_layer_offset")
        key = next(key for key in ("hybrid_override_pattern", "layers_block_type", "layer_types") if key in fields)
        values = fields.each(key, layers) or ()
        known = LETTERS if isinstance(pattern, str) else WORDS
        unknown = sorted({value for value in values if value not in known}, key=str)
        if unknown:
            raise ProfileError(f"{fields.where}: {key} has layers {unknown[0]!r}; known: {', '.join(known)}")
        return [known[value] for value in values]
    numbered = fields.each("hybrid_layer_pattern", layers)
    if numbered is not None:  # 1: a window
        fields.take("sliding_window_size", "attention_chunk_size")  # the same number again
        return [WINDOW if value else FULL for value in numbered]
    numbered = fields.each("attn_type_list", layers)
    if numbered is not None:  # 0: linear attention
        return [FULL if value else LINEAR for value in numbered]
    if "linear_attn_config" in fields:
        listed = fields.take("linear_attn_config")
        whole = {number - 1 for number in listed.get("full_attn_layers", ())}
        return [FULL if layer in whole else LINEAR for layer in range(layers)]
    if "full_attention_interval" in fields:
        every = fields.number("full_attention_interval")
        return [FULL if (layer + 1) % every == 0 else LINEAR for layer in range(layers)]
    if "attn_layer_period" in fields:
        period, offset = fields.number("attn_layer_period"), fields.number("attn_layer_offset", otherwise=0, least=0)
        return [FULL if layer % period == offset else LINEAR for layer in range(layers)]
    if "mamba_d_state" in fields or "ssm_state_size" in fields:
        raise ProfileError(f"{fields.where}: Mamba layers are not named by any field (layer_types, attn_layer_period)")
    return _windowed(fields, layers)


def _windowed(fields: Fields, layers: int) -> Sequence[str]:
    """Read the kinds of a model of attention alone, with or without windows."""
    kind = str(fields.document.get("model_type"))
    if "attention_chunk_size" in fields and kind.startswith("llama4"):
        rotated = fields.each("no_rope_layers", layers)
        every = fields.number("no_rope_layer_interval", otherwise=4)
        local = rotated or [(layer + 1) % every != 0 for layer in range(layers)]
        return [LOCAL if value else FULL for value in local]
    used = fields.take("use_sliding_window", otherwise=True)
    window = fields.take("sliding_window")
    if window and window >= fields.take("max_position_embeddings", otherwise=window + 1):
        window = None  # the window covers the longest request
    if not window or not used:
        fields.take("sliding_window_pattern", "max_window_layers")
        return [FULL] * layers
    if "sliding_window_pattern" in fields:
        every = fields.number("sliding_window_pattern")
        return [FULL if (layer + 1) % every == 0 else WINDOW for layer in range(layers)]
    fields.check_written("sliding_window_pattern", ("gemma3_text", "cohere2"))
    if kind in ALTERNATING:
        return [WINDOW if layer % 2 == 0 else FULL for layer in range(layers)]
    first = fields.number("max_window_layers", otherwise=0, least=0) if "use_sliding_window" in fields else 0
    return [WINDOW if layer >= first else FULL for layer in range(layers)]


def _attention(fields: Fields, hidden: int, window: int, local: bool = False) -> Attention | Latent:
    heads = fields.number("num_attention_heads", "n_heads", "n_head")
    if fields.take("kv_lora_rank"):
        return _latent(fields, hidden, heads)
    own = "swa_" if window and "swa_head_dim" in fields else ""  # windows with heads of their own
    heads = fields.number(f"{own}num_attention_heads", otherwise=heads)
    kv_heads = fields.number(f"{own}num_key_value_heads", "n_head_kv", "num_kv_heads", otherwise=heads)
    if "global_head_dim" in fields and not local:
        return _gemma4(fields, hidden, window, heads, kv_heads)
    if heads % kv_heads:
        raise ProfileError(f"{fields.where}: {heads} attention heads do not share {kv_heads} key heads evenly")
    head_dim = fields.number(f"{own}head_dim", "attention_head_dim", otherwise=hidden // heads)
    value_dim = fields.number(f"{own}v_head_dim", otherwise=head_dim)
    gated = fields.take("attn_output_gate") or fields.document.get("model_type") == "qwen3_next"
    return Attention(hidden, heads, kv_heads, head_dim, value_dim, window, local, bool(gated))


def _gemma4(fields: Fields, hidden: int, window: int, heads: int, kv_heads: int) -> Attention:
    """Read Gemma 4's attention: full layers have wider heads than windows, and with `attention_k_eq_v` one product for
    keys and values."""
    of_full, keys_alone = fields.number("global_head_dim"), bool(fields.take("attention_k_eq_v"))
    of_windows, fewer = fields.number("head_dim"), fields.number("num_global_key_value_heads", otherwise=kv_heads)
    if window:
        return Attention(hidden, heads, kv_heads, of_windows, of_windows, window)
    return Attention(hidden, heads, fewer if keys_alone else kv_heads, of_full, of_full, one_product=keys_alone)


def _latent(fields: Fields, hidden: int, heads: int) -> Latent:
    fields.take("num_key_value_heads", "head_dim")
    topk = fields.take("index_topk")
    indexer = (fields.number("index_n_heads"), fields.number("index_head_dim")) if topk else (0, 0)
    query_rank = fields.number("q_lora_rank", otherwise=0, least=0)
    if topk and not query_rank:
        raise ProfileError(f"{fields.where}: index_topk without q_lora_rank is not known")
    return Latent(
        hidden, heads, query_rank, fields.number("kv_lora_rank"), fields.number("qk_nope_head_dim"),
        fields.number("qk_rope_head_dim"), fields.number("v_head_dim"), indexer,
        bool(fields.take("mla_use_output_gate")),
    )  # fmt: skip


def _state(fields: Fields, hidden: int) -> State:
    kind = fields.document.get("model_type")
    if kind in STATES_ALONE:
        return _mamba2(fields, hidden, "") if kind == "mamba2" else _mamba_alone(fields, hidden)
    if "linear_attn_config" in fields:
        return _kda(fields, hidden)
    if "linear_num_value_heads" in fields:
        return _gated_delta(fields, hidden)
    if "mamba_num_heads" in fields or "mamba_n_heads" in fields:
        return _mamba2(fields, hidden)
    if "mamba_d_state" in fields:
        return _mamba(fields, hidden)
    if "attn_type_list" in fields:
        return _lightning(fields, hidden)
    raise ProfileError(f"{fields.where}: layers of linear attention of an unknown kind")


def _number_bytes(fields: Fields, *keys: str) -> int:
    word = str(fields.take(*keys, otherwise="bfloat16")).removeprefix("torch.")
    if word not in BYTES:
        raise ProfileError(f"{fields.where}: {keys[0]} is {word!r}; it should be one of {', '.join(BYTES)}")
    return BYTES[word]


def _mamba(fields: Fields, hidden: int) -> State:
    inner = hidden * fields.number("mamba_expand", otherwise=2)
    sizes = inner, fields.number("mamba_d_state"), fields.number("mamba_d_conv")
    return _mamba_of(fields, hidden, *sizes, "mamba_dt_rank")


def _mamba_alone(fields: Fields, hidden: int) -> State:
    inner = fields.number("intermediate_size", otherwise=hidden * fields.number("expand", otherwise=2))
    return _mamba_of(fields, hidden, inner, fields.number("state_size"), fields.number("conv_kernel"), "time_step_rank")


def _mamba_of(fields: Fields, hidden: int, inner: int, state: int, kernel: int, rank_key: str) -> State:
    rank: Any = fields.take(rank_key, otherwise="auto")
    rank = -(-hidden // 16) if rank == "auto" else fields.number(rank_key)
    weights = 3 * hidden * inner + inner * (kernel + rank + 2 * state) + rank * inner + inner * state
    number_bytes, scan = _number_bytes(fields, "mamba_ssm_cache_dtype"), Scan(inner, state, inner, rank)
    return State("Mamba", weights, inner * (kernel - 1), inner * state, number_bytes, scan)


def _mamba2(fields: Fields, hidden: int, prefix: str = "mamba_") -> State:
    """Read a Mamba-2 layer. prefix: of its keys, where other layers have keys of these names; "": of Mamba-2 alone."""
    fields.take("expand", "mamba_expand")  # inner / hidden; heads x their width gives inner
    heads = fields.number(f"{prefix}num_heads", "mamba_n_heads")
    inner = heads * fields.number(f"{prefix}head_dim", "mamba_d_head")
    state = fields.number("ssm_state_size", "mamba_d_state", "state_size")
    groups = fields.number("n_groups", "mamba_n_groups", otherwise=1 if prefix else None)
    kernel = fields.number("conv_kernel", "mamba_d_conv", otherwise=4)
    convolved = inner + 2 * groups * state
    weights = hidden * (inner + convolved + heads) + convolved * kernel + inner * hidden
    number_bytes = _number_bytes(fields, "mamba_ssm_cache_dtype")
    chunk = fields.number("chunk_size", "mamba_chunk_size", otherwise=256)
    scan = Scan(inner, state, convolved, heads=heads, groups=groups, chunk=chunk)
    return State("Mamba-2", weights, convolved * (kernel - 1), inner * state, number_bytes, scan)


def _gated_delta(fields: Fields, hidden: int) -> State:
    heads, width = fields.number("linear_num_value_heads"), fields.number("linear_value_head_dim")
    keys = fields.number("linear_num_key_heads") * fields.number("linear_key_head_dim")
    kernel = fields.number("linear_conv_kernel_dim")
    values = heads * width
    convolved = 2 * keys + values
    weights = hidden * (convolved + values + 2 * heads) + convolved * kernel + values * hidden
    numbers = values * fields.number("linear_key_head_dim")
    return State("gated delta", weights, convolved * (kernel - 1), numbers, _number_bytes(fields, "mamba_ssm_dtype"))


def _kda(fields: Fields, hidden: int) -> State:
    inside = Fields(fields.take("linear_attn_config"), f"{fields.where}: linear_attn_config")
    inside.take("kda_layers", "full_attn_layers")
    heads, width = inside.number("num_heads"), inside.number("head_dim")
    kernel = inside.number("short_conv_kernel_size")
    inner = heads * width
    gates = 2 * (hidden * width + width * inner)  # of forgetting and of the output, through a narrow layer each
    if inside.take("use_full_rank_gate"):
        gates = hidden * width + width * inner + hidden * inner
    weights = 4 * hidden * inner + gates + hidden * heads + 3 * inner * kernel
    inside.check_all_taken()
    return State("KDA", weights, 3 * inner * (kernel - 1), inner * width, 4)


def _lightning(fields: Fields, hidden: int) -> State:
    heads = fields.number("num_attention_heads")
    width = fields.number("head_dim", otherwise=hidden // heads)
    inner = heads * width
    return State("lightning", 5 * hidden * inner, 0, inner * width, 2)
