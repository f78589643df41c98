"""A recipe for a shipped profile: what it is made of, before its numbers are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from servegym.latency_models.building.operator_fit import OperatorFit
from servegym.latency_models.building.shapes import DecoderShape
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.sampling import BatchRange

# What a device model is based on, from the most to the least reliable.
OPERATOR_TABLES = "operator tables"
PARTLY_DERIVED = "operator tables, partly derived"
PUBLISHED = "published coefficients"
SERVING_POINTS = "serving points"
APPROXIMATE = "approximate: chip specification"

GPUSTACK = {"repository": "gpustack/gpustack", "commit": "47277d79f4a5", "licence": "Apache-2.0"}
ENGINE_POINTS = {"table": "gpu_engine_points", **GPUSTACK}
DEVICE_SPECS = {
    "table": "device_specs", "repository": "Ascend/msmodeling", "commit": "84fec853d670", "licence": "facts",
}  # fmt: skip


@dataclass(frozen=True)
class DeviceModel:
    """A device model without the CPU's overhead, and what is known of its error.

    model: the form and its coefficients. error: parts of the profile's `error` about the device, by name.
    operators: of a layer, where they are known.
    """

    model: LatencyModel
    error: Mapping[str, Any] = field(default_factory=dict)
    operators: OperatorFit | None = None


@dataclass(frozen=True)
class Recipe:
    """One profile: what it is, how its device model is made, and how it came about.

    hardware: the device; `tensor_parallel` of them hold the model. specification: how its row in device_specs.csv
    begins. shape: None where it is the library's (`step_models`). make: (BATCH array[n] of random batches, seed, the
    CPU's overhead in s) -> the device model. basis, statement, method, sources: for the profile's readers. limits: of
    the batches that errors are measured on. estimator: the form fitted to the device model, for policies to believe in.
    overhead: whether the CPU's overhead comes on top; not where the device model holds it already.
    """

    name: str
    title: str
    hardware: str
    specification: str
    model: str
    shape: DecoderShape | None
    make: Callable[[np.ndarray, int, float], DeviceModel]
    basis: str
    statement: str
    method: str
    sources: tuple[Mapping[str, str], ...]
    tensor_parallel: int = 1
    limits: BatchRange = field(default_factory=BatchRange)
    estimator: str = "linear"
    overhead: bool = True
