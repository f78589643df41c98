"""Composes devices of single operators, from tables or a data sheet.

Norms, rotary embedding and activation have no table: each takes a launch, and memory traffic at a share of the
bandwidth.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from servegym.errors import ProfileError
from servegym.latency_models.building.all_reduce import reduced
from servegym.latency_models.building.composition import ATTENTION, Composition, Seconds
from servegym.latency_models.building.data_sheet import Attention, added, elementwise, scaled
from servegym.latency_models.building.shapes import DecoderShape, MixtureShape, ModelShape, StateShape
from servegym.latency_models.building.specifications import Device


class Kernels(Protocol):
    """Operators of one layer on each of the devices, s: `DataSheet`, `KernelTables`."""

    def product(self, n: int, k: int) -> Seconds: ...

    def head(self, shape: DecoderShape, devices: int) -> Seconds: ...

    def attention(self, shape: ModelShape, devices: int) -> tuple[Attention, Attention, float]: ...

    def experts(self, shape: MixtureShape, tensor_parallel: int, expert_parallel: int) -> Seconds: ...

    def scan(self, shape: StateShape, devices: int) -> tuple[Attention, Attention, float]: ...

    def all_reduce(self, shape: DecoderShape, devices: int) -> Seconds: ...


def decoder(
    kernels: Kernels, chip: Device, shape: ModelShape, devices: int = 1, expert_parallel: int = 1
) -> Composition:
    """Compose a decoder on `devices` tensor-parallel devices. expert_parallel: devices over which whole experts are
    spread; 1: each expert is cut.

    Raises ProfileError if heads or widths cannot be cut.
    """
    check_cut(shape, devices, expert_parallel)
    rotated = (shape.heads + shape.kv_heads) * shape.head_dim // devices
    key_heads = max(1, shape.kv_heads // devices)
    width = (shape.heads // devices + 2 * key_heads) * shape.head_dim
    linear = {
        "qkv": added(norm(chip, shape), kernels.product(width, shape.hidden)),
        ATTENTION: elementwise(chip, 2 * rotated),
        "o": kernels.product(shape.hidden, shape.heads * shape.head_dim // devices),
    }
    if isinstance(shape, MixtureShape):
        gate = kernels.product(shape.experts, shape.hidden), elementwise(chip, 2 * shape.experts)
        experts = kernels.experts(shape, devices // expert_parallel, expert_parallel)
        if shape.shared:
            experts = added(experts, *_mlp(kernels, chip, shape, shape.shared // devices))
        linear["gate"], linear["experts"] = added(norm(chip, shape), *gate), experts
        if shape.dense_layers:  # means over all layers
            share = shape.expert_layers / shape.layers
            dense = _mlp(kernels, chip, shape, shape.dense // devices)
            linear["gate"] = added(norm(chip, shape), scaled(share, *gate))
            linear["experts"] = added(scaled(share, experts), scaled(1.0 - share, *dense))
    else:
        up, *down = _mlp(kernels, chip, shape, shape.intermediate // devices)
        linear |= {"gate_up": added(norm(chip, shape), up), "down": added(*down)}
    if devices > 1:
        linear = dict(reduced(linear, kernels.all_reduce(shape, devices)))
    prefill, decode, slope_s = kernels.attention(shape, devices)
    if shape.windowed:
        prefill, decode, slope_s = _windowed(shape, prefill, decode, slope_s)
    return Composition(shape.layers, linear, kernels.head(shape, devices), prefill, decode, slope_s)


def _mlp(kernels: Kernels, chip: Device, shape: ModelShape, inner: int) -> tuple[Seconds, Seconds, Seconds]:
    """Time the products up, the activation and the product down of an MLP of `inner` width."""
    return (
        kernels.product(2 * inner, shape.hidden),
        elementwise(chip, 3 * inner),
        kernels.product(shape.hidden, inner),
    )


def _windowed(
    shape: ModelShape, prefill: Attention, decode: Attention, slope_s: float
) -> tuple[Attention, Attention, float]:
    """Average attention over the layers, some of which attend to the last tokens only.

    With a window W a chunk of n tokens has n W pairs, as many as a chunk of sqrt(2 n W) tokens without one.
    """
    share, window = shape.windowed / shape.layers, float(shape.window)

    def mean(attention: Attention, within: Seconds) -> Attention:
        return lambda requests, tokens: (
            (1.0 - share) * attention(requests, tokens) + share * attention(requests, within(tokens))
        )

    return (
        mean(prefill, lambda tokens: np.minimum(tokens, np.sqrt(2.0 * window * tokens))),
        mean(decode, lambda tokens: np.minimum(tokens, window)),
        (1.0 - share) * slope_s,
    )


def check_cut(shape: ModelShape, devices: int, expert_parallel: int) -> None:
    """Raise ProfileError if the model cannot be cut in this way."""
    if devices < 1 or shape.heads % devices:
        raise ProfileError(f"{devices} devices cannot share {shape.heads} attention heads evenly")
    if max(shape.kv_heads, devices) % min(shape.kv_heads, devices):
        raise ProfileError(f"{devices} devices cannot share {shape.kv_heads} key heads evenly, nor copy them")
    if expert_parallel not in (1, devices):
        raise ProfileError(f"expert parallel {expert_parallel}: it should be 1, or {devices} as the tensor parallelism")
    if expert_parallel > 1 and not isinstance(shape, MixtureShape):
        raise ProfileError(f"expert parallel {expert_parallel}: the model has no experts")


def norm(chip: Device, shape: DecoderShape) -> Seconds:
    """Time a norm fused with the residual's addition: two vectors in, two out."""
    return elementwise(chip, 4 * shape.hidden)
