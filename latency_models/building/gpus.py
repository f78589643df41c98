"""GPUs by name: their data sheets and the operator tables of each, as gpus.json has them."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources

from servegym.errors import ProfileError, unknown_name
from servegym.latency_models.building.specifications import Device

FILE = resources.files("servegym.latency_models") / "gpus.json"


@dataclass(frozen=True)
class Gpu:
    """chip: its data sheet. fp8_flop_per_s: None: no such products. tables: how its operator tables begin; None: none.

    hardware: as profiles name it. source: of the data sheet.
    """

    name: str
    hardware: str
    chip: Device
    fp8_flop_per_s: float | None
    tables: str | None
    source: str

    def flop_per_s(self, number_bytes: float) -> float:
        """Peak of products with weights of so many bytes: those of 4 bits are computed in 16."""
        return self.fp8_flop_per_s if number_bytes == 1 and self.fp8_flop_per_s else self.chip.peak_flop_per_s


@functools.cache
def gpus() -> dict[str, Gpu]:
    """All known GPUs by name."""
    known = json.loads(FILE.read_text(encoding="utf-8"))["gpus"]
    return {
        name: Gpu(
            name,
            one["hardware"],
            Device(one["bf16_flop_per_s"], one["memory_gib"], one["memory_bytes_per_s"], one["link_bytes_per_s"]),
            one["fp8_flop_per_s"],
            one["tables"],
            one["source"],
        )
        for name, one in known.items()
    }


def gpu(name: str) -> Gpu:
    """Raises ProfileError for an unknown name."""
    if name not in gpus():
        raise ProfileError(unknown_name("GPU", name, gpus()))
    return gpus()[name]
