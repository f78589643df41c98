"""The operators of a layer, at whose ends a preemptible batch can be suspended (FlowPrefill, section 5.1)."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import DeploymentError

MOST_LAYERS = 2**16  # a batch could be suspended at the end of each


@dataclasses.dataclass(frozen=True)
class Operators:
    """The operators of a layer, in order, and their shares of the time of a prefill batch.

    layers: layers of the model. coefficients: float64[operators, 4], s of an operator for each token, token^2 (summed
    over requests), token x cached token, and constant; only the shares matter. names: of the operators. check_s: time
    of the check at each boundary. jitter_s: most by which the slowest tensor parallel rank is late at a boundary.
    Raises DeploymentError.
    """

    layers: int
    coefficients: np.ndarray
    names: tuple[str, ...] = ()
    check_s: float = 0.0
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        table = np.array(self.coefficients, "f8", order="C")
        if not 1 <= self.layers <= MOST_LAYERS or self.layers != int(self.layers):
            raise DeploymentError(
                f"operators: layers is {self.layers}; it should be a whole number from 1 to {MOST_LAYERS}"
            )
        if table.ndim != 2 or table.shape[1] != 4 or not len(table):
            raise DeploymentError(f"operators: coefficients have shape {table.shape}; it should be (operators, 4)")
        if not np.isfinite(table).all() or (table < 0).any() or not (table.sum(axis=1) > 0).all():
            raise DeploymentError("operators: coefficients should be 0 or more, and not all of an operator 0")
        if self.names and len(self.names) != len(table):
            raise DeploymentError(f"operators: {len(self.names)} names for {len(table)} operators")
        for field in ("check_s", "jitter_s"):
            if not 0 <= getattr(self, field) < np.inf:
                raise DeploymentError(f"operators: {field} is {getattr(self, field)}; it should be 0 or more")
        object.__setattr__(self, "coefficients", table)


WHOLE = Operators(1, np.array([[0.0, 0.0, 0.0, 1.0]]), ("batch",))  # no boundary but the end
