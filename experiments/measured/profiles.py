"""The profile of what was measured: from kernel tables of its GPU, or layer tables of GPU and model."""

import functools
from pathlib import Path
from typing import Any

import pandas as pd

from servegym.errors import ProfileError
from servegym.evaluation.measured.runs import Run
from servegym.latency_models.building.huggingface import Model
from servegym.latency_models.profile import Profile, parse_profile

GPUS = {
    "H100-SXM-80GB": "h100",
    "A100-SXM-80GB": "a100",
    "L40S-48GB": "l40s",
    "RTX-4090-24GB": "rtx4090",
    "RTX-PRO-6000-Blackwell-96GB": "rtxpro6000",
}
LAYERS = {  # gpu, model -> the tables of its layers
    ("rtx4090", "meta-llama/Llama-3.1-8B"): "rtx4090_llama31_8b",
    ("rtxpro6000", "Qwen/Qwen3-32B"): "rtxpro6000_qwen3_32b",
    ("rtxpro6000", "Qwen/Qwen3-30B-A3B-Instruct-2507"): "rtxpro6000_qwen3_30b_a3b",
}
ROOFLINE, LONG_BY_VLLM = "roofline", "long all-reduces by vLLM's table"
FIELDS = {
    "hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "vocab": "vocab_size",
    "intermediate": "intermediate_size", "moe_intermediate": "moe_intermediate_size",
    "experts": "num_local_experts", "experts_per_token": "num_experts_per_tok",
}  # fmt: skip


def model_named(name: str, folder: Path, precision: str = "bf16", kv_precision: str = "bf16") -> Model:
    """The shape that models.csv states, with weights and cached keys of a precision. Raises ProfileError for others."""
    from servegym.latency_models.building.huggingface import model_of

    table = pd.read_csv(folder / "models.csv").set_index("model")
    if name not in table.index:
        raise ProfileError(f"models.csv has no {name}")
    row = table.loc[name]
    document: dict[str, Any] = {FIELDS[key]: int(row[key]) for key in FIELDS if not pd.isna(row[key])}
    document["tie_word_embeddings"] = row["tied_embeddings"] is True
    return model_of(document, name, precision, f"models.csv, {name}", kv_precision)


@functools.cache
def composed_profile(
    gpu_name: str, model: Model, devices: int, by: str | None = None, expert_parallel: int = 1, skew: float = 0.0
) -> Profile:
    """By kernel tables of the GPU, or its data sheet (by: ROOFLINE); without the CPU's time of a step.

    expert_parallel: 1, or `devices`; skew: of the experts' routing.
    """
    from servegym.latency_models.building import from_config
    from servegym.latency_models.building.gpus import gpu

    document = from_config.build(gpu(gpu_name), model, devices, expert_parallel, by, cpu_overhead_s=0.0, skew=skew)
    return parse_profile(document, document["name"])


def profile_of(run: Run, folder: Path, by: str | None = None) -> Profile:
    """Without the CPU's time of a step: an engine's terms have that.

    by: ROOFLINE, instead of tables; or LONG_BY_VLLM.
    """
    return _profile(run.gpu, run.model, run.tensor_parallel, run.engines, run.expert_parallel, folder, by)


@functools.cache
def _profile(
    measured_gpu: str, name: str, devices: int, engines: int, experts: int, folder: Path, by: str | None
) -> Profile:
    from experiments.measured.layer_profiles import build_of_layers
    from servegym.latency_models.building.gpus import gpu

    if measured_gpu not in GPUS:
        raise ProfileError(f"{measured_gpu}: no data sheet of this GPU is known; known: {', '.join(GPUS)}")
    known, model = gpu(GPUS[measured_gpu]), model_named(name, folder)
    tables = LAYERS.get((known.name, name))
    if tables is None or by == ROOFLINE:
        return composed_profile(known.name, model, devices, by)
    ranks = experts if engines > 1 else 1
    document = build_of_layers(known, model, tables, devices, ranks, by == LONG_BY_VLLM)
    return parse_profile(document, document["name"])
