"""Time in bins, and for each request periods of whole bins that grow with the time since its arrival.

Bins are leaves of a binary tree: node (level, index) covers bins index * 2^level to (index + 1) * 2^level - 1. Every
period of a request is a node, so that the work of all requests within a node can be held against its length.
"""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Bins:
    """`count` bins of width_s from start_s on; levels: of the tree over them."""

    start_s: float
    width_s: float
    count: int

    @classmethod
    def over(cls, start_s: float, end_s: float, width_s: float) -> Bins:
        return cls(start_s, width_s, max(1, math.ceil((end_s - start_s) / width_s)))

    @property
    def levels(self) -> int:
        """Levels of the tree, the leaves included."""
        return 1 + math.ceil(math.log2(self.count)) if self.count > 1 else 1

    def from_bin(self, time_s: float) -> int:
        """The first bin that what happens after time_s can lie in."""
        return self._bin(time_s, -1e-9)

    def to_bin(self, time_s: float) -> int:
        """The last bin that what happens before time_s can lie in, or one more where time_s is on a border."""
        return self._bin(time_s, 1e-9)

    def _bin(self, time_s: float, tolerance: float) -> int:
        place = (time_s - self.start_s) / self.width_s
        return min(max(math.floor(place + tolerance * (1 + abs(place))), 0), self.count - 1)

    def node_start_s(self, level: int, index: int) -> float:
        return self.start_s + self.width_s * (index << level)

    def node_length_s(self, level: int, index: int) -> float:
        """Length of the part of a node that is within the bins."""
        first = index << level
        return self.width_s * max(0, min(self.count - first, 1 << level))

    def periods(self, arrival_s: float, end_s: float, fineness: int) -> list[tuple[int, int]]:
        """Nodes that follow one another from the bin of the arrival to that of end_s.

        Each is at most 1 / fineness of the bins that have passed since the arrival, or a single bin.
        """
        first, last = self.from_bin(arrival_s), self.to_bin(end_s)
        found, at = [], first
        while at <= last:
            level = 0
            while (
                level + 1 < self.levels
                and at % (2 << level) == 0
                and (2 << level) * fineness <= at - first
                and at + (1 << level) <= last
            ):
                level += 1
            found.append((level, at >> level))
            at += 1 << level
        return found
