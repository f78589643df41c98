"""The picture of a plan: a bar for each device, with the number of engines or the rate."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from servegym.evaluation.intervals import Interval
from servegym.evaluation.plots import DOTS_PER_INCH, dress
from servegym.evaluation.repeats import over_of

BAR = "#7A9CC0"  # grey of a middle tone where there is no colour
ROOM = 1.8  # length of the axis over that of the longest bar, for labels after the bars


def plot_plan(summary: pd.DataFrame, asks_engines: bool, title: str, path: str | Path) -> Path:
    """Draw the engines that are enough in every seed, or the rate with its interval, of each device, as a PNG.

    summary: of `summarise_plan`. asks_engines: whether engines were looked for. Returns `path`.
    """
    several = len(summary["scheduler"].unique()) > 1
    labels = [f"{row.device}\n{row.scheduler}" if several else row.device for row in summary.itertuples()]
    figure = Figure(figsize=(9, 1.7 + 0.55 * len(summary) * (1 + 0.4 * several)), layout="constrained")
    axes = figure.subplots()
    length = summary["engines" if asks_engines else "rate_per_s"].where(summary["missing"] == 0, 0.0)
    axes.barh(range(len(summary)), length, color=BAR, height=0.6)
    ends = length if asks_engines else with_intervals(axes, length, summary)
    for place, (end, (_, row)) in enumerate(zip(ends, summary.iterrows(), strict=True)):
        axes.annotate(
            label_of(row, asks_engines),
            (end, place),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(summary)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, ROOM * float(ends.max()) or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=asks_engines))
    axes.set_xlabel("engines, enough in every run" if asks_engines else "requests/s, mean over runs")
    dress(axes, "x")
    intervals = (
        f". {'±' if asks_engines else 'Lines'}: 95 % intervals over {over_of(summary)}"
        if summary["seeds"].min() > 1
        else ""
    )
    figure.suptitle("\n".join(textwrap.wrap(title + intervals, 105)), fontsize=9.5, x=0.01, ha="left")
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return Path(path)


def with_intervals(axes: Axes, means: pd.Series, summary: pd.DataFrame) -> pd.Series:
    """Draw the intervals of the rates, where there are any; returns where each ends."""
    low, high = (summary[f"rate_per_s_ci_{end}"].fillna(means) for end in ("low", "high"))
    axes.errorbar(
        means, range(len(summary)), xerr=[(means - low).clip(lower=0), (high - means).clip(lower=0)], fmt="none",
        ecolor="black", capsize=3, linewidth=1.2,
    )  # fmt: skip
    return high.where(high > means, means)


def label_of(row: pd.Series, asks_engines: bool) -> str:
    """The label after a bar."""
    if row["missing"]:
        return "no number is enough" if asks_engines else f"none found: {row['found']} the rates tried"
    if asks_engines:
        mean = Interval.of(row, "mean_engines")
        text = f"{row['engines']:.0f}" + (f" (mean {mean.text('.2f')})" if mean.has_width else "")
    else:
        text = f"{row['rate_per_s']:.3g}"
    return text + (
        f", costs {row['cost_per_hour']:.4g} an hour" if row["cost_per_hour"] == row["cost_per_hour"] else ""
    )
