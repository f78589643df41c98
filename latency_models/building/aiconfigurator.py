"""aiconfigurator's kernel tables: matrix products, attention and all-reduce as vLLM runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from servegym.latency_models.building.shapes import ModelShape
from servegym.latency_models.building.tables import Curve, Surface, read_table

if TYPE_CHECKING:
    import pandas as pd

A100 = "aiconfigurator_a100_sxm_vllm0.14.0"
H100 = "aiconfigurator_h100_sxm_vllm0.24.0"
H200 = "aiconfigurator_h200_sxm_vllm0.24.0"
ALL_REDUCED_BYTES = 2  # of a number: all of them were measured in bfloat16
OWN_ALL_REDUCE_BYTES = 8 * 2**20  # vLLM's limit for its own all-reduce; NCCL's from there


def products(tables: str) -> pd.DataFrame:
    """The 16-bit matrix products, one row a measured (m, n, k)."""
    table = read_table(f"{tables}_gemm_perf")
    return table[table["gemm_dtype"] == "bfloat16"]


def product(measured: pd.DataFrame, n: int, k: int) -> Callable[[np.ndarray], np.ndarray]:
    """Seconds of an [m, k] x [k, n] product over m, where n or k alone may lie between two measured ones."""
    between = "n" if k in set(measured["k"]) else "k"
    other, wanted = ("k", n) if between == "n" else ("n", k)
    rows = measured[measured[other] == (k if other == "k" else n)]
    widths = np.array(sorted(set(rows[between])))
    low = widths[widths <= wanted][-1]
    high = widths[widths >= wanted][0]
    below, above = (Curve.of(rows[rows[between] == width].set_index("m")["latency"] * 1e-3) for width in (low, high))
    share = (wanted - low) / (high - low) if high > low else 0.0
    return lambda m: below.at(m) * (1.0 - share) + above.at(m) * share


def head(measured: pd.DataFrame, shape: ModelShape, devices: int = 1) -> Callable[[np.ndarray], np.ndarray]:
    """The LM head over its rows: the widest measured product, scaled to a device's share of the vocabulary."""
    widest = int(measured["n"].max())
    seconds = product(measured, widest, shape.hidden)
    return lambda rows: seconds(rows) * (shape.vocabulary / devices / widest)


def attention(tables: str, shape: ModelShape, devices: int = 1) -> tuple[Surface, Surface]:
    """Prefill over (requests, chunk tokens) and decode over (requests, cached tokens), s per layer.

    Of the heads that one of the devices has: nothing is scaled.
    """
    return (
        _attention(read_table(f"{tables}_context_attention_perf"), "isl", shape, devices),
        _attention(read_table(f"{tables}_generation_attention_perf"), "step", shape, devices),
    )


def _attention(table: pd.DataFrame, length: str, shape: ModelShape, devices: int) -> Surface:
    """Linear between the two nearest numbers of query heads, where that of a device was not measured."""
    table = table[
        (table["num_key_value_heads"] == shape.kv_heads // devices)
        & (table["head_dim"] == shape.head_dim)
        & (table["kv_cache_dtype"] == "bfloat16")
    ]
    heads = shape.heads // devices
    measured = np.array(sorted(set(table["num_heads"])))
    low, high = measured[measured <= heads][-1], measured[measured >= heads][0]
    below, above = (_of_heads(table[table["num_heads"] == number], length) for number in (low, high))
    if low == high:
        return below
    share = (heads - low) / (high - low)
    return Surface(
        below.parameters,
        tuple(
            Curve(one.x, one.y * (1.0 - share) + other.at(one.x) * share)
            for one, other in zip(below.curves, above.curves, strict=True)
        ),
    )


def _of_heads(table: pd.DataFrame, length: str) -> Surface:
    return Surface.of(
        {requests: Curve.of(rows.set_index(length)["latency"] * 1e-3) for requests, rows in table.groupby("batch_size")}
    )


def all_reduce(tables: str, devices: int) -> Curve:
    """vLLM's own all-reduce inside a CUDA graph, s over the bytes of the message.

    From 8 MiB the table has NCCL's, which vLLM calls from there, and which begins with a step. Those rows are left out,
    so that the curve does not rise towards them too early.
    """
    seconds = all_reduces(tables, devices)
    return Curve.of(seconds[seconds.index < OWN_ALL_REDUCE_BYTES])


def all_reduces(tables: str, devices: int) -> pd.Series:
    """Seconds of an all-reduce inside a CUDA graph, vLLM's own or NCCL's, by the bytes of the message.

    The table's `message_size` counts numbers, not bytes: its collector reduces a bfloat16 tensor of so many. Taken for
    bytes, the links would be half as fast as they are.
    """
    table = read_table(f"{tables}_custom_allreduce_perf")
    table = table[(table["num_gpus"] == devices) & (table["backend"] == "vllm_graph")]
    return (table.set_index(table["message_size"] * ALL_REDUCED_BYTES)["latency"] * 1e-3).sort_index()
