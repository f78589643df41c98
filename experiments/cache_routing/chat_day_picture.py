"""The picture of a day of chat: how many requests come, and what each router makes of them, cached and not."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.cache_routing.setups import Setup
from servegym.evaluation.plots import COLOURS, DASHES, DOTS_PER_INCH, MARKERS


def draw(hours: pd.DataFrame, setups: Sequence[Setup], path: Path) -> None:
    """Means over seeds: above the rate, below TDG ratios; not cached left, cached right. hours: of `by_hour`."""
    figure = Figure(figsize=(9.6, 5.4), layout="constrained")
    grid = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=(1, 2.4))
    for column, cached in enumerate((False, True)):
        of_side = [one for one in setups if one.cached == cached]
        rate, ratio = grid[:, column]
        _rate(rate, hours)
        for index, setup in enumerate(of_side):
            mean = _of(hours, setup).groupby("hour")["tdg"].mean()
            ratio.plot(
                mean.index + 0.5, mean, label=setup.router, color=COLOURS[index], marker=MARKERS[index],
                linestyle=DASHES[index], markersize=5, linewidth=1.4,
            )  # fmt: skip
        rate.set_title("with prefix caching" if cached else "without prefix caching", fontsize=11)
        ratio.set_ylim(0, 1.02)
        ratio.set_xlabel("hour of the day")
        ratio.set_xticks(range(0, 25, 4))
        ratio.set_xlim(0, 24)
        ratio.grid(axis="y", color="0.9")
    grid[0, 0].set_ylabel("requests/s")
    grid[1, 0].set_ylabel("TDG ratio of an hour's requests")
    handles, labels = grid[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, handlelength=3.2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH)


def _rate(axes: Axes, hours: pd.DataFrame) -> None:
    mean = hours[hours["cached"]].groupby("hour")["rate_per_s"].mean()
    axes.bar(mean.index + 0.5, mean, width=0.9, color="0.75")
    axes.set_ylim(0, None)


def _of(hours: pd.DataFrame, setup: Setup) -> pd.DataFrame:
    return hours[(hours["router"] == setup.router) & (hours["cached"] == setup.cached)]
