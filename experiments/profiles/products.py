"""Devices composed of aiconfigurator's single operators, in 16 bits."""

from dataclasses import replace

from servegym.latency_models.building.composition import Composition
from servegym.latency_models.building.data_sheet import DataSheet
from servegym.latency_models.building.kernel_tables import KernelTables
from servegym.latency_models.building.product_devices import decoder
from servegym.latency_models.building.shapes import MixtureShape, ModelShape
from servegym.latency_models.building.specifications import Device

H100 = "aiconfigurator_h100_sxm_vllm0.24.0"
H200 = "aiconfigurator_h200_sxm_vllm0.24.0"


def dense(
    tables: str, chip: Device, shape: ModelShape, devices: int = 1, cached_slope_s: float | None = None
) -> Composition:
    """A decoder without experts, in 16 bits. cached_slope_s: None: the table's own."""
    kernels = KernelTables(tables, DataSheet(chip, chip.peak_flop_per_s))
    return _with_slope(decoder(kernels, chip, shape, devices), cached_slope_s)


def mixture(tables: str, chip: Device, shape: MixtureShape, cached_slope_s: float | None = None) -> Composition:
    """A mixture of experts on one device, in 16 bits. Its experts are derived from single products, not measured."""
    kernels = KernelTables(tables, DataSheet(chip, chip.peak_flop_per_s))
    return _with_slope(decoder(kernels, chip, shape), cached_slope_s)


def _with_slope(composition: Composition, cached_slope_s: float | None) -> Composition:
    return composition if cached_slope_s is None else replace(composition, cached_slope_s=cached_slope_s)
