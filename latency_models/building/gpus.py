"""GPUs by name, with their data sheets and the names of their operator tables, from gpus.json."""

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
    """A GPU. hardware: its name in profiles. chip: its data sheet; source: of that. fp8_flop_per_s: None: it has no
    8-bit products. tables: beginning of the names of its operator tables; None: it has none.
    """

    name: str
    hardware: str
    chip: Device
    fp8_flop_per_s: float | None
    tables: str | None
    source: str

    def flop_per_s(self, number_bytes: float) -> float:
        """Return the peak of products with weights of this size; weights of 4 bits are computed in 16."""
        return self.fp8_flop_per_s if number_bytes == 1 and self.fp8_flop_per_s else self.chip.peak_flop_per_s


@functools.cache
def gpus() -> dict[str, Gpu]:
    """Load all known GPUs, by name."""
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
    """Find a GPU by name. Raises ProfileError for an unknown one."""
    if name not in gpus():
        raise ProfileError(unknown_name("GPU", name, gpus()))
    return gpus()[name]
