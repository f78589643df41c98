"""The pictures of an evaluation: how much better or worse than the baseline, and how often a run does well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from servegym.evaluation.panels import statistics
from servegym.evaluation.panels.evaluation import Evaluation
from servegym.evaluation.panels.tables import TDG, score_array, select
from servegym.evaluation.plots import COLOURS, DASHES, DOTS_PER_INCH, MARKERS, dress
from servegym.scenarios.values import load_title

THRESHOLDS = np.linspace(0, 1, 101)
MARK_EVERY = 10  # thresholds
LINEAR = 0.01  # differences up to this are drawn to scale, larger ones on a logarithmic scale
TICKS = (-1, -0.1, -0.01, 0, 0.01, 0.1, 1)
CELL_COLOUR, MEAN_COLOUR = "0.6", "#000000"


def plot_differences(evaluation: Evaluation, cells: pd.DataFrame, groups: pd.DataFrame, path: Path) -> Path:
    """For each load and policy: TDG ratio less the baseline's, mean and 95 % interval, and every cell. Returns `path`.

    cells, groups: of `cells_table` and `groups_table`.
    """
    compared = [label for label in evaluation.candidates if label != evaluation.baseline_label]
    means = select(groups, "load")
    loads = list(cells["load"].unique())
    # Names stand in lines of their own, so the picture grows with them.
    figure = Figure(figsize=(2.6 + 2.4 * max(len(loads), 2), 2.1 + 0.34 * len(compared)), layout="constrained")
    panels = figure.subplots(1, len(loads), sharex=True, sharey=True, squeeze=False)[0]
    shapes = dict(zip(cells["trace"].unique(), ("o", "s", "^", "D", "v", "P", "X", "*") * len(cells), strict=False))
    for axes, load, group in zip(panels, loads, means["group"].unique(), strict=True):
        _difference_panel(axes, cells[cells["load"] == load], means[means["group"] == group], compared, shapes)
        axes.set_title(f"load {load_title(load)}", fontsize=10)
    of_means = (means[name] for name in ("difference", "difference_ci_low", "difference_ci_high"))
    drawn = pd.concat([cells["tdg_ratio_difference"], *of_means])
    left, right = end_of_axis(-float(drawn.min())), end_of_axis(float(drawn.max()))
    axes = panels[0]
    axes.set_xscale("symlog", linthresh=LINEAR, linscale=0.7)
    axes.set_xlim(-left, right)
    axes.set_xticks([tick for tick in TICKS if -left <= tick <= right])
    for axes in panels:
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
        axes.tick_params(labelsize=8)
        axes.set_xlabel("TDG ratio, difference", fontsize=9)
    panels[0].set_yticks(range(len(compared)), compared)
    panels[0].set_ylim(len(compared) - 0.5, -0.5)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3 + len(loads), frameon=False, fontsize=8)
    figure.suptitle(
        f"Right of the line: better than {evaluation.baseline_label} on the same requests\n"
        f"(to scale up to ±{LINEAR:g}, beyond it logarithmic)",
        fontsize=10, x=0.01, ha="left",
    )  # fmt: skip
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return path


def end_of_axis(reach: float) -> float:
    """Where one side of the logarithmic axis ends, so that the largest difference has a tick near or beyond it."""
    end = max(2 * LINEAR, 1.5 * reach)
    return next((1.2 * tick for tick in TICKS if tick / 3 < end < 1.2 * tick), end)


def _difference_panel(
    axes: Axes, cells: pd.DataFrame, means: pd.DataFrame, compared: list[str], shapes: dict[str, str]
) -> None:
    axes.axvline(0, color="0.3", linewidth=1)
    for trace, of_trace in cells[cells["policy"].isin(compared)].groupby("trace", sort=False):
        axes.scatter(
            of_trace["tdg_ratio_difference"], [compared.index(policy) + 0.18 for policy in of_trace["policy"]],
            s=13, marker=shapes[str(trace)], facecolors="none", edgecolors=CELL_COLOUR, linewidths=0.9,
            label=str(trace),
        )  # fmt: skip
    rows = means.set_index("policy").loc[compared]
    low, high = rows["difference_ci_low"], rows["difference_ci_high"]
    places = np.arange(len(compared)) - 0.12
    axes.plot(rows["difference"], places, "o", markersize=5, color=MEAN_COLOUR, label="mean", zorder=3)
    axes.errorbar(  # by itself: percentiles need not have the mean between them
        (low + high) / 2, places, xerr=(high - low) / 2, fmt="none", ecolor=MEAN_COLOUR, capsize=3, elinewidth=1.3,
        label="95 % interval of the mean", zorder=3,
    )  # fmt: skip
    dress(axes, "x")


def plot_profile(evaluation: Evaluation, runs: pd.DataFrame, path: Path) -> Path:
    """For each policy the share of runs with a TDG ratio above each threshold, with a 95 % band. Returns `path`."""
    figure = Figure(figsize=(8.6, 4.6), layout="constrained")
    axes = figure.subplots()
    for index, label in enumerate(evaluation.candidates):
        found = statistics.profile(score_array(runs, label, TDG), THRESHOLDS)
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(
            found.thresholds, found.share, label=label, linewidth=1.6, marker=MARKERS[index % len(MARKERS)],
            markersize=5, markevery=(index % MARK_EVERY, MARK_EVERY), color=colour,
            linestyle=DASHES[index % len(DASHES)],
        )  # fmt: skip
        axes.fill_between(found.thresholds, found.low, found.high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("TDG ratio x, share of the ideal gain", fontsize=9)
    axes.set_ylabel("share of the runs above x", fontsize=9)
    dress(axes, "both")
    figure.legend(loc="outside right center", frameon=False, fontsize=8, handlelength=3.4)
    band = "; bands hold 95 % at each x" if max(part.repeats.runs for part in evaluation.parts) > 1 else ""
    figure.suptitle(f"Higher is better: more runs with a TDG ratio above x{band}", fontsize=10, x=0.01, ha="left")
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return path
