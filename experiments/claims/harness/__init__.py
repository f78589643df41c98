"""Re-exports what most claims use; the other modules here are of a family of claims, or of the study and its page."""

from experiments.claims.harness import drawing
from experiments.claims.harness.cells import Cell
from experiments.claims.harness.checks import ABOVE_0, BELOW_0, Check, Range
from experiments.claims.harness.grids import grid
from experiments.claims.harness.registry import claim
from experiments.claims.harness.rows import over_loads, series, values
from experiments.claims.harness.settings import Setting, Size

__all__ = (
    "ABOVE_0", "BELOW_0", "Cell", "Check", "Range", "Setting", "Size", "claim", "drawing", "grid", "over_loads",
    "series", "values",
)  # fmt: skip
