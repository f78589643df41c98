"""Reads aiconfigurator's kernel tables: matrix products, attention, experts and all-reduces, measured under vLLM."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from servegym.errors import ProfileError
from servegym.latency_models.building.shapes import DecoderShape, MixtureShape, ModelShape
from servegym.latency_models.building.tables import Curve, Surface, read_table

if TYPE_CHECKING:
    import pandas as pd

A100 = "aiconfigurator_a100_sxm_vllm0.14.0"
ALL_REDUCED_BYTES = 2  # bytes of a number: all were measured in bfloat16
OWN_ALL_REDUCE_BYTES = 8 * 2**20  # vLLM's limit for its own all-reduce; NCCL's from there


def products(tables: str, dtype: str = "bfloat16") -> pd.DataFrame:
    """Read the matrix products with weights of this type, one row for each measured (m, n, k)."""
    table = read_table(f"{tables}_gemm_perf")
    return table[table["gemm_dtype"] == dtype]


def product(measured: pd.DataFrame, n: int, k: int) -> Callable[[np.ndarray], np.ndarray]:
    """Make the time of an [m, k] x [k, n] product, s over m; n and k may lie between two measured ones.

    A product narrower than all measured ones takes the time of the narrowest. Raises ProfileError for a wider one.
    """
    if k not in set(measured["k"]) and n not in set(measured["n"]):
        low, high, share = _between(np.array(sorted(set(measured["k"]))), k, "deep")
        shallow, deep = product(measured, n, low), product(measured, n, high)
        return lambda m: shallow(m) * (1.0 - share) + deep(m) * share
    between = "n" if k in set(measured["k"]) else "k"
    other, wanted = ("k", n) if between == "n" else ("n", k)
    rows = measured[measured[other] == (k if other == "k" else n)]
    low, high, share = _between(np.array(sorted(set(rows[between]))), wanted, "wide" if between == "n" else "deep")
    below, above = (Curve.of(rows[rows[between] == width].set_index("m")["latency"] * 1e-3) for width in (low, high))
    return lambda m: below.at(m) * (1.0 - share) + above.at(m) * share


def _between(measured: np.ndarray, wanted: int, what: str) -> tuple[int, int, float]:
    """Find the two measured values around the wanted one, and the weight of the higher."""
    if wanted > measured[-1]:
        raise ProfileError(f"a product {wanted} {what} is not in the tables, which end at {measured[-1]}")
    high = measured[measured >= wanted][0]
    low = measured[measured <= wanted][-1] if wanted >= measured[0] else high
    return low, high, (wanted - low) / (high - low) if high > low else 0.0


def head(measured: pd.DataFrame, shape: DecoderShape, devices: int = 1) -> Callable[[np.ndarray], np.ndarray]:
    """Make the time of the LM head, s over rows: the widest measured product, scaled to a device's vocabulary share."""
    widest = int(measured["n"].max())
    seconds = product(measured, widest, shape.hidden)
    return lambda rows: seconds(rows) * (shape.vocabulary / devices / widest)


def attention(tables: str, shape: ModelShape, devices: int = 1) -> tuple[Surface, Surface]:
    """Read prefill over (requests, chunk tokens) and decode over (requests, cached tokens), s a layer.

    The tables were measured with the heads of one device, and are not scaled. Decodes with k times the key heads that
    were measured are looked up as k times the requests: a kernel computes each request and key head by itself. Raises
    IndexError if a table has no such heads.
    """
    decodes = read_table(f"{tables}_generation_attention_perf")
    key_heads, most = max(1, shape.kv_heads // devices), int(decodes["num_key_value_heads"].max())
    fold = max(1, key_heads // most)
    narrow = dataclasses.replace(shape, heads=shape.heads // fold, kv_heads=max(1, shape.kv_heads // fold))
    decode = _attention(decodes, "step", narrow, devices)
    return (
        _attention(read_table(f"{tables}_context_attention_perf"), "isl", shape, devices),
        Surface(decode.parameters / fold, decode.curves),
    )


def _attention(table: pd.DataFrame, length: str, shape: ModelShape, devices: int) -> Surface:
    """Interpolate between the two nearest numbers of query heads, if a device's own was not measured."""
    table = table[
        (table["num_key_value_heads"] == max(1, shape.kv_heads // devices))
        & (table["head_dim"] == shape.head_dim)
        & (table["kv_cache_dtype"] == ("bfloat16" if shape.kv_number_bytes == 2 else "fp8"))
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


def experts(
    tables: str, shape: MixtureShape, tensor_parallel: int, expert_parallel: int, dtype: str, skew: float = 0.0
) -> Curve | None:
    """Read fused experts of a layer, s over tokens; None: not measured.

    skew: exponent of the power law by which tokens choose experts; 0: evenly, or the most even that was measured.
    Raises ProfileError for a skew that was not measured.
    """
    try:
        table = read_table(f"{tables}_moe_perf")
    except ProfileError:
        return None
    table = table[
        (table["hidden_size"] == shape.hidden)
        & (table["inter_size"] == shape.intermediate)
        & (table["num_experts"] == shape.experts)
        & (table["topk"] == shape.chosen)
        & (table["moe_tp_size"] == tensor_parallel)
        & (table["moe_ep_size"] == expert_parallel)
        & (table["moe_dtype"] == dtype)
    ]
    if not len(table):
        return None
    measured = sorted(set(table["distribution"]))  # balanced, power_law_1.01, power_law_1.2
    routing = f"power_law_{skew:g}" if skew else measured[0]
    if routing not in measured:
        raise ProfileError(f"{tables} has no experts with a skew of {skew:g}; it has {', '.join(measured)}")
    return Curve.of(table[table["distribution"] == routing].set_index("num_tokens")["latency"] * 1e-3)


def all_reduce(tables: str, devices: int) -> Curve:
    """Read vLLM's own all-reduce inside a CUDA graph, s over the bytes of the message.

    From 8 MiB on vLLM calls NCCL, whose time begins with a step. Those rows are left out, so that the curve does not
    rise towards them too early.
    """
    seconds = all_reduces(tables, devices)
    return Curve.of(seconds[seconds.index < OWN_ALL_REDUCE_BYTES])


def nccl_of(tables: str, devices: int) -> Curve:
    """Read NCCL's all-reduce, which vLLM calls from 8 MiB on; s over the bytes of the message, same table."""
    seconds = all_reduces(tables, devices)
    return Curve.of(seconds[seconds.index >= OWN_ALL_REDUCE_BYTES])


def all_reduces(tables: str, devices: int) -> pd.Series:
    """Read the time of an all-reduce inside a CUDA graph, vLLM's own or NCCL's, s by the bytes of the message.

    The table's `message_size` counts bfloat16 numbers, not bytes: as bytes the links would be half as fast as they are.
    Raises ProfileError for a number of devices that was not measured.
    """
    table = read_table(f"{tables}_custom_allreduce_perf")
    table = table[(table["num_gpus"] == devices) & (table["backend"] == "vllm_graph")]
    if not len(table):
        raise ProfileError(f"{tables} has no all-reduce of {devices} devices")
    return (table.set_index(table["message_size"] * ALL_REDUCED_BYTES)["latency"] * 1e-3).sort_index()
