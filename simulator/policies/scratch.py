"""Scratch memory within a decision: declared with names, read in kernels as arrays `s.order`.

S = Scratch("work_s", indices=("order",))

@scheduler
def mine(context, ranks, limits):
    s = S.read(context)
    s.order[0] = 7

register(Policy("mine", "scheduler", ..., mine, scratch=S))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from servegym.errors import PolicyError
from servegym.simulator.policies.parameters import row_class
from servegym.simulator.records.types import RANK

NUMBERS, INDICES, RANKS = "float64", "int64", "RANK"
DTYPES = {NUMBERS: np.dtype("f8"), INDICES: np.dtype("i8"), RANKS: RANK}


class Scratch:
    """Arrays as long as the longest queue of an engine; for a router, one longer than any list of requests.

    numbers: names of float64 arrays. indices: of int64 arrays. ranks: of RANK arrays, which `ordering.sort` sorts by.
    Their contents are undefined at the start of a decision. Raises PolicyError for a name that is no Python name, or a
    duplicate.
    """

    def __init__(self, *numbers: str, indices: tuple[str, ...] = (), ranks: tuple[str, ...] = ()):
        kinds = ((NUMBERS, numbers), (INDICES, indices), (RANKS, ranks))
        self.layout = tuple((name, kind) for kind, names in kinds for name in names)
        self.names = tuple(name for name, _ in self.layout)
        for name in self.names:
            if not name.isidentifier() or self.names.count(name) > 1:
                raise PolicyError(f"scratch memory is named {name!r}; it should be a Python name, and unique")

    def __repr__(self) -> str:
        return f"Scratch({', '.join(f'{name}: {kind}' for name, kind in self.layout)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scratch) and self.layout == other.layout

    def __hash__(self) -> int:
        return hash(self.layout)

    @property
    def rows(self) -> int:
        """Rows of float64 that the arrays take of a context's scratch memory."""
        return sum(rows_of(kind) for _, kind in self.layout)

    @property
    def kernel_text(self) -> str:
        """What compiled kernels depend on, for `source_digest`."""
        return f"{self.layout}{DTYPES}"

    def read(self, context: Any) -> Any:
        """Return the arrays of a decision by name."""
        arrays, row = [], 0
        for _, kind in self.layout:
            end = row + rows_of(kind)
            arrays.append(context.scratch[row:end].reshape(-1).view(DTYPES[kind]))
            row = end
        return row_class("Scratch", self.names)(*arrays)


def rows_of(kind: str) -> int:
    """Return the rows of float64 that an array of this kind takes."""
    return DTYPES[kind].itemsize // 8


NO_SCRATCH = Scratch()
