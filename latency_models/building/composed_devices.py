"""The devices whose batch times are composed from operator tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from servegym.latency_models.building import aiconfigurator
from servegym.latency_models.building.composition import Composition, Seconds
from servegym.latency_models.building.shapes import LLAMA_3_8B, ModelShape
from servegym.latency_models.building.tables import Curve, read_table
from servegym.latency_models.least_squares import fit_relative

if TYPE_CHECKING:
    import pandas as pd

VIDUR_ATTENTION = "vidur_a100_llama3_8b_attention_excerpt"
VIDUR_ALL_REDUCE = "vidur_a100_dgx_all_reduce"
A6000_LAYERS = "llmservingsim_a6000_llama31_8b_tp1_layers"
A6000_ATTENTION = "llmservingsim_a6000_llama31_8b_tp1_attention"
FILLING_CHUNK_TOKENS = 512  # a shorter chunk leaves part of the device idle in attention
# What a layer's operators are called in the tables, in the order in which they run. A norm belongs to the product after
# it, as does the activation; the residual's addition ends the layer.
VIDUR_OPERATORS = {
    "qkv": ("input_layernorm", "attn_pre_proj"),
    "attention": ("attn_rope",),
    "o": ("attn_post_proj",),
    "gate_up": ("post_attention_layernorm", "mlp_up_proj"),
    "down": ("mlp_act", "mlp_down_proj", "add"),
}
A6000_OPERATORS = {
    "qkv": ("input_layernorm", "q_proj", "k_proj", "v_proj"),
    "attention": ("rope",),
    "o": ("o_proj",),
    "gate_up": ("post_layernorm", "gate_proj", "up_proj"),
    "down": ("act_fn", "down_proj"),
}
REDUCED = ("o", "down", "experts")  # all-reduced over the devices, where there are several
A6000_REQUESTS = (1, 2, 4, 8, 16, 32)


def a100(linear_table: str, shape: ModelShape, devices: int = 1) -> Composition:
    """Vidur's linear operators, all of a layer in the model's own shapes, with aiconfigurator's attention.

    aiconfigurator has matrix products only, at 21 token counts, and not in the widths of these models' MLPs.
    On several devices each layer has two all-reduces; gathering the logits is left out.
    """
    linear = vidur_linear(linear_table, devices)
    head = aiconfigurator.head(aiconfigurator.products(aiconfigurator.A100), shape, devices)
    prefill, decode = aiconfigurator.attention(aiconfigurator.A100, shape, devices)
    slope = a100_cached_slope_s(shape, devices)
    if devices > 1:
        linear = reduced(linear, all_reduce_s(aiconfigurator.A100, shape, devices))
    return Composition(shape.layers, linear, head, prefill.at, decode.at, slope)


def vidur_linear(linear_table: str, devices: int) -> Mapping[str, Seconds]:
    """The operators of a layer on one of the devices, before any all-reduce."""
    table = read_table(linear_table)
    table = table[table["num_tensor_parallel_workers"] == devices].set_index("num_tokens")
    return {
        name: Curve.of(table[[f"time_stats.{part}.median" for part in parts]].sum(axis=1) * 1e-3).at
        for name, parts in VIDUR_OPERATORS.items()
    }


def reduced(linear: Mapping[str, Seconds], reduce_s: Seconds) -> Mapping[str, Seconds]:
    """The operators of a layer on several devices: each projection back to the hidden states ends in an all-reduce."""

    def then_reduced(seconds: Seconds) -> Seconds:
        return lambda tokens: seconds(tokens) + reduce_s(tokens)

    return {name: then_reduced(seconds) if name in REDUCED else seconds for name, seconds in linear.items()}


def all_reduce_s(tables: str, shape: ModelShape, devices: int, nccl: Curve | None = None) -> Seconds:
    """Seconds of an all-reduce of the hidden states over tokens: vLLM's own while it is short enough, else NCCL's.

    nccl: NCCL's; None: Vidur's for A100s, and of the same table for others. Raises ProfileError where there is none.
    """
    own = aiconfigurator.all_reduce(tables, devices)
    if nccl is None:
        a100s = tables == aiconfigurator.A100
        nccl = nccl_all_reduce(devices) if a100s else aiconfigurator.nccl_of(tables, devices)

    def seconds(tokens: np.ndarray) -> np.ndarray:
        message_bytes = tokens * shape.hidden * 2
        short = message_bytes < aiconfigurator.OWN_ALL_REDUCE_BYTES
        return np.where(short, own.at(message_bytes), nccl.at(message_bytes))

    return seconds


def nccl_all_reduce(devices: int) -> Curve:
    """NCCL's all-reduce on a DGX of A100s, s over the bytes of the message."""
    table = read_table(VIDUR_ALL_REDUCE)
    table = table[(table["num_workers"] == devices) & (table["devices_per_node"] == devices)]
    return _led_on(table.set_index("size")["time_stats.all_reduce.median"] * 1e-3)


def _led_on(points: pd.Series) -> Curve:
    """A curve that goes on past its points with the slope of their upper half.

    Messages were measured 128 KiB apart: from the last but one to the last the times of some fall, by chance.
    """
    longest = points.index.max()
    upper = points[points.index >= longest / 2]
    slope = np.polyfit(upper.index.to_numpy(dtype=float), upper.to_numpy(), 1)[0]
    points = points.groupby(level=0).mean()
    points[2 * longest] = points[longest] + slope * longest
    return Curve.of(points)


def a100_cached_slope_s(shape: ModelShape, devices: int) -> float:
    """Growth of a layer's time with chunk x cached tokens, over chunks that fill the device.

    The slope was measured on 32 heads; heads are worked on alike and side by side.
    """
    table = read_table(VIDUR_ATTENTION, ".csv")
    table = table[table["is_prefill"] & (table["prefill_chunk_size"] >= FILLING_CHUNK_TOKENS)]
    pairs = table["prefill_chunk_size"] * table["kv_cache_size"]
    slope = float(np.polyfit(pairs, table["attn_time_median_ms"] * 1e-3, 1)[0])
    return slope * (shape.heads / devices / LLAMA_3_8B.heads)


def a6000(shape: ModelShape = LLAMA_3_8B) -> Composition:
    """LLMServingSim's operators, up to 2048 tokens and 65,536 cached tokens.

    Its attention table counts all keys of a call: those of a decode batch together, and a prefill chunk with
    what is cached before it. Prefills of a batch are taken one after the other: only single ones were measured.
    """
    layers = read_table(A6000_LAYERS).pivot_table(index="input", columns="layer_name", values="latency(ns)") * 1e-9
    linear = {name: Curve.of(layers[list(parts)].sum(axis=1)).at for name, parts in A6000_OPERATORS.items()}
    own = Curve.of(layers["attn"])
    table = read_table(A6000_ATTENTION)
    return Composition(
        shape.layers,
        linear,
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
    table = table[table["kv_cache_size"] >= table["batch_size"]]  # with fewer, a request has no cached token
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
