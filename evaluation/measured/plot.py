"""Draws measured against simulated times, with the diagonal and 10 % to both sides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from servegym.evaluation.measured.figures import METRICS

DOTS_PER_INCH = 150
TITLES = {"e2e": "end to end", "itl": "between tokens", "ttft": "to the first token"}
MARKERS = "os^DvPX*<>dhp"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARGIN = 1.4


def plot(errors: pd.DataFrame, path: Path) -> Path:
    """Draw the means of each run and stage, a panel a metric; hollow: the client gave up on requests. Return `path`."""
    figure = Figure(figsize=(12.0, 4.9), layout="constrained")
    panels = figure.subplots(1, len(METRICS))
    models = list(dict.fromkeys(zip(errors["model"], errors["gpu"], strict=True)))
    for axes, metric in zip(panels, METRICS, strict=True):
        rows = errors[errors["metric"] == f"{metric}_mean"]
        draw_lines(axes, rows)
        for index, (model, gpu) in enumerate(models):
            of_model = rows[(rows["model"] == model) & (rows["gpu"] == gpu)]
            colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
            for given_up, part in of_model.groupby("overloaded"):
                axes.scatter(
                    part["measured"], part["simulated"], s=42, marker=marker, edgecolors=colour, linewidths=1.2,
                    facecolors="none" if given_up else colour, zorder=3,
                )  # fmt: skip
            names = dict.fromkeys((str(model).split("/")[-1], str(gpu).split("-80")[0]))  # of a file both are its own
            label = ", ".join(names)
            axes.scatter([], [], s=42, marker=marker, color=colour, label=label)
        axes.set_title(f"Mean time {TITLES[metric]}", fontsize=11, loc="left")
    return save(figure, panels, path)


def save(figure: Figure, panels: Sequence[Axes], path: Path) -> Path:
    """Save with axis labels and one legend below all panels; return `path`."""
    for axes in panels:
        axes.set_xlabel("measured, s")
    panels[0].set_ylabel("simulated, s")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return path


def draw_lines(axes: Axes, rows: pd.DataFrame) -> None:
    """Set equal logarithmic axes; draw the diagonal, and 10 % above and below."""
    low = rows[["measured", "simulated"]].min().min() / MARGIN
    high = rows[["measured", "simulated"]].max().max() * MARGIN
    axes.plot([low, high], [low, high], color="0.35", linewidth=1, label="equal, and 10 % to both sides", zorder=1)
    for factor in (0.9, 1.1):
        axes.plot([low, high], [factor * low, factor * high], color="0.35", linewidth=0.8, linestyle=":", zorder=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)) if high > 10 * low else MaxNLocator(4))
        axis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(color="0.92", linewidth=0.6, zorder=0)
