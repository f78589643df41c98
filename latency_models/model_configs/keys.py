"""Takes the fields of a config.json one by one; an unread field that may change size or speed is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from servegym.errors import ProfileError

# Keys that change neither the size nor the speed of what profiles count: of generation, training, classes and
# tokenizers; rotations and scales of activations; how experts are scored; biases and norms; heads beside the LM head;
# residuals over earlier layers (under 2 % of the time, by the paper of attention residuals).
WORDS = """
    architectures auto_map model_type torch_dtype dtype transformers_version tokenizer_class problem_type description
    id2label label2id is_decoder is_encoder_decoder use_cache torchscript tf_legacy_loss use_bfloat16 return_dict
    return_dict_in_generate pruned_heads task_specific_params finetuning_task tie_encoder_decoder
    chunk_size_feed_forward temperature top_k top_p typical_p do_sample early_stopping num_beams num_beam_groups
    num_return_sequences max_length min_length length_penalty diversity_penalty repetition_penalty
    exponential_decay_length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids suppress_tokens
    begin_suppress_tokens remove_invalid_values prefix output_scores output_attentions output_hidden_states
    output_router_logits num_logits_to_keep keys_to_ignore_at_inference max_position_embeddings
    original_max_position_embeddings initial_context_length model_max_length max_seq_len seq_length
    max_sequence_length cache_implementation use_flash_attn attn_implementation attention_implementation
    pretraining_tp ep_size head_dtype use_mamba_kernels chunk_size mamba_chunk_size initializer_range
    initializer_factor hidden_act hidden_activation hidden_activation_function activation_function mlp_hidden_act
    mamba_hidden_act swiglu_limit qk_head_dim rotary_dim rotary_pct partial_rotary_factor mrope_section use_mrope
    query_pre_attn_scalar attention_value_scale attn_scale floor_scale attn_temperature_tuning attention_multiplier
    embedding_multiplier residual_multiplier logits_scaling logit_scale embedding_scale final_logit_softcapping
    attn_logit_softcapping residual_in_fp32 rescale_prenorm_residual use_parallel_residual parallel_attn
    norm_topk_prob scoring_func topk_method topk_group n_group num_expert_group seq_aux use_grouped_topk
    use_routing_bias moe_renormalize moe_router_activation_func moe_router_dtype routed_scaling_factor
    moe_router_scaling_factor moe_shared_expert_overlap router_jitter_noise moe_use_aux_free norm_eps rms_norm
    use_qk_norm qk_layernorm use_qk_layernorm use_gemma_norm qk_norm_type attention_bias output_gate_type qkv_bias
    use_bias use_qkv_bias bias mamba_proj_bias mamba_conv_bias use_conv_bias attn_bias no_bias
    add_full_attention_sink_bias add_swa_attention_sink_bias use_moe_router_bias mla_use_nope time_step_limit
    time_step_min time_step_max time_step_floor time_step_rank num_nextn_predict_layers mtp_num_hidden_layers
    mtp_transformer_layers num_mtp_modules use_mtp mtp_use_dedicated_embeddings mtp_hybrid_override_pattern
    mtp_layers_block_type multi_token_prediction swiglu_alpha gate_lower_bound activation_situ_beta
    activation_situ_linear_beta latent_moe_use_norm attn_res_block_size use_bidirectional_attention
    vocab_size_per_layer_input index_share_for_mtp_iteration indexer_rope_interleave fused_add_norm norm_before_gate
    pad_vocab_size_multiple time_step_init_scheme time_step_scale use_mambapy
"""
WITHOUT_EFFECT = frozenset(WORDS.split())
ALSO = re.compile(  # families of such keys
    r"_.*|rope_.*|.*_rope_theta|.*_token_ids?|.*_token_index|.*_placeholder|.*dropout.*|.*_pdrop|.*_loss.*|.*_coef|.*_eps"
    r"|.*_epsilon|.*_ignore_index|ignore_index"
)


class Fields:
    """The keys of a JSON object. where: for errors. Keys that `take` or `number` has read count as understood."""

    def __init__(self, document: Mapping[str, Any], where: str) -> None:
        self.document = document
        self.where = where
        self.taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self.document.get(key) is not None

    def take(self, *keys: str, otherwise: Any = None) -> Any:
        """Take the value of the first of these keys that has one; all of them count as understood."""
        self.taken.update(keys)
        return next((self.document[key] for key in keys if key in self), otherwise)

    def number(self, *keys: str, otherwise: int | None = None, least: int = 1) -> int:
        """Take a whole number of `least` or more, as `take` does. Raises ProfileError for anything else."""
        value = self.take(*keys, otherwise=otherwise)
        if value is None:
            kind = self.document.get("model_type")
            default = f"; it is left to the default of the class of {kind}: write it into the file" if kind else ""
            raise ProfileError(f"{self.where}: {keys[0]} is None; it should be a whole number{default}")
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            key = next((key for key in keys if key in self), keys[0])
            raise ProfileError(f"{self.where}: {key} is {value!r}; it should be a whole number of {least} or more")
        return value

    def each(self, key: str, layers: int) -> Sequence[Any] | None:
        """Take a list with one value for each layer; None: there is none. Raises ProfileError for another length."""
        values = self.take(key)
        if values is None or values == []:
            return None
        if not isinstance(values, (list, str)) or len(values) < layers:
            raise ProfileError(f"{self.where}: {key} should be a list with one value for each of {layers} layers")
        return values[:layers]

    def check_written(self, key: str, kinds: Sequence[str]) -> None:
        """Raise ProfileError for a missing field whose default in these model_types (`kinds`) is not ours."""
        kind = self.document.get("model_type")
        if kind in kinds and key not in self.document:
            raise ProfileError(
                f"{self.where}: {key} is missing, and {kind} has a default of its own: write it into the file"
            )

    def check_all_taken(self) -> None:
        """Raise ProfileError for unread keys with a value that may change size or speed."""
        left = sorted(
            key
            for key, value in self.document.items()
            if value and key not in self.taken and key not in WITHOUT_EFFECT and not ALSO.fullmatch(key)
        )
        if left:
            raise ProfileError(
                f"{self.where}: {', '.join(left)}: not understood, and may change the model's size or speed; where "
                "one does not, leave it out of the file"
            )
