"""The profiles composed from operator tables."""

from collections.abc import Callable, Mapping
from functools import partial

from experiments.profiles import llmservingsim_a6000
from experiments.profiles.device_specs import DEVICE_SPECS, device
from experiments.profiles.llmservingsim_a6000 import a6000
from experiments.profiles.products import H100, H200, dense, mixture
from experiments.profiles.recipe import LLMSERVINGSIM, ShippedRecipe
from experiments.profiles.shapes import LLAMA_3_8B, LLAMA_3_70B, QWEN3_30B_A3B, QWEN25_14B
from experiments.profiles.vidur_a100 import a100
from servegym.latency_models.building import aiconfigurator, all_reduce
from servegym.latency_models.building.composed import (
    AICONFIGURATOR,
    STATEMENT,
    VIDUR,
    VIDUR_COPY,
    composed,
)  # fmt: skip
from servegym.latency_models.building.composition import Composition
from servegym.latency_models.building.recipe import OPERATOR_TABLES, PARTLY_DERIVED
from servegym.latency_models.building.shapes import ModelShape
from servegym.latency_models.sampling import BatchRange

DERIVED = (
    " The experts are in no table: their time is derived from the speed of single products of their widths and from "
    "the bytes of the weights they read, and the error of that is not known."
)
ALL_REDUCES = (
    "two all-reduces a layer, vLLM's own (in a CUDA graph; its table counts messages in numbers of two bytes) below "
    "8 MiB and NCCL's on a DGX from there"
)
HOPPER_METHOD = (
    "aiconfigurator's matrix products, attention and LM head (vLLM 0.24.0); norms, rotary embedding and "
    "activation from memory traffic; cached-prefix slope from the longest prefill."
)
QWEN25_METHOD = (
    "aiconfigurator's matrix products (to 8192 tokens; widths of the MLP between measured ones), attention (20 query "
    "heads between 16 and 24) and LM head (vLLM 0.14.0); norms, rotary embedding and activation from memory traffic; "
    f"cached-prefix slope by the share of heads of Vidur's; {ALL_REDUCES}."
)
QWEN3_METHOD = (
    "aiconfigurator's matrix products (to 8192 tokens), attention and LM head (vLLM 0.14.0); norms, rotary embedding, "
    "choice of experts and activation from memory traffic; cached-prefix slope Vidur's. Experts, derived: the longer "
    "of the products, at the speed of the longest measured ones of an expert's widths, and of reading the weights of "
    "the experts that some token goes to, each token choosing 8 of 128 uniformly. The norms of queries and keys are "
    "left out."
)
A6000_METHOD = (
    "LLMServingSim's operators of a layer and LM head, to 2048 tokens; its attention (a FlashAttention kernel that "
    "does not share keys among query heads, slower than an engine's): prefills of a batch one after the other, decodes "
    "at so much a request and a cached token, fitted for 1 to 32 requests; cached-prefix slope from chunks of 256 "
    "tokens and more."
)


def _aiconfigurator(tables: str, devices: int = 1) -> tuple[Mapping[str, str], ...]:
    kinds = ("gemm", "context_attention", "generation_attention", "custom_allreduce")[: 4 if devices > 1 else 3]
    return tuple({"table": f"{tables}_{kind}_perf", **AICONFIGURATOR} for kind in kinds)


def _recipe(
    name: str, model: str, hardware: str, specification: str, shape: ModelShape, compose: Callable[[], Composition],
    method: str, sources: tuple[Mapping[str, str], ...], limits: BatchRange, devices: int = 1,
    derived: tuple[str, ...] = (), estimator: str = "linear",
) -> ShippedRecipe:  # fmt: skip
    return ShippedRecipe(
        name=name,
        title=f"{model} on {'one ' if devices == 1 else f'{devices} x '}{hardware}",
        hardware=hardware,
        specification=specification,
        model=f"{model} (bfloat16)",
        shape=shape,
        make=partial(composed, compose, derived),
        basis=PARTLY_DERIVED if derived else OPERATOR_TABLES,
        statement=f"{STATEMENT}{DERIVED if derived else ''}",
        method=f"{method} Random batches, decodes at their mean cached length, prefills at the root mean square of "
        "their chunks.",
        sources=(*sources, DEVICE_SPECS),
        tensor_parallel=devices,
        limits=limits,
        estimator=estimator,
    )


