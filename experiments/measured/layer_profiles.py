"""The profile of a model whose layers were measured on its GPU."""

import dataclasses
from functools import partial
from typing import Any

from experiments.measured.layer_devices import RTX_PRO_6000, layers
from experiments.profiles.recipe import LLMSERVINGSIM
from servegym.latency_models.building.composed import AICONFIGURATOR, STATEMENT, composed
from servegym.latency_models.building.document import document_of
from servegym.latency_models.building.from_config import MOST_CACHED, TABLES, profile_name
from servegym.latency_models.building.gpus import Gpu
from servegym.latency_models.building.huggingface import Model
from servegym.latency_models.building.recipe import OPERATOR_TABLES, Recipe
from servegym.latency_models.building.shapes import MixtureShape, ModelShape
from servegym.latency_models.building.specifications import kv_cache
from servegym.latency_models.sampling import BatchRange

LAYERS_METHOD = (
    "LLMServingSim's operators of a layer, experts, attention, LM head and sampler (inside vLLM 0.19.0, eager); "
    "decodes at their mean cached length, prefills one after the other; cached-prefix slope from chunks of 512 "
    "tokens and more"
)
NO_OVERHEAD = "Nothing is known of it."


def build_of_layers(
    gpu: Gpu, model: Model, name: str, devices: int = 1, expert_ranks: int = 1, long_by_vllm: bool = False
) -> dict[str, Any]:
    """The profile of a model whose layers were measured on this GPU, in tables `llmservingsim_<name>_...`.

    expert_ranks: data-parallel engines that share the experts; the profile is of one of them. long_by_vllm: see
    `layers`.
    """
    experts = isinstance(model.shape, MixtureShape)
    shape = model.shape
    assert isinstance(shape, ModelShape)
    held = kv_cache(_share_of_experts(shape, expert_ranks), gpu.chip.memory_gib, devices)
    kinds = ("layers", "attention", *(("moe",) if experts else ()))
    sources = [{"table": f"llmservingsim_{name}_{kind}", **LLMSERVINGSIM} for kind in kinds]
    if devices * expert_ranks > 1:
        sources.append({"table": f"{RTX_PRO_6000}_custom_allreduce_perf", **AICONFIGURATOR})
    title = profile_name(gpu, model, devices) + (f"-ep{expert_ranks}" if expert_ranks > 1 else "")
    recipe = Recipe(
        name=title,
        title=f"{model.name} on {'one' if devices == 1 else f'{devices} x'} {gpu.hardware}",
        hardware=gpu.hardware,
        model=f"{model.name} (bfloat16)",
        make=partial(composed, lambda: layers(name, shape, devices, expert_ranks, long_by_vllm), ()),
        basis=OPERATOR_TABLES,
        statement=f"Error class {TABLES}. {STATEMENT}",
        method=f"{LAYERS_METHOD}.",
        sources=tuple(sources),
        tensor_parallel=devices,
        limits=BatchRange(2048, 8, 256, 8192, min(MOST_CACHED, held["total_blocks"] * held["block_tokens"])),
        estimator="table" if experts else "linear",
    )
    return document_of(recipe, held, 0.0, NO_OVERHEAD, command="python -m experiments validate")


def _share_of_experts(shape: ModelShape, ranks: int) -> ModelShape:
    """What one of the ranks holds."""
    if not isinstance(shape, MixtureShape) or ranks == 1:
        return shape
    return dataclasses.replace(shape, experts=shape.experts // ranks)
