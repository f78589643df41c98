"""Measured closed loops: the shapes of their models, and what is stated or taken of each engine's settings."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REQUESTS_PER_CLIENT = 10
SHORTEST_SHARE = 0.8  # InferenceX: lengths are uniform from this fraction of isl and osl up
BATCH_TOKENS, SEQUENCES = 8192, 1024  # vLLM's defaults for a server on H100 and H200 (EngineArgs)
SEQUENCES_H100_MINIMAX = 256


@dataclass(frozen=True)
class Served:
    """A model. listed: as models.csv has its shape; "": it has not, and `config` has. stored: precision of its weights.

    stored: the checkpoint's own, where its source says a precision at all.
    """

    stored: str = "fp8"
    listed: str = ""
    config: Mapping[str, Any] | None = None


MODELS = {
    "Qwen/Qwen3-32B": Served(listed="Qwen/Qwen3-32B"),
    "meta-llama/Llama-3.1-70B": Served(listed="meta-llama/Llama-3.1-70B-Instruct"),
    "nvidia/Llama-3.1-8B-Instruct-FP8": Served(listed="meta-llama/Llama-3.1-8B-Instruct"),
    # 8 bits with a scale for each 128 x 128 weights; shapes: the config.json of these checkpoints.
    "MiniMaxAI/MiniMax-M2.5": Served("fp8-block", config={
        "num_hidden_layers": 62, "hidden_size": 3072, "num_attention_heads": 48, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 1536, "num_local_experts": 256, "num_experts_per_tok": 8,
        "vocab_size": 200064,
    }),
    "Qwen/Qwen3-235B-A22B-FP8": Served("fp8-block", config={
        "num_hidden_layers": 94, "hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_experts": 128,
        "num_experts_per_tok": 8, "vocab_size": 151936,
    }),
    "openai/gpt-oss-120b": Served("mxfp4", config={  # every other layer attends to the last 128 tokens
        "num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4,
        "vocab_size": 201088, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 18,
    }),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Of an engine and its load generator. words: where they are from, for readers."""

    words: str
    kv_precision: str = "bf16"
    asynchronous: bool = True
    batch_tokens: int = BATCH_TOKENS
    sequences: int = SEQUENCES  # 0: the number of clients
    shortest_share: float = SHORTEST_SHARE


INFERENCEX = (
    "no prefix caching (all prompts differ), 10 requests a client, lengths uniform from 80 % of isl and osl. Whether "
    "exactly this ran on the day is not recorded"
)
NVIDIA = Settings(
    "nothing but vLLM 0.12.0, tensor and expert parallelism and lengths is stated: vLLM's defaults for a server on "
    "such GPUs (max_num_batched_tokens 8192, max_num_seqs 1024; EngineArgs), weights as the checkpoint of that name "
    "has them, keys and values in 16 bits, fixed lengths, 10 requests a client",
    asynchronous=False,
    shortest_share=1.0,
)
OF_INFERENCEX = {
    "meta-llama/Llama-3.1-70B": Settings(
        "benchmarks/70b_fp8_h100_slurm.sh and 70b_fp8_h200_slurm.sh (SemiAnalysisAI/InferenceX 409e9a4, and its fork "
        "faradawn/InferenceMAX c198b20): 8-bit keys and values, asynchronous scheduling, max_num_batched_tokens 8192, "
        f"max_num_seqs the number of clients, {INFERENCEX}",
        kv_precision="fp8",
        sequences=0,
    ),
    "MiniMaxAI/MiniMax-M2.5": Settings(
        "benchmarks/single_node/minimaxm2.5_fp8_h100.sh and minimaxm2.5_fp8_h200.sh (SemiAnalysisAI/InferenceX 34bc7c4 "
        "and 1c3aa8b; a later one of H200, 0949de5, has 8-bit keys, more tokens a batch and other kernels): "
        "max_num_seqs 256 on H100, on H200 and of other options vLLM's defaults, keys and values in 16 bits, "
        "asynchronous scheduling by the version. H100: attention outside the CUDA graph (PIECEWISE), whose "
        f"launches are not modelled; {INFERENCEX}"
    ),
    "openai/gpt-oss-120b": Settings(
        "benchmarks/gptoss_fp4_h100.sh and gptoss_fp4_h200.sh (SemiAnalysisAI/InferenceX 1fc5d73 and 16cd955): "
        "asynchronous scheduling, max_num_batched_tokens 8192, max_num_seqs the number of clients, keys and values in "
        "16 bits; experts by Marlin's kernels, where the tables have Triton's. Attention by the data sheet: no table "
        f"has heads of 64; {INFERENCEX}",
        sequences=0,
    ),
}


def settings_of(model: str, of_nvidia: bool, gpu: str, clients: int) -> Settings:
    """What a point's source says of its engine, or vLLM's defaults where it says nothing."""
    settings = NVIDIA if of_nvidia else OF_INFERENCEX[model]
    if model == "MiniMaxAI/MiniMax-M2.5" and gpu == "h100_sxm":
        return dataclasses.replace(settings, sequences=SEQUENCES_H100_MINIMAX)
    return settings if settings.sequences else dataclasses.replace(settings, sequences=clients)
