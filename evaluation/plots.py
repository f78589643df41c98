"""The picture of a comparison: how schedulers fare as load grows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from servegym.evaluation.summary import RATIO_TITLES, ratio_of
from servegym.scenarios.load import LOADS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

DOTS_PER_INCH = 150
RATIO_UNIT = "share of the ideal gain"
ATTAINMENT = ("slo_attainment", "SLO attainment", "share of the requests")
# Told apart without colour too: seven colours, eight markers and five dashes make no pair alike before the 280th.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DODGE = 0.008  # of the range of loads, from scheduler to scheduler: their intervals stand side by side
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))


def plot_comparison(summary: pd.DataFrame, title: str, path: str | Path) -> Path:
    """Draw TDG (or gain) ratio and SLO attainment against load, with the intervals of `summarise`, as a PNG.

    title: what was served, on what, how often. Returns `path`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    ratio = ratio_of(summary)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (column, name, unit) in zip(panels, ((ratio, RATIO_TITLES[ratio], RATIO_UNIT), ATTAINMENT), strict=True):
        _panel(axes, summary, column)
        axes.set_title(name, fontsize=11)
        axes.set_xlabel("load (rate / saturation)")
        axes.set_ylabel(unit)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, handlelength=3.2)
    bars = "; bars are 95 % intervals over seeds" if summary["seeds"].min() > 1 else ""
    figure.suptitle(title + bars, fontsize=10, x=0.01, ha="left")
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return Path(path)


def _panel(axes: Axes, summary: pd.DataFrame, column: str) -> None:
    loads = sorted(summary["load"].unique())
    schedulers = list(summary["scheduler"].unique())
    span = loads[-1] - loads[0] or 1.0
    for index, label in enumerate(schedulers):
        rows = summary[summary["scheduler"] == label].sort_values("load")
        # A share lies between 0 and 1, an interval of t need not; one seed has no interval.
        low = rows[f"{column}_ci_low"].clip(lower=0).fillna(rows[column])
        high = rows[f"{column}_ci_high"].clip(upper=1).fillna(rows[column])
        axes.errorbar(
            rows["load"] + DODGE * span * (index - (len(schedulers) - 1) / 2),
            rows[column],
            yerr=[rows[column] - low, high - rows[column]],
            label=label,
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            linestyle=DASHES[index % len(DASHES)],
            linewidth=1.6,
            markersize=6,
            capsize=2,
            elinewidth=1,
            clip_on=False,
        )
    axes.set_xticks(loads, [_tick(load) for load in loads])
    axes.set_xlim(loads[0] - 0.07 * span, loads[-1] + 0.07 * span)
    axes.set_ylim(0, 1)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _tick(load: float) -> str:
    name = next((name for name, value in LOADS.items() if math.isclose(value, load)), None)
    return f"{load:.3g}\n{name}" if name else f"{load:.3g}"
