"""A recipe for a profile: what it is made of, before its numbers are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from servegym.latency_models.building.operator_fit import OperatorFit
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.sampling import BatchRange

# Sources of a device model, the most reliable first.
OPERATOR_TABLES = "operator tables"
PARTLY_DERIVED = "operator tables, partly derived"
APPROXIMATE = "approximate: chip specification"


@dataclass(frozen=True)
class DeviceModel:
    """A device model without the CPU's overhead, and its known error.

    model: the form and its coefficients. error: parts of the profile's `error` about the device, by name.
    operators: of a layer; None: not known.
    """

    model: LatencyModel
    error: Mapping[str, Any] = field(default_factory=dict)
    operators: OperatorFit | None = None


@dataclass(frozen=True)
class Recipe:
    """A profile's description, and how its device model is made.

    hardware: the device; `tensor_parallel` of them hold the model. make: (BATCH array[n] of random batches, seed, the
    CPU's overhead in s) -> the device model. basis, statement, method, sources: for the profile's readers. limits: of
    the batches on which errors are measured. estimator: the form fitted to the device model, with which policies
    estimate.
    """

    name: str
    title: str
    hardware: str
    model: str
    make: Callable[[np.ndarray, int, float], DeviceModel]
    basis: str
    statement: str
    method: str
    sources: tuple[Mapping[str, str], ...]
    tensor_parallel: int = 1
    limits: BatchRange = field(default_factory=BatchRange)
    estimator: str = "linear"