def _a100(model: str, shape: ModelShape, devices: int, cached_tokens_in_batch: int) -> ShippedRecipe:
    size = model.removeprefix("Llama-3-").lower()
    linear = f"vidur_a100_llama3_{size}_linear_ops"
    method = "Vidur's linear operators and cached-prefix slope, aiconfigurator's attention and LM head (vLLM 0.14.0)"
    sources: tuple[Mapping[str, str], ...] = (
        {"table": linear, **VIDUR},
        {"table": all_reduce.VIDUR_ATTENTION, **VIDUR_COPY},
        *_aiconfigurator(aiconfigurator.A100, devices),
    )
    if devices > 1:
        method += (
            f"; attention of the {shape.heads // devices} query and {shape.kv_heads // devices} key heads of a device "
            f"as measured, the slope and the LM head by the device's share; {ALL_REDUCES}"
        )
        sources = (*sources, {"table": all_reduce.VIDUR_ALL_REDUCE, **VIDUR})
    return _recipe(
        f"a100-llama3-{size}" + (f"-tp{devices}" if devices > 1 else ""),
        model, "NVIDIA A100-SXM4-80GB", "A100-SXM4", shape, partial(a100, linear, shape, devices),
        f"{method}.", sources, BatchRange(cached_tokens_in_batch=cached_tokens_in_batch), devices,
    )  # fmt: skip


def _a100_products(
    name: str, model: str, shape: ModelShape, compose: Callable[[], Composition], method: str,
    cached_tokens_in_batch: int, devices: int = 1, derived: tuple[str, ...] = (), estimator: str = "linear",
) -> ShippedRecipe:  # fmt: skip
    sources: tuple[Mapping[str, str], ...] = (
        {"table": all_reduce.VIDUR_ATTENTION, **VIDUR_COPY},
        *_aiconfigurator(aiconfigurator.A100, devices),
    )
    if devices > 1:
        sources = (*sources, {"table": all_reduce.VIDUR_ALL_REDUCE, **VIDUR})
    return _recipe(
        name, model, "NVIDIA A100-SXM4-80GB", "A100-SXM4", shape, compose, method, sources,
        BatchRange(cached_tokens_in_batch=cached_tokens_in_batch), devices, derived,
        estimator,
    )  # fmt: skip


def _qwen25_14b() -> Composition:
    slope_s = all_reduce.a100_cached_slope_s(QWEN25_14B, 2)
    return dense(aiconfigurator.A100, device("A100-SXM4"), QWEN25_14B, 2, slope_s)


def _qwen3_30b_a3b() -> Composition:
    slope_s = all_reduce.a100_cached_slope_s(QWEN3_30B_A3B, 1)
    return mixture(aiconfigurator.A100, device("A100-SXM4"), QWEN3_30B_A3B, slope_s)


def _hopper(
    name: str, hardware: str, specification: str, tables: str, cached_tokens_in_batch: int, estimator: str = "linear"
) -> ShippedRecipe:
    def compose() -> Composition:
        return dense(tables, device(specification), LLAMA_3_8B)

    return _recipe(
        name, "Llama-3-8B", hardware, specification, LLAMA_3_8B, compose, HOPPER_METHOD, _aiconfigurator(tables),
        BatchRange(cached_tokens_in_batch=cached_tokens_in_batch), estimator=estimator,
    )  # fmt: skip


# Cached tokens in a batch: about what the devices' memory holds.
RECIPES = (
    _a100("Llama-3-8B", LLAMA_3_8B, 1, 440_000),
    _a100("Llama-3-8B", LLAMA_3_8B, 2, 1_000_000),
    _a100("Llama-3-8B", LLAMA_3_8B, 4, 2_000_000),
    _a100("Llama-3-70B", LLAMA_3_70B, 4, 480_000),
    _a100("Llama-3-70B", LLAMA_3_70B, 8, 1_300_000),
    _recipe(
        "a6000-llama3.1-8b", "Llama-3.1-8B", "NVIDIA RTX A6000", "RTX-A6000", LLAMA_3_8B, a6000,
        A6000_METHOD,
        (
            {"table": llmservingsim_a6000.A6000_LAYERS, **LLMSERVINGSIM},
            {"table": llmservingsim_a6000.A6000_ATTENTION, **LLMSERVINGSIM},
        ),
        BatchRange(2048, 8, 256, 16384, 200_000),
    ),
    _a100_products(
        "a100-qwen2.5-14b-tp2", "Qwen2.5-14B", QWEN25_14B, _qwen25_14b, QWEN25_METHOD, 600_000, devices=2
    ),
    _a100_products(
        "a100-qwen3-30b-a3b", "Qwen3-30B-A3B", QWEN3_30B_A3B, _qwen3_30b_a3b, QWEN3_METHOD, 130_000,
        derived=("experts",), estimator="table",  # a batch reads ever fewer new experts: linear would be 32 % off
    ),
    _hopper("h100-llama3-8b", "NVIDIA H100-SXM5-80GB", "H100-SXM", H100, 440_000),
    # PolyServe's device, with PolyServe's estimator, less the bias of the printed one.
    _hopper("h200-llama3-8b", "NVIDIA H200-SXM5-141GB", "H200-SXM", H200, 880_000, "table-shares"),
)  # fmt: skip
