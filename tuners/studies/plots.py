"""The pictures of a tuning: the winner against the defaults, slices of the parameters, and the front."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from servegym.evaluation.intervals import Interval
from servegym.evaluation.plots import DOTS_PER_INCH, dress
from servegym.scenarios.values import load_title
from servegym.tuners.studies.analysis import sliced
from servegym.tuners.studies.candidates import DEFAULTS, SCHEDULE, WINNER, pareto_front
from servegym.tuners.studies.results import StudyResults

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

INK, GREY, BLUE, ORANGE = "#000000", "0.6", "#0072B2", "#D55E00"
COLUMNS = 3  # of panels of slices
LINEAR = 0.005  # slices: differences up to this are drawn to scale, larger ones on a logarithmic scale


def plot_loads(results: StudyResults, path: Path) -> Path:
    """Plot the winner, and the schedule, less the defaults on the test: at each load and over all. Returns `path`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 3.6), layout="constrained")
    axes = figure.subplots()
    loads = [*results.loads, "all"]
    for shift, candidate, marker, colour, name in (
        (-0.1, WINNER, "o", INK, "winner: one point for all loads"),
        (0.1, SCHEDULE, "s", BLUE, "schedule: the best parameters for each load"),
    ):
        changes = [results.tested(candidate, DEFAULTS, load) for load in loads]
        _dots(axes, np.arange(len(loads)) + shift, changes, marker, colour, name)
    axes.axhline(0, color="0.3", linewidth=1)
    axes.set_xticks(range(len(loads)), [*(f"load {load_title(float(load))}" for load in results.loads), "all loads"])
    axes.set_xlim(-0.5, len(loads) - 0.5)
    axes.set_ylabel(f"{name_of_figure(results)}, less the defaults'", fontsize=9)
    plain(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    better = "Above" if results.objective.larger_is_better else "Below"
    figure.suptitle(
        f"{better} the line: better than the defaults on requests nothing was tuned on (95 % intervals)",
        fontsize=10, x=0.01, ha="left",
    )  # fmt: skip
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return path


def plot_slices(results: StudyResults, path: Path) -> Path:
    """Plot for each parameter the scores of trials, and of the winner with that parameter alone changed.

    Both as differences: of a trial to the defaults on the panel, of a changed winner to the winner on the validation
    panel, set at the height of the winner's own difference to the defaults there. Returns `path`.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    rows = results.parameters.drop_duplicates("variable").to_dict("records")
    columns = min(COLUMNS, len(rows))
    lines = math.ceil(len(rows) / columns)
    figure = Figure(figsize=(1.0 + 3.4 * columns, 1.2 + 2.7 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False)
    changes, score = sliced(results), results.objective.figure
    complete = results.trials[results.trials["state"] == "complete"]
    of_trials = complete[score] - results.trials[score].iloc[0]
    means = results.validation.groupby("candidate", sort=False)[score].mean()
    level = float(means[results.winner] - means[DEFAULTS])
    for axes, row in zip(panels.flat, rows, strict=False):
        name, words = row["parameter"], isinstance(row["choices"], str) and bool(row["choices"])
        order = {word: place for place, word in enumerate(str(row["choices"]).split("|"))} if words else {}

        def at(values: pd.Series | list, order: dict[str, int] = order) -> np.ndarray:
            return np.array([order[str(value)] if order else float(value) for value in values], dtype="f8")

        axes.scatter(
            at(complete[name]), of_trials, s=16, marker="o", facecolors="none", edgecolors=GREY, linewidths=0.9,
            label="trials, on the panel they were chosen on",
        )  # fmt: skip
        of_one = changes[changes["parameter"] == name]
        if len(of_one):
            places, middle = at(of_one["value"]), of_one["difference"].to_numpy("f8") + level
            axes.plot(places, middle, "-" if not words else "", marker="D", markersize=4, color=BLUE,
                      label="winner with this parameter changed, on fresh seeds")  # fmt: skip
            axes.fill_between(
                places, of_one["low"].to_numpy("f8") + level, of_one["high"].to_numpy("f8") + level, color=BLUE,
                alpha=0.15, linewidth=0, label="its 95 % interval against the winner",
            )  # fmt: skip
        axes.axvline(at([row["default"]])[0], color=INK, linestyle=(0, (2, 2)), linewidth=1.2, label="default")
        axes.axvline(at([row["winner"]])[0], color=ORANGE, linewidth=1.2, label="winner")
        if words:
            axes.set_xticks(list(order.values()), list(order))
        elif row["log"]:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        unit = f", {row['unit']}" if isinstance(row["unit"], str) and row["unit"] else ""
        axes.set_xlabel(f"{name}{unit}", fontsize=9)
        axes.axhline(0, color="0.3", linewidth=0.8)
        plain(axes)
    for axes in list(panels.flat)[len(rows) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel(f"{name_of_figure(results)}, less the defaults'", fontsize=9)
    panels[0, 0].set_yscale("symlog", linthresh=LINEAR, linscale=0.8)
    panels[0, 0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
    panels[0, 0].set_ylim(*_reach(of_trials.to_numpy("f8"), changes, level))
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 if columns < 3 else 3, frameon=False, fontsize=8)
    figure.suptitle(
        f"What each parameter does to the score (to scale up to ±{LINEAR:g}, beyond it logarithmic)",
        fontsize=10, x=0.01, ha="left",
    )  # fmt: skip
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return path


def _reach(of_trials: np.ndarray, changes: pd.DataFrame, level: float) -> tuple[float, float]:
    """Find axis limits for the better half of the trials and all slices; scores far below are cut off."""
    low = np.concatenate([[np.median(of_trials)], changes["low"].to_numpy("f8") + level, [0.0, level]])
    high = np.concatenate([[of_trials.max()], changes["high"].to_numpy("f8") + level, [0.0, level]])
    bottom, top = float(np.nanmin(low)), float(np.nanmax(high))
    room = 0.08 * (top - bottom) or 0.01
    return bottom - room, top + room


def plot_front(results: StudyResults, path: Path) -> Path:
    """Plot every complete trial by the first two objectives, and the Pareto front. Returns `path`."""
    from matplotlib.figure import Figure

    first, second = results.objectives[:2]
    complete = results.trials[results.trials["state"] == "complete"]
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.scatter(complete[first.figure], complete[second.figure], s=16, facecolors="none", edgecolors=GREY,
                 linewidths=0.9, label="trials")  # fmt: skip
    feasible = complete[complete["feasible"]]
    scores = feasible[[objective.figure for objective in results.objectives]].to_numpy("f8")
    front = feasible[pareto_front(scores, results.objectives)].sort_values(first.figure)
    axes.plot(front[first.figure], front[second.figure], marker="D", markersize=5, color=BLUE, linewidth=1.2,
              label="no trial is better in all objectives")  # fmt: skip
    axes.plot(complete[first.figure].iloc[:1], complete[second.figure].iloc[:1], "*", markersize=13, color=ORANGE,
              markeredgecolor=INK, label="defaults")  # fmt: skip
    for one, axis in ((first, axes.set_xlabel), (second, axes.set_ylabel)):
        arrow = "higher is better" if one.larger_is_better else "lower is better"
        axis(f"{one.doc}{', ' + one.unit if one.unit else ''}\n({arrow})", fontsize=9)
    plain(axes)
    axes.legend(frameon=False, fontsize=8)
    figure.suptitle(f"What one objective costs in the other: {results.name}", fontsize=10, x=0.01, ha="left")
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return path


def _dots(axes: Axes, places: np.ndarray, changes: list[Interval], marker: str, colour: str, name: str) -> None:
    axes.plot(places, [one.mean for one in changes], marker, markersize=5.5, color=colour, label=name, zorder=3)
    for place, one in zip(places, changes, strict=True):
        axes.plot([place, place], [one.low, one.high], color=colour, linewidth=1.3)


def name_of_figure(results: StudyResults) -> str:
    name = "TDG ratio" if results.objective.figure == "tdg_ratio" else results.objective.doc
    return f"{name}, {results.objective.unit}" if results.objective.unit else name


def plain(axes: Axes) -> None:
    dress(axes)
    axes.tick_params(labelsize=8)
