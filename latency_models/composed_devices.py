"""The devices whose batch times are composed, each from the tables at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from servegym.latency_models import aiconfigurator
from servegym.latency_models.composition import Composition
from servegym.latency_models.least_squares import fit_relative
from servegym.latency_models.shapes import LLAMA_3_8B, ModelShape
from servegym.latency_models.tables import Curve, read_table

if TYPE_CHECKING:
    import pandas as pd

VIDUR_ATTENTION = "vidur_a100_llama3_8b_attention_excerpt"
VIDUR_ALL_REDUCE = "vidur_a100_dgx_all_reduce"
A6000_LAYERS = "llmservingsim_a6000_llama31_8b_tp1_layers"
A6000_ATTENTION = "llmservingsim_a6000_llama31_8b_tp1_attention"
FILLING_CHUNK_TOKENS = 512  # a shorter chunk leaves part of the device idle in attention
OWN_ALL_REDUCE_BYTES = 8 * 2**20  # vLLM's limit for its own all-reduce; NCCL's from there
# Norms, rotary embedding and activation have no table for the H100 and the H200: a launch each, and memory
# traffic at a share of the bandwidth.
LAUNCH_S = 2e-6
TRAFFIC_EFFICIENCY = 0.8
A6000_REQUESTS = (1, 2, 4, 8, 16, 32)
A6000_OUTSIDE_LAYERS = ("attn", "embedding", "final_layernorm", "lm_head")


def a100(linear_table: str, shape: ModelShape, devices: int = 1) -> Composition:
    """Vidur's linear operators, all of a layer in the model's own shapes, with aiconfigurator's attention.

    aiconfigurator has matrix products only, at 21 token counts, and not in the widths of these models' MLPs.
    On several devices each layer has two all-reduces; gathering the logits is left out.
    """
    table = read_table(linear_table)
    table = table[table["num_tensor_parallel_workers"] == devices].set_index("num_tokens")
    operators = [name for name in table if name.endswith(".median") and ".emb." not in name]
    linear = Curve.of(table[operators].sum(axis=1) * 1e-3)
    reduce_s = _all_reduce(shape, devices) if devices > 1 else np.zeros_like

    def linear_s(tokens: np.ndarray) -> np.ndarray:
        return linear.at(tokens) + 2 * reduce_s(tokens)

    head = aiconfigurator.head(aiconfigurator.products(aiconfigurator.A100), shape, devices)
    prefill, decode = aiconfigurator.attention(aiconfigurator.A100, shape, devices)
    # The slope was measured on 32 heads; heads are worked on alike and side by side.
    slope = _vidur_cached_slope_s() * (shape.heads / devices / LLAMA_3_8B.heads)
    return Composition(shape.layers, linear_s, head, prefill.at, decode.at, slope)


def _all_reduce(shape: ModelShape, devices: int) -> Callable[[np.ndarray], np.ndarray]:
    """Seconds of an all-reduce of the hidden states over tokens: vLLM's own while it is short enough, else NCCL's."""
    own = aiconfigurator.all_reduce(aiconfigurator.A100, devices)
    table = read_table(VIDUR_ALL_REDUCE)
    table = table[(table["num_workers"] == devices) & (table["devices_per_node"] == devices)]
    nccl = Curve.of(table.set_index("size")["time_stats.all_reduce.median"] * 1e-3)

    def seconds(tokens: np.ndarray) -> np.ndarray:
        message_bytes = tokens * shape.hidden * 2
        return np.where(message_bytes < OWN_ALL_REDUCE_BYTES, own.at(message_bytes), nccl.at(message_bytes))

    return seconds


def _vidur_cached_slope_s() -> float:
    """Growth of a layer's time with chunk x cached tokens, over chunks that fill the device."""
    table = read_table(VIDUR_ATTENTION, ".csv")
    table = table[table["is_prefill"] & (table["prefill_chunk_size"] >= FILLING_CHUNK_TOKENS)]
    pairs = table["prefill_chunk_size"] * table["kv_cache_size"]
    return float(np.polyfit(pairs, table["attn_time_median_ms"] * 1e-3, 1)[0])


