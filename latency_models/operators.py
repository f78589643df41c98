"""The operators of a layer and their times; a prefill can be suspended at their ends (FlowPrefill, section 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from servegym.simulator.features.operators import Operators as Boundaries

TERMS = ("prefill_tokens", "prefill_tokens_squared", "prefill_tokens_cached")  # of BATCH; after them the constant


@dataclass(frozen=True, eq=False)
class Operators:
    """The operators of a layer in the order in which they run.

    layers: of the model. coefficients: float64[operators, 4], seconds of a layer's operator for each token, for each
    token squared (sum of lq^2 over the prefills of a batch), for each pair of a token and one cached before it
    (sum of lq lkv), and a constant. names: of the operators. derived: those not taken from tables. error: as in the
    profile's file.
    """

    layers: int
    coefficients: np.ndarray
    names: tuple[str, ...]
    derived: tuple[str, ...] = ()
    error: Mapping[str, Any] = field(default_factory=dict)

    @property
    def boundaries(self) -> Boundaries:
        """Convert to the simulator's `Boundaries`."""
        return Boundaries(self.layers, self.coefficients, self.names)

    def layer_s(self, batches: np.ndarray) -> np.ndarray:
        """Seconds of each operator of one layer, float64[n, operators], of a BATCH array[n] of prefills."""
        return terms(batches) @ self.coefficients.T


def terms(batches: np.ndarray) -> np.ndarray:
    """float64[n, 4]: the terms of a BATCH array[n] that the coefficients of an operator multiply."""
    return np.column_stack([*(batches[name] for name in TERMS), np.ones(len(batches))])
