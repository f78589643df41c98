"""Makes a profile of any decoder on any known GPU, composed of operators by the GPU's tables or its data sheet."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from servegym.errors import ProfileError
from servegym.latency_models.building.all_reduce import VIDUR_ALL_REDUCE, VIDUR_ATTENTION
from servegym.latency_models.building.composed import AICONFIGURATOR, STATEMENT, VIDUR, VIDUR_COPY, composed
from servegym.latency_models.building.composition import Composition
from servegym.latency_models.building.data_sheet import DataSheet
from servegym.latency_models.building.document import document_of
from servegym.latency_models.building.gpus import Gpu
from servegym.latency_models.building.huggingface import Model
from servegym.latency_models.building.kernel_tables import KernelTables
from servegym.latency_models.building.product_devices import Kernels, check_cut, decoder
from servegym.latency_models.building.recipe import APPROXIMATE, OPERATOR_TABLES, PARTLY_DERIVED, Recipe
from servegym.latency_models.building.shapes import DecoderShape, MixtureShape, ModelShape, StateShape
from servegym.latency_models.building.specifications import REQUEST_TOKENS, UTILISATION_PERCENT, kv_cache
from servegym.latency_models.building.state_devices import SCAN, check_state_cut, states
from servegym.latency_models.sampling import BatchRange

SYNCHRONOUS_S = 0.0009
SYNCHRONOUS_SOURCE = (
    "What vLLM 0.11.0 took for Qwen3-8B on an H100 beyond the composed device time (engine_overhead.py; gpustack): the "
    "loop waits for a step before it schedules the next."
)
TABLES, ROOFLINE = "tables", "roofline"
METHODS = {
    TABLES: "aiconfigurator's matrix products, attention, experts, all-reduces and LM head; norms, rotary "
    "embedding and activation from memory traffic",
    ROOFLINE: "FLOP and bytes of each operator at shares of the peaks that A100, H100, H200 and L40S reach on average "
    "in aiconfigurator's tables (building/data_sheet.py)",
}
ROOFLINE_STATEMENT = (
    "No operator was measured: the device form is compared with batch times from the data sheet. On GPUs with tables "
    "these are 8 to 17 % shorter on average than times from the tables, and up to 33 % off for a model on so many "
    "devices (building/roofline_error.py)."
)
MOST_CACHED = 2_000_000
EXPERT_DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp8-block": "fp8_block", "mxfp4": "w4a16_mxfp4"}  # in the tables


def kernels_of(gpu: Gpu, model: Model, by: str | None = None, skew: float = 0.0) -> tuple[Kernels, str]:
    """Return the operators, and the error class: `tables` if the GPU has any, else `roofline`. by: forces one of them.

    skew: of the experts' routing, as in `aiconfigurator.experts`. Raises ProfileError if tables are asked for and there
    are none, or none with this skew.
    """
    number_bytes = model.shape.number_bytes
    sheet = DataSheet(gpu.chip, gpu.flop_per_s(number_bytes), number_bytes)
    if by == TABLES and (gpu.tables is None or not os.environ.get("SERVEGYM_DATA")):
        raise ProfileError(
            f"there are no operator tables of {gpu.name}"
            if gpu.tables is None
            else "SERVEGYM_DATA is not set; it must name the folder that holds the operator tables"
        )
    if by == ROOFLINE or gpu.tables is None or not os.environ.get("SERVEGYM_DATA"):
        return sheet, ROOFLINE
    return KernelTables(gpu.tables, sheet, EXPERT_DTYPES.get(model.precision), skew), TABLES


def profile_name(gpu: Gpu, model: Model, devices: int, skew: float = 0.0) -> str:
    """Name a profile gpu-model-tpN, with the precision if it is not 16 bits, and the skew of experts."""
    words = re.sub(r"[^a-z0-9.]+", "-", model.name.split("/")[-1].lower()).strip("-.")
    precision = "" if model.precision == "bf16" else f"-{model.precision}"
    cached = "-kv8" if model.shape.kv_number_bytes == 1 else ""
    skewed = f"-skew{skew:g}" if skew else ""
    return f"{gpu.name}-{words or 'model'}{precision}{cached}{skewed}" + (f"-tp{devices}" if devices > 1 else "")


def build(
    gpu: Gpu, model: Model, devices: int = 1, expert_parallel: int = 1, by: str | None = None,
    cpu_overhead_s: float = SYNCHRONOUS_S, utilisation_percent: float = UTILISATION_PERCENT, skew: float = 0.0,
    request_tokens: int = REQUEST_TOKENS,
) -> dict[str, Any]:  # fmt: skip
    """Make the profile, a JSON document. Raises the errors of `kernels_of`, and ProfileError if the model does not
    fit."""
    if skew and not isinstance(model.shape, MixtureShape):
        raise ProfileError(f"an expert skew of {skew:g}: the model has no experts")
    _check_cut(model.shape, devices, expert_parallel)
    kv = kv_cache(model.shape, gpu.chip.memory_gib, devices, utilisation_percent, request_tokens)
    kernels, error_class = kernels_of(gpu, model, by, skew)
    compose = partial(_composition, kernels, gpu, model.shape, devices, expert_parallel)
    compose()  # notes in `derived` what the tables lack
    derived = tuple(getattr(kernels, "derived", ()))
    of_layers = tuple(name for name in derived if name in ("experts", "attention", SCAN))
    statement = f"Error class {error_class}. {STATEMENT if error_class == TABLES else ROOFLINE_STATEMENT}"
    if derived:
        statement += f" By the data sheet, not measured: {', '.join(derived)}."
    if skew and (error_class == ROOFLINE or "experts" in derived):
        statement += " Experts by the data sheet get their tokens evenly, whatever the skew."
    if isinstance(model.shape, StateShape) and error_class == ROOFLINE:
        statement += " Those tables have no states: their scan and the traffic of states were compared with nothing."
    if model.left_out:
        statement += f" Left out: {'; '.join(model.left_out)}."
    name = profile_name(gpu, model, devices, skew)
    recipe = Recipe(
        name=name,
        title=f"{model.name} on {'one' if devices == 1 else f'{devices} x'} {gpu.hardware}",
        hardware=gpu.hardware,
        model=f"{model.name} ({'bfloat16' if model.precision == 'bf16' else model.precision})",
        make=partial(composed, compose, of_layers),
        basis=APPROXIMATE if error_class == ROOFLINE else PARTLY_DERIVED if derived else OPERATOR_TABLES,
        statement=statement,
        method=f"{METHODS[error_class]}. Random batches, decodes at their mean cached length, prefills at the root "
        "mean square of their chunks.",
        sources=_sources(gpu, error_class, devices, isinstance(model.shape, MixtureShape)),
        tensor_parallel=devices,
        limits=BatchRange(cached_tokens_in_batch=min(MOST_CACHED, kv["total_blocks"] * kv["block_tokens"])),
        estimator="table" if isinstance(model.shape, MixtureShape) else "linear",
    )
    source = SYNCHRONOUS_SOURCE if cpu_overhead_s == SYNCHRONOUS_S else "As given."
    parallel = f" --ep {expert_parallel}" if expert_parallel > 1 else ""
    parallel += " --kv-precision fp8" if model.shape.kv_number_bytes == 1 else ""
    parallel += f" --expert-skew {skew:g}" if skew else ""
    parallel += f" --request-tokens {request_tokens}" if request_tokens != REQUEST_TOKENS else ""
    command = f"servegym profile from-config CONFIG.json --gpu {gpu.name} --tp {devices}{parallel} --by {error_class}"
    return document_of(recipe, kv, cpu_overhead_s, source, command=command)


def _check_cut(shape: DecoderShape, devices: int, expert_parallel: int) -> None:
    if isinstance(shape, StateShape):
        check_state_cut(shape, devices)
        if expert_parallel > 1:
            raise ProfileError(f"expert parallel {expert_parallel}: the model has no experts")
    if isinstance(shape, ModelShape):
        check_cut(shape, devices, expert_parallel)


def _composition(kernels: Kernels, gpu: Gpu, shape: DecoderShape, devices: int, expert_parallel: int) -> Composition:
    if isinstance(shape, StateShape):
        return states(kernels, gpu.chip, shape, devices)
    assert isinstance(shape, ModelShape)
    return decoder(kernels, gpu.chip, shape, devices, expert_parallel)


def _sources(gpu: Gpu, error_class: str, devices: int, experts: bool) -> tuple[Mapping[str, str], ...]:
    sheet = {"table": "gpus.json", "repository": gpu.source, "commit": "-", "licence": "facts"}
    if error_class == ROOFLINE:
        return (sheet,)
    kinds = ["gemm", "context_attention", "generation_attention"]
    kinds += ["custom_allreduce"] * (devices > 1) + ["moe"] * experts
    tables = tuple({"table": f"{gpu.tables}_{kind}_perf", **AICONFIGURATOR} for kind in kinds)
    if gpu.name == "a100":
        tables += ({"table": VIDUR_ATTENTION, **VIDUR_COPY},)
        tables += ({"table": VIDUR_ALL_REDUCE, **VIDUR},) * (devices > 1)
    return (*tables, sheet)