def hopper(tables: str, memory_bytes_per_s: float, shape: ModelShape = LLAMA_3_8B) -> Composition:
    """aiconfigurator's matrix products and attention (vLLM 0.24.0), with estimated element-wise operators.

    The cached-prefix slope is that of the longest prefill, whose tokens attend to half its length on average.
    """
    measured = aiconfigurator.products(tables)
    products = [
        aiconfigurator.product(measured, shape.qkv_width, shape.hidden),
        aiconfigurator.product(measured, shape.hidden, shape.heads * shape.head_dim),
        aiconfigurator.product(measured, 2 * shape.intermediate, shape.hidden),
        aiconfigurator.product(measured, shape.hidden, shape.intermediate),
    ]
    prefill, decode = aiconfigurator.attention(tables, shape)
    longest = prefill.curves[0]

    def linear_s(tokens: np.ndarray) -> np.ndarray:
        elementwise_s = _elementwise_s(shape, tokens, memory_bytes_per_s * TRAFFIC_EFFICIENCY)
        return sum(product(tokens) for product in products) + elementwise_s

    slope = float(longest.y[-1] / (longest.x[-1] ** 2 / 2))
    return Composition(shape.layers, linear_s, aiconfigurator.head(measured, shape), prefill.at, decode.at, slope)


def _elementwise_s(shape: ModelShape, tokens: np.ndarray, bytes_per_s: float) -> np.ndarray:
    """Two norms fused with the residual's addition (2 vectors in, 2 out), rotary embedding, activation."""
    rotated = (shape.heads + shape.kv_heads) * shape.head_dim
    numbers = 2 * 4 * shape.hidden + 2 * rotated + 3 * shape.intermediate
    return 4 * LAUNCH_S + tokens * (2 * numbers / bytes_per_s)


def a6000(shape: ModelShape = LLAMA_3_8B) -> Composition:
    """LLMServingSim's operators, up to 2048 tokens and 65,536 cached tokens.

    Its attention table counts all keys of a call: those of a decode batch together, and a prefill chunk with
    what is cached before it. Prefills of a batch are taken one after the other: only single ones were measured.
    """
    layers = read_table(A6000_LAYERS).pivot_table(index="input", columns="layer_name", values="latency(ns)") * 1e-9
    linear = Curve.of(layers.drop(columns=list(A6000_OUTSIDE_LAYERS)).sum(axis=1))
    own = Curve.of(layers["attn"])
    table = read_table(A6000_ATTENTION)
    return Composition(
        shape.layers,
        linear.at,
        Curve.of(layers["lm_head"]).at,
        lambda requests, length: requests * own.at(length),
        _a6000_decode(table[~table["is_prefill"]]),
        _a6000_cached_slope_s(table[table["is_prefill"]]),
    )


def _a6000_decode(table: pd.DataFrame) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Seconds over (requests, cached tokens of each): so much a request, and so much a cached token.

    Both are fitted for each number of requests up to 32, from where they stay: the table has few cached tokens for
    more, and a curve through its steps would not lead beyond them.
    """
    table = table[table["kv_cache_size"] >= table["batch_size"]]  # with fewer, a request has none
    fitted = []
    for requests in A6000_REQUESTS:
        rows = table[table["batch_size"] == requests]
        seconds = rows["time_stats.attn_decode.median"].to_numpy() * 1e-3
        fitted.append(fit_relative(rows[["batch_size", "kv_cache_size"]].to_numpy(dtype=float), seconds))
    a_request_s, a_token_s = np.transpose(fitted)

    def seconds_of(requests: np.ndarray, cached: np.ndarray) -> np.ndarray:
        per_token = np.interp(requests, A6000_REQUESTS, a_token_s) * cached
        return requests * (np.interp(requests, A6000_REQUESTS, a_request_s) + per_token)

    return seconds_of


def _a6000_cached_slope_s(table: pd.DataFrame) -> float:
    """Growth of a chunk's time with chunk x cached tokens, over the longer chunks; least squares through zero."""
    table = table[table["prefill_chunk_size"] >= FILLING_CHUNK_TOKENS // 2]
    seconds = table.groupby("prefill_chunk_size")["time_stats.attn_prefill.median"]
    grown = (table["time_stats.attn_prefill.median"] - seconds.transform("min")) * 1e-3
    pairs = table["prefill_chunk_size"] * (table["kv_cache_size"] - table["prefill_chunk_size"])
    return float((pairs * grown).sum() / (pairs**2).sum())
