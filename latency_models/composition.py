"""Batch times composed from operator tables: layers x (linear operators + attention) + LM head.

Device time only: the CPU's share of an iteration is not in it. The decodes of a batch are taken at their
mean cached length and the prefills at the root mean square of their chunks, the lengths at which attention
tables have points; so the spread of lengths inside a batch is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from servegym.latency_models.shapes import LLAMA_3_8B, ModelShape
from servegym.latency_models.tables import Curve, Surface, read_table

if TYPE_CHECKING:
    import pandas as pd

A100_TABLES = "aiconfigurator_a100_sxm_vllm0.14.0"
H100_TABLES = "aiconfigurator_h100_sxm_vllm0.24.0"
VIDUR_LINEAR = "vidur_a100_llama3_8b_linear_ops"
VIDUR_ATTENTION = "vidur_a100_llama3_8b_attention_excerpt"
FILLING_CHUNK_TOKENS = 512  # a shorter chunk leaves part of the device idle in attention
# Norms, rotary embedding and activation have no table for the H100: a launch each, and memory traffic at
# 80 % of 3.35 TB/s.
LAUNCH_S = 2e-6
H100_BYTES_PER_S = 0.8 * 3.35e12


@dataclass(frozen=True)
class Composition:
    """Operator times in seconds: of one layer, and of the LM head.

    linear_s: (tokens) -> s, all of a layer but attention. head_s: (rows) -> s, one row a request.
    prefill_attention_s: over (requests, chunk tokens), nothing cached. decode_attention_s: over (requests,
    cached tokens). cached_slope_s: per chunk token and token cached before it.
    """

    layers: int
    linear_s: Callable[[np.ndarray], np.ndarray]
    head_s: Callable[[np.ndarray], np.ndarray]
    prefill_attention_s: Surface
    decode_attention_s: Surface
    cached_slope_s: float

    def duration_s(self, batches: np.ndarray) -> np.ndarray:
        """Seconds, float64[n], of a BATCH array[n] of batches that are not empty."""
        prefills, decodes = batches["prefill_requests"], batches["decode_requests"]
        attention = self.cached_slope_s * batches["prefill_tokens_cached"]
        some = prefills > 0
        length = np.sqrt(batches["prefill_tokens_squared"][some] / prefills[some])
        attention[some] += self.prefill_attention_s.at(prefills[some], length)
        some = decodes > 0
        length = batches["decode_cached_tokens"][some] / decodes[some]
        attention[some] += self.decode_attention_s.at(decodes[some], length)
        layer = self.linear_s(batches["prefill_tokens"] + decodes) + attention
        return self.layers * layer + self.head_s(prefills + decodes)


def a100_llama3_8b() -> Composition:
    """Vidur's linear operators, all of a layer in the model's own shapes, with aiconfigurator's attention.

    aiconfigurator has matrix products only, at 21 token counts, and not in the widths of this model's MLP.
    """
    table = read_table(VIDUR_LINEAR)
    table = table[table["num_tensor_parallel_workers"] == 1].set_index("num_tokens")
    operators = [name for name in table if name.endswith(".median") and ".emb." not in name]
    linear = Curve.of(table[operators].sum(axis=1) * 1e-3)
    prefill, decode = _attention(A100_TABLES, LLAMA_3_8B)
    head = _head(_gemm(A100_TABLES), LLAMA_3_8B)
    return Composition(LLAMA_3_8B.layers, linear.at, head, prefill, decode, _vidur_cached_slope_s())


def _vidur_cached_slope_s() -> float:
    """Growth of a layer's time with chunk x cached tokens, over chunks that fill the device."""
    table = read_table(VIDUR_ATTENTION, ".csv")
    table = table[table["is_prefill"] & (table["prefill_chunk_size"] >= FILLING_CHUNK_TOKENS)]
    pairs = table["prefill_chunk_size"] * table["kv_cache_size"]
    return float(np.polyfit(pairs, table["attn_time_median_ms"] * 1e-3, 1)[0])


