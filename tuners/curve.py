"""The picture of a training: the policy's validation results over time."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOTS_PER_INCH = 150


def plot_curve(rows: Sequence[Mapping[str, Any]], title: str, path: str | Path) -> Path:
    """Draw the difference to the base as a PNG and return `path`.

    rows: in order, each with minutes, base, difference and half_width (see `validation.Verdict`), and is_best.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 4.2), layout="constrained")
    axes = figure.subplots()
    minutes = [row["minutes"] for row in rows]
    points = [100 * row["difference"] for row in rows]
    low = [100 * (row["difference"] - row["half_width"]) for row in rows]
    high = [100 * (row["difference"] + row["half_width"]) for row in rows]
    axes.axhline(0.0, color="0.4", linewidth=1, linestyle="--", label="the base policy")
    axes.fill_between(minutes, low, high, color="0.85", label="95 % interval of the mean", linewidth=0)
    axes.plot(minutes, points, color="black", linewidth=1.5, marker="o", markersize=3, label="the policy")
    best = [row for row in rows if row["is_best"]]
    if best:
        last = best[-1]
        axes.plot(
            last["minutes"], 100 * last["difference"], "o", markersize=9, color="black", markerfacecolor="none",
            label=f"kept: {100 * last['difference']:+.2f} points, base {last['base']:.3f}",
        )  # fmt: skip
    axes.set_title(textwrap.fill(title, 72), fontsize=11, loc="left")
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("TDG ratio on validation scenarios,\npoints above the base policy")
    axes.grid(color="0.9", linewidth=0.6, zorder=0)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return Path(path)
