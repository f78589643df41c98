"""All-reduces of tensor-parallel devices, and the cost of cached tokens on an A100, from operator tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from servegym.latency_models.building import aiconfigurator
from servegym.latency_models.building.composition import Seconds
from servegym.latency_models.building.shapes import DecoderShape, ModelShape
from servegym.latency_models.building.tables import Curve, read_table

if TYPE_CHECKING:
    import pandas as pd

VIDUR_ATTENTION = "vidur_a100_llama3_8b_attention_excerpt"
VIDUR_ALL_REDUCE = "vidur_a100_dgx_all_reduce"
MEASURED_HEADS = 32  # of VIDUR_ATTENTION
FILLING_CHUNK_TOKENS = 512  # attention of a shorter chunk leaves part of the device idle
REDUCED = ("o", "down", "experts")  # operators with an all-reduce over several devices


def reduced(linear: Mapping[str, Seconds], reduce_s: Seconds) -> Mapping[str, Seconds]:
    """Add an all-reduce to each operator that projects back to the hidden states."""

    def then_reduced(seconds: Seconds) -> Seconds:
        return lambda tokens: seconds(tokens) + reduce_s(tokens)

    return {name: then_reduced(seconds) if name in REDUCED else seconds for name, seconds in linear.items()}


def all_reduce_s(tables: str, shape: DecoderShape, devices: int, nccl: Curve | None = None) -> Seconds:
    """Make the time of an all-reduce of the hidden states, s over tokens: vLLM's own for short messages, else NCCL's.

    nccl: NCCL's curve; None: Vidur's for A100s, and that of `tables` for others. Raises ProfileError if there is none.
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
    """Read NCCL's all-reduce on a DGX of A100s, s over the bytes of the message."""
    table = read_table(VIDUR_ALL_REDUCE)
    table = table[(table["num_workers"] == devices) & (table["devices_per_node"] == devices)]
    return _led_on(table.set_index("size")["time_stats.all_reduce.median"] * 1e-3)


def _led_on(points: pd.Series) -> Curve:
    """Make a curve that continues past its points with the slope of their upper half.

    Between the last two points, messages 128 KiB apart, some times fall by chance.
    """
    longest = points.index.max()
    upper = points[points.index >= longest / 2]
    slope = np.polyfit(upper.index.to_numpy(dtype=float), upper.to_numpy(), 1)[0]
    points = points.groupby(level=0).mean()
    points[2 * longest] = points[longest] + slope * longest
    return Curve.of(points)


def a100_cached_slope_s(shape: ModelShape, devices: int) -> float:
    """Fit the growth of a layer's time with chunk x cached tokens, over chunks that fill the device.

    The slope was measured on 32 heads; heads take equal time, and are computed side by side.
    """
    table = read_table(VIDUR_ATTENTION, ".csv")
    table = table[table["is_prefill"] & (table["prefill_chunk_size"] >= FILLING_CHUNK_TOKENS)]
    pairs = table["prefill_chunk_size"] * table["kv_cache_size"]
    slope = float(np.polyfit(pairs, table["attn_time_median_ms"] * 1e-3, 1)[0])
    return slope * (shape.heads / devices / MEASURED_HEADS)
