"""Operators by aiconfigurator's tables of a GPU, and by its data sheet where no table has them."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from servegym.errors import ProfileError
from servegym.latency_models.building import aiconfigurator
from servegym.latency_models.building.all_reduce import a100_cached_slope_s, all_reduce_s
from servegym.latency_models.building.composition import Seconds
from servegym.latency_models.building.data_sheet import (
    LAUNCH_S,
    TRAFFIC_EFFICIENCY,
    Attention,
    DataSheet,
    added,
    around_experts,
    elementwise,
    used_experts,
)
from servegym.latency_models.building.shapes import DecoderShape, MixtureShape, ModelShape, StateShape

T = TypeVar("T")
QUANTISED_NUMBERS = 1.5  # moved for each input of an 8-bit product: read in 16 bits, written in 8


class KernelTables:
    """The operators of a layer, measured; s on each of the devices. derived: names of those by the data sheet.

    expert_dtype: type of experts in their table; None: experts by single products. skew: of their routing.
    """

    def __init__(self, tables: str, sheet: DataSheet, expert_dtype: str | None = None, skew: float = 0.0):
        self.tables = tables
        self.sheet = sheet
        self.expert_dtype = expert_dtype
        self.skew = skew
        self.wide = aiconfigurator.products(tables)
        self.measured = self.wide if sheet.number_bytes == 2 else aiconfigurator.products(tables, "fp8")
        self.derived: list[str] = []

    def product(self, n: int, k: int) -> Seconds:
        if self.sheet.number_bytes not in (1, 2) or not len(self.measured):
            return self._by_data_sheet("products", self.sheet.product(n, k))
        measured = aiconfigurator.product(self.measured, n, k)
        if self.sheet.number_bytes == 2:
            return measured
        return added(elementwise(self.sheet.chip, QUANTISED_NUMBERS * k), measured)

    def head(self, shape: DecoderShape, devices: int) -> Seconds:
        return aiconfigurator.head(self.wide, shape, devices)

    def attention(self, shape: ModelShape, devices: int) -> tuple[Attention, Attention, float]:
        """Time prefill and decode of a layer, and the slope of a chunk's token with one cached before it.

        The slope of A100s is Vidur's; of others that of the longest prefill, whose tokens attend to half of it.
        """
        try:
            prefill, decode = aiconfigurator.attention(self.tables, shape, devices)
        except IndexError:
            return self._by_data_sheet("attention", self.sheet.attention(shape, devices))
        if self.tables == aiconfigurator.A100:
            return prefill.at, decode.at, a100_cached_slope_s(shape, devices)
        longest = prefill.curves[0]
        return prefill.at, decode.at, float(longest.y[-1] / (longest.x[-1] ** 2 / 2))

    def experts(self, shape: MixtureShape, tensor_parallel: int, expert_parallel: int) -> Seconds:
        if self.expert_dtype is not None:
            curve = aiconfigurator.experts(
                self.tables, shape, tensor_parallel, expert_parallel, self.expert_dtype, self.skew
            )
            if curve is not None:
                return curve.at
        if shape.bytes_of_expert_weights != 2 or expert_parallel > 1:
            return self._by_data_sheet("experts", self.sheet.experts(shape, tensor_parallel, expert_parallel))
        return self._by_data_sheet("experts", self._by_products(shape, tensor_parallel))

    def _by_products(self, shape: MixtureShape, devices: int) -> Seconds:
        """Time experts as the longer of their products, at the speed of the longest measured ones, and of reading the
        chosen weights."""
        rows = np.array([float(self.wide["m"].max())])
        inner = shape.intermediate // devices
        up = aiconfigurator.product(self.wide, 2 * inner, shape.hidden)
        down = aiconfigurator.product(self.wide, shape.hidden, inner)
        row_s = float((up(rows) + down(rows))[0]) / rows[0]
        read_s = shape.expert_bytes / devices / (self.sheet.chip.memory_bytes_per_s * TRAFFIC_EFFICIENCY)

        def products(tokens: np.ndarray) -> np.ndarray:
            return 2 * LAUNCH_S + np.maximum(shape.chosen * tokens * row_s, used_experts(shape, tokens) * read_s)

        return added(products, *around_experts(self.sheet.chip, shape, devices))

    def scan(self, shape: StateShape, devices: int) -> tuple[Attention, Attention, float]:
        return self._by_data_sheet("scan", self.sheet.scan(shape, devices))

    def all_reduce(self, shape: DecoderShape, devices: int) -> Seconds:
        try:
            return all_reduce_s(self.tables, shape, devices)
        except ProfileError:
            return self._by_data_sheet("all-reduce", self.sheet.all_reduce(shape, devices))

    def _by_data_sheet(self, name: str, operator: T) -> T:
        if name not in self.derived:
            self.derived.append(name)
        return operator
