"""Devices composed of aiconfigurator's matrix products and attention, as vLLM runs them.

Norms, rotary embedding and activation have no table: a launch each, and memory traffic at a share of the bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from servegym.latency_models.building import aiconfigurator
from servegym.latency_models.building.composed_devices import reduced
from servegym.latency_models.building.composition import ATTENTION, Composition, Seconds
from servegym.latency_models.building.shapes import MixtureShape, ModelShape
from servegym.latency_models.building.specifications import Device

if TYPE_CHECKING:
    import pandas as pd

LAUNCH_S = 2e-6
TRAFFIC_EFFICIENCY = 0.8
NUMBER_BYTES = 2  # weights and activations have 16 bits


def dense(
    tables: str, chip: Device, shape: ModelShape, devices: int = 1, cached_slope_s: float | None = None
) -> Composition:
    """A decoder without experts.

    cached_slope_s: None: that of the longest prefill, whose tokens attend to half its length on average.
    """
    measured = aiconfigurator.products(tables)
    inner = shape.intermediate // devices
    linear = {
        **_around_attention(measured, chip, shape, devices),
        "gate_up": _sum(_norm(chip, shape), aiconfigurator.product(measured, 2 * inner, shape.hidden)),
        "down": _sum(_elementwise(chip, 3 * inner), aiconfigurator.product(measured, shape.hidden, inner)),
    }
    return _composition(tables, shape, devices, linear, cached_slope_s)


def mixture(tables: str, chip: Device, shape: MixtureShape, cached_slope_s: float | None = None) -> Composition:
    """A mixture of experts on one device. Its experts are in no table: their time is derived, not measured."""
    measured = aiconfigurator.products(tables)
    choosing = _elementwise(chip, 2 * shape.experts)
    linear = {
        **_around_attention(measured, chip, shape, 1),
        "gate": _sum(_norm(chip, shape), aiconfigurator.product(measured, shape.experts, shape.hidden), choosing),
        "experts": _experts(measured, chip, shape),
    }
    return _composition(tables, shape, 1, linear, cached_slope_s)


def _composition(
    tables: str, shape: ModelShape, devices: int, linear: Mapping[str, Seconds], cached_slope_s: float | None
) -> Composition:
    prefill, decode = aiconfigurator.attention(tables, shape, devices)
    longest = prefill.curves[0]
    if cached_slope_s is None:
        cached_slope_s = float(longest.y[-1] / (longest.x[-1] ** 2 / 2))
    head = aiconfigurator.head(aiconfigurator.products(tables), shape, devices)
    return Composition(shape.layers, reduced(linear, shape, devices), head, prefill.at, decode.at, cached_slope_s)


def _around_attention(measured: pd.DataFrame, chip: Device, shape: ModelShape, devices: int) -> dict[str, Seconds]:
    rotated = (shape.heads + shape.kv_heads) * shape.head_dim // devices
    attended = shape.heads * shape.head_dim // devices
    return {
        "qkv": _sum(_norm(chip, shape), aiconfigurator.product(measured, shape.qkv_width // devices, shape.hidden)),
        ATTENTION: _elementwise(chip, 2 * rotated),
        "o": aiconfigurator.product(measured, shape.hidden, attended),
    }


def _experts(measured: pd.DataFrame, chip: Device, shape: MixtureShape) -> Seconds:
    """The longer of the products and of reading the chosen weights; then the activation and the weighted sum.

    Products: at the speed of the longest measured ones of an expert's widths. Weights: of all experts that some
    token goes to, when each token's choice is uniform; experts x (1 - (1 - chosen / experts)^tokens) on average.
    """
    rows = float(measured["m"].max())
    up, down = (
        aiconfigurator.product(measured, 2 * shape.intermediate, shape.hidden),
        aiconfigurator.product(measured, shape.hidden, shape.intermediate),
    )
    row_s = float((up(np.array([rows])) + down(np.array([rows])))[0]) / rows
    read_s = shape.expert_bytes / (chip.memory_bytes_per_s * TRAFFIC_EFFICIENCY)
    activation = _elementwise(chip, 3 * shape.intermediate * shape.chosen)
    weighted_sum = _elementwise(chip, (shape.chosen + 1) * shape.hidden)

    def products(tokens: np.ndarray) -> np.ndarray:
        used = shape.experts * (1.0 - (1.0 - shape.chosen / shape.experts) ** tokens)
        return 2 * LAUNCH_S + np.maximum(shape.chosen * tokens * row_s, used * read_s)

    return _sum(products, activation, weighted_sum)


def _norm(chip: Device, shape: ModelShape) -> Seconds:
    """Fused with the residual's addition: two vectors in, two out."""
    return _elementwise(chip, 4 * shape.hidden)


def _elementwise(chip: Device, numbers: int) -> Seconds:
    """A kernel that reads or writes so many numbers a token."""
    token_s = NUMBER_BYTES * numbers / (chip.memory_bytes_per_s * TRAFFIC_EFFICIENCY)
    return lambda tokens: LAUNCH_S + tokens * token_s


def _sum(*parts: Seconds) -> Seconds:
    return lambda tokens: sum((part(tokens) for part in parts), np.zeros(len(tokens)))
