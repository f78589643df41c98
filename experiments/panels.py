"""Panels of the studies that judge policies on training traces first and once on held-out ones."""

from __future__ import annotations

from typing import NamedTuple


class Panel(NamedTuple):
    """Traces and the first seed that they are drawn with."""

    title: str
    families: tuple[str, ...]
    first_seed: int

    def seeds(self, number: int) -> range:
        return range(self.first_seed, self.first_seed + number)