def h100(shape: ModelShape = LLAMA_3_8B) -> Composition:
    """aiconfigurator's matrix products and attention (vLLM 0.24.0), with estimated element-wise operators.

    The cached-prefix slope is that of the longest prefill, whose tokens attend to half its length on average.
    """
    gemm = _gemm(H100_TABLES)
    products = [
        _product(gemm, shape.qkv_width, shape.hidden),
        _product(gemm, shape.hidden, shape.heads * shape.head_dim),
        _product(gemm, 2 * shape.intermediate, shape.hidden),
        _product(gemm, shape.hidden, shape.intermediate),
    ]
    prefill, decode = _attention(H100_TABLES, shape)
    longest = prefill.curves[0]

    def linear_s(tokens: np.ndarray) -> np.ndarray:
        return sum(product(tokens) for product in products) + _elementwise_s(shape, tokens)

    slope = longest.y[-1] / (longest.x[-1] ** 2 / 2)
    return Composition(shape.layers, linear_s, _head(gemm, shape), prefill, decode, float(slope))


def _elementwise_s(shape: ModelShape, tokens: np.ndarray) -> np.ndarray:
    """Two norms fused with the residual's addition (2 vectors in, 2 out), rotary embedding, activation."""
    rotated = (shape.heads + shape.kv_heads) * shape.head_dim
    numbers = 2 * 4 * shape.hidden + 2 * rotated + 3 * shape.intermediate
    return 4 * LAUNCH_S + tokens * (2 * numbers / H100_BYTES_PER_S)


def _gemm(tables: str) -> pd.DataFrame:
    table = read_table(f"{tables}_gemm_perf")
    return table[table["gemm_dtype"] == "bfloat16"]


def _product(gemm: pd.DataFrame, n: int, k: int) -> Callable[[np.ndarray], np.ndarray]:
    """Seconds of an [m, k] x [k, n] product over m, where n or k alone may lie between two measured ones."""
    between = "n" if k in set(gemm["k"]) else "k"
    other, wanted = ("k", n) if between == "n" else ("n", k)
    rows = gemm[gemm[other] == (k if other == "k" else n)]
    measured = np.array(sorted(set(rows[between])))
    low = measured[measured <= wanted][-1]
    high = measured[measured >= wanted][0]
    below, above = (
        Curve.of(rows[rows[between] == value].set_index("m")["latency"] * 1e-3) for value in (low, high)
    )
    share = (wanted - low) / (high - low) if high > low else 0.0
    return lambda m: below.at(m) * (1.0 - share) + above.at(m) * share


def _head(gemm: pd.DataFrame, shape: ModelShape) -> Callable[[np.ndarray], np.ndarray]:
    """The LM head over its rows: the widest measured product, scaled to the vocabulary."""
    widest = int(gemm["n"].max())
    product = _product(gemm, widest, shape.hidden)
    return lambda rows: product(rows) * (shape.vocabulary / widest)


def _attention(tables: str, shape: ModelShape) -> tuple[Surface, Surface]:
    """Prefill over (requests, chunk tokens) and decode over (requests, cached tokens), s per layer."""
    return (
        _attention_surface(read_table(f"{tables}_context_attention_perf"), "isl", shape),
        _attention_surface(read_table(f"{tables}_generation_attention_perf"), "step", shape),
    )


def _attention_surface(table: pd.DataFrame, length: str, shape: ModelShape) -> Surface:
    table = table[
        (table["num_heads"] == shape.heads)
        & (table["num_key_value_heads"] == shape.kv_heads)
        & (table["head_dim"] == shape.head_dim)
        & (table["kv_cache_dtype"] == "bfloat16")
    ]
    return Surface.of(
        {
            requests: Curve.of(rows.set_index(length)["latency"] * 1e-3)
            for requests, rows in table.groupby("batch_size")
        }
    )
