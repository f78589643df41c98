"""Reads the MLP of each layer: dense, experts, or none."""

from __future__ import annotations

from servegym.errors import ProfileError
from servegym.latency_models.model_configs.keys import Fields
from servegym.latency_models.model_configs.kinds import Experts, Mlp
from servegym.latency_models.model_configs.mixers import STATES_ALONE

COUNT = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_topk", "top_k_experts")
WIDTH = ("moe_intermediate_size", "expert_intermediate_size")
SHARED = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size")
NOT_GATED = ("nemotron_h", "nemotron", "starcoder2", "falcon", "gpt_neox", "phi", "gpt2", "opt", "bloom", "mpt")
EXPERTS, DENSE, NONE = "experts", "dense", "none"
LETTERS = {"E": EXPERTS, "-": DENSE, "M": NONE, "*": NONE}  # of hybrid_override_pattern
WORDS = {"moe": EXPERTS, "mlp": DENSE, "mamba": NONE, "attention": NONE}  # of layers_block_type
TYPES = {"sparse": EXPERTS, "dense": DENSE}  # of mlp_layer_types


def mlps(fields: Fields, layers: int, hidden: int) -> list[Mlp | Experts | None]:
    """Read the MLP of each layer. Raises ProfileError for contradictory fields."""
    gated = fields.document.get("model_type") not in NOT_GATED
    count = fields.number(*COUNT, otherwise=0, least=0)
    kinds = _kinds(fields, layers, count)
    made: dict[str, Mlp | Experts | None] = {NONE: None}
    if EXPERTS in kinds:
        made[EXPERTS] = _experts(fields, hidden, count, gated)
    if DENSE in kinds:
        keys = ("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size", "ffn_dim", "n_inner")
        made[DENSE] = Mlp(hidden, fields.number(*keys), gated)
    fields.take("intermediate_size", "intermediate_size_mlp", "mlp_bias")
    return [made[kind] for kind in kinds]


def _kinds(fields: Fields, layers: int, count: int) -> list[str]:
    if fields.document.get("model_type") in STATES_ALONE:
        return [NONE] * layers
    if "hybrid_override_pattern" in fields:
        return [LETTERS[letter] for letter in fields.take("hybrid_override_pattern")[:layers]]
    if "layers_block_type" in fields and "hybrid" not in fields.take("layers_block_type"):
        words = fields.each("layers_block_type", layers) or ()
        if set(words) & {"moe", "mlp"}:  # layers of one part each
            return [WORDS[word] for word in words]
    if count <= 1:
        fields.take(*WIDTH, *CHOSEN, *SHARED)
        return [DENSE] * layers
    types = fields.each("mlp_layer_types", layers)
    fields.take("first_k_dense_replace", "decoder_sparse_step", "mlp_only_layers")
    if types is not None:
        fields.take("moe_layer_freq")
        return [TYPES[kind] for kind in types]
    has = [True] * layers
    each = fields.take("moe_layer_freq")
    if isinstance(each, list):
        has = [bool(value) for value in fields.each("moe_layer_freq", layers) or ()]
    elif each:
        every = fields.number("moe_layer_freq")
        has = [layer % every == 0 for layer in range(layers)]
    period = fields.number("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", otherwise=1)
    has = [one and (layer + 1) % period == 0 for layer, one in enumerate(has)]
    if "expert_layer_period" in fields:
        period, offset = fields.number("expert_layer_period"), fields.number("expert_layer_offset", least=0)
        has = [layer % period == offset for layer in range(layers)]
    first = fields.number("first_k_dense_replace", "moe_layer_start_index", otherwise=0, least=0)
    last = fields.number("moe_layer_end_index", otherwise=layers - 1, least=0)
    dense = set(fields.take("mlp_only_layers", otherwise=()))
    listed = fields.take("moe_layers")
    if listed:
        has = [layer in listed for layer in range(layers)]
    return [EXPERTS if one and first <= i <= last and i not in dense else DENSE for i, one in enumerate(has)]


def _experts(fields: Fields, hidden: int, count: int, gated: bool) -> Experts:
    inner = fields.number(*WIDTH, otherwise=fields.document.get("intermediate_size"))
    chosen = fields.number(*CHOSEN)
    if chosen > count:
        raise ProfileError(f"{fields.where}: a token chooses {chosen} of {count} experts")
    shared = fields.take(*SHARED)
    if fields.take("enable_moe_block"):  # beside the MLP that every layer has
        shared = fields.number("intermediate_size")
    number = fields.number("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", otherwise=0, least=0)
    if shared is None:
        shared = inner * (1 if fields.document.get("model_type") == "llama4_text" else number)
    latent = fields.number("moe_latent_size", "routed_expert_hidden_size", otherwise=0, least=0)
    return Experts(hidden, count, chosen, inner, int(shared), gated, latent)
