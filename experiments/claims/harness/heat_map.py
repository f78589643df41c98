"""A table of shares as a picture: a shade and a number a cell, columns in groups, read as well in grey."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

DARKEST = 0.8  # of black, at a share of 1: numbers stay legible on it
LIGHT_TEXT_FROM = 0.6
NEAR = 0.005  # of the best of a column: framed with it
GAP = 0.35  # between groups, in cells


def draw(axes: Axes, groups: Mapping[str, np.ndarray], rows: list[str], columns: list[str], title: str) -> None:
    """Shares as percent. groups: name to float64[rows, columns]; NaN is left blank. Framed: the best of a column, and
    what is within half a percent of it, where that is not all of them."""
    left = 0.0
    for name, shares in groups.items():
        axes.text(left + len(columns) / 2, -1.15, name, ha="center", va="bottom", fontsize=7.5, fontweight="bold")
        for index, column in enumerate(columns):
            axes.text(left + index + 0.5, -0.15, column, ha="center", va="bottom", fontsize=7)
            _column(axes, left + index, shares[:, index])
        left += len(columns) + GAP
    for index, name in enumerate(rows):
        axes.text(-0.2, index + 0.5, name, ha="right", va="center", fontsize=8)
    axes.text(-0.2, -0.15, title, ha="right", va="bottom", fontsize=8, fontweight="bold")
    axes.set_xlim(-0.1, left - GAP + 0.1)
    axes.set_ylim(len(rows) + 0.1, -2)
    axes.axis("off")


def _column(axes: Axes, left: float, shares: np.ndarray) -> None:
    near = shares >= np.nanmax(shares) - NEAR if np.isfinite(shares).any() else np.zeros(len(shares), bool)
    for row, share in enumerate(shares):
        if np.isnan(share):
            continue
        shade = str(1 - DARKEST * min(max(share, 0.0), 1.0))
        axes.add_patch(Rectangle((left, row), 1, 1, facecolor=shade, edgecolor="white", linewidth=0.6))
        ink = "white" if share > LIGHT_TEXT_FROM else "black"
        framed = near[row] and not near.all()
        axes.text(left + 0.5, row + 0.52, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, color=ink,
                  fontweight="bold" if framed else "normal")  # fmt: skip
        if framed:
            axes.add_patch(Rectangle((left + 0.07, row + 0.07), 0.86, 0.86, fill=False, edgecolor=ink, linewidth=1))
