"""Devices of models of states alone, composed of single operators as those of `product_devices` are."""

from __future__ import annotations

import dataclasses

from servegym.errors import ProfileError
from servegym.latency_models.building.all_reduce import reduced
from servegym.latency_models.building.composition import Composition
from servegym.latency_models.building.data_sheet import added, elementwise
from servegym.latency_models.building.product_devices import Kernels, norm
from servegym.latency_models.building.shapes import StateShape
from servegym.latency_models.building.specifications import Device

SCAN = "scan"


def states(kernels: Kernels, chip: Device, shape: StateShape, devices: int = 1) -> Composition:
    """Compose Mamba or Mamba-2 layers on `devices` tensor-parallel devices.

    A batch reads and writes the state of each of its requests once. Raises ProfileError if channels cannot be cut.
    """
    check_state_cut(shape, devices)
    scan = shape.scan
    inner, convolved = scan.inner // devices, scan.convolved_on(devices)
    beside = elementwise(chip, 3 * inner)  # the gate; in Mamba-2 before a norm
    if scan.rank:  # Mamba projects step sizes, and what states read and write, from the convolved channels
        narrow = scan.rank + 2 * scan.state
        parts = [kernels.product(narrow, inner), kernels.product(inner, scan.rank)]
        if devices > 1:
            parts.append(kernels.all_reduce(dataclasses.replace(shape, hidden=narrow), devices))
        wide, beside = 2 * inner, added(*parts)
    else:
        wide = inner + convolved + scan.heads // devices
    linear = {
        "in": added(norm(chip, shape), kernels.product(wide, shape.hidden)),
        SCAN: beside,
        "o": kernels.product(shape.hidden, inner),
    }
    if devices > 1:
        linear = dict(reduced(linear, kernels.all_reduce(shape, devices)))
    prefill, decode, state_s = kernels.scan(shape, devices)
    head = kernels.head(shape, devices)
    return Composition(shape.layers, linear, head, prefill, decode, 0.0, state_s=state_s, mixer=SCAN)


def check_state_cut(shape: StateShape, devices: int) -> None:
    """Raise ProfileError if the model cannot be cut for this number of devices. One group is copied, as in vLLM."""
    groups = 0 if shape.scan.groups == 1 else shape.scan.groups
    for name, number in (("heads", shape.scan.heads), ("groups", groups), ("channels", shape.scan.inner)):
        if devices < 1 or number % devices:
            raise ProfileError(f"{devices} devices cannot share {number} {name} of states evenly")
