"""The picture of a comparison: how schedulers fare as load, or the number of clients, grows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from servegym.evaluation.measures import ATTAINMENT, LOAD, THROUGHPUT, axis_of, ratio_of
from servegym.evaluation.repeats import over_of
from servegym.scenarios.values import LOADS

DOTS_PER_INCH = 150
RATIO_UNIT = "share of the ideal gain"
SERVED = (THROUGHPUT, "Throughput", "requests/s")  # of closed loops
AXES = {"load": "load (rate / saturation)", "clients": "clients"}
# Okabe and Ito's, brown and grey: each shows on white and on a dark page, where black becomes white. Told apart without
# colour too: nine colours, eight markers and five dashes make no pair alike before the 360th.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#A6671C", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GRID: dict[str, Any] = {"color": "0.5", "alpha": 0.25, "linewidth": 0.8}  # shows on white and on black
DODGE = 0.008  # horizontal shift between schedulers, of the range of loads, so that intervals do not overlap
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))


def plot_comparison(summary: pd.DataFrame, title: str, path: str | Path) -> Path:
    """Save `comparison_figure` as a PNG, and return `path`."""
    comparison_figure(summary, title).savefig(path, dpi=DOTS_PER_INCH)
    return Path(path)


def comparison_figure(summary: pd.DataFrame, title: str) -> Figure:
    """Draw TDG ratio (`ratio_of`) and SLO attainment against load, with the intervals of `summarise`.

    In closed loops they and the throughput stand against the number of clients. title: what was served, on what, how
    often.
    """
    ratio, axis = ratio_of(summary), axis_of(summary)
    shown = [
        (ratio.column, ratio.title, RATIO_UNIT),
        (ATTAINMENT.column, ATTAINMENT.title, "share of the requests"),
        *([] if axis == LOAD else [SERVED]),
    ]
    figure = Figure(figsize=(3 + 4 * len(shown), 4.6), layout="constrained")
    panels = figure.subplots(1, len(shown), sharex=True, sharey=axis == LOAD)
    for axes, (column, name, unit) in zip(panels, shown, strict=True):
        _panel(axes, summary, column)
        axes.set_title(name, fontsize=11)
        axes.set_xlabel(AXES[axis])
        axes.set_ylabel(unit)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, handlelength=3.2)
    bars = f"; bars are 95 % intervals over {over_of(summary)}" if summary["seeds"].min() > 1 else ""
    figure.suptitle(title + bars, fontsize=10, x=0.01, ha="left")
    return figure


def _panel(axes: Axes, summary: pd.DataFrame, column: str) -> None:
    axis = axis_of(summary)
    points, is_share = sorted(summary[axis].unique()), column != THROUGHPUT
    place = {point: point if axis == LOAD else math.log2(point) for point in points}
    schedulers = list(summary["scheduler"].unique())
    first, last = place[points[0]], place[points[-1]]
    span = last - first or 1.0
    for index, label in enumerate(schedulers):
        rows = summary[summary["scheduler"] == label].sort_values(axis)
        # A share lies between 0 and 1, an interval of t need not; one seed has no interval.
        low = rows[f"{column}_ci_low"].clip(lower=0).fillna(rows[column])
        high = rows[f"{column}_ci_high"].clip(upper=1 if is_share else None).fillna(rows[column])
        axes.errorbar(
            rows[axis].map(place) + DODGE * span * (index - (len(schedulers) - 1) / 2),
            rows[column],
            # A mean of ones may be rounded to more than 1.
            yerr=[(rows[column] - low).clip(lower=0), (high - rows[column]).clip(lower=0)],
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
    axes.set_xticks(list(place.values()), [_tick(point) if axis == LOAD else f"{point:.0f}" for point in points])
    axes.set_xlim(first - 0.07 * span, last + 0.07 * span)
    axes.set_ylim(0, 1 if is_share else None)
    dress(axes)


def dress(axes: Axes, axis: Literal["both", "x", "y"] = "y") -> None:
    """Give a panel the look of all: a light grid behind the data, no box, thousands with commas. axis: of the grid."""
    axes.grid(axis=axis, **GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_ylim()[1] > 1000:
        axes.yaxis.set_major_formatter("{x:,.0f}")


def _tick(load: float) -> str:
    name = next((name for name, value in LOADS.items() if math.isclose(value, load)), None)
    return f"{load:.3g}\n{name}" if name else f"{load:.3g}"
