"""Names in a column (clients, applications) as codes 0, 1, ... in order of appearance."""

from __future__ import annotations

import numpy as np

from servegym.traces.cells import Chunk


class Labels:
    """The names seen so far in a file that is read in pieces."""

    def __init__(self) -> None:
        self._codes: dict[str, dict[str, int]] = {}

    def codes(self, chunk: Chunk, column: str, field: str | None = None, none: str | None = None) -> np.ndarray:
        """Codes of a column, int32 of shape (rows,); the first chunk decides whether its cells are names or numbers.

        field: the column of `WORKLOAD`, if its name differs. none: the name of an empty cell, which has code 0; None:
        an empty cell is an error. Raises WorkloadError.
        """
        field = field or column
        if chunk.first_row == 1 and not chunk.is_numeric(column):
            self._codes[field] = {} if none is None else {none: 0}
        if field not in self._codes:
            return chunk.codes(column, None if none is None else 0.0)
        return self.names(field, chunk.text(column, none))

    def names(self, field: str, names: np.ndarray) -> np.ndarray:
        """Codes of names for a column of `WORKLOAD`, int32 of shape (rows,)."""
        import pandas as pd

        places, distinct = pd.factorize(names)
        codes = self._codes.setdefault(field, {})
        return np.array([codes.setdefault(name, len(codes)) for name in distinct], "i4")[places]

    def by_column(self) -> dict[str, tuple[str, ...]]:
        """The names of code 0, 1, ... by column."""
        return {field: tuple(codes) for field, codes in self._codes.items()}
