"""The picture of a plan: a bar a device, as long as what was looked for."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from servegym.evaluation.plots import DOTS_PER_INCH

if TYPE_CHECKING:
    import pandas as pd

BAR = "#7A9CC0"  # grey of a middle tone where there is no colour


def plot_plan(summary: pd.DataFrame, asks_engines: bool, title: str, path: str | Path) -> Path:
    """Draw the engines, or the rate, of each device with its interval, as a PNG. Returns `path`.

    summary: of `summarise_plan`. asks_engines: whether engines were looked for.
    """
    from matplotlib.figure import Figure

    name, unit = ("mean_engines", "engines") if asks_engines else ("rate_per_s", "requests/s")
    several = len(summary["scheduler"].unique()) > 1
    labels = [f"{row.device}\n{row.scheduler}" if several else row.device for row in summary.itertuples()]
    figure = Figure(figsize=(9, 1.6 + 0.55 * len(summary) * (1 + 0.4 * several)), layout="constrained")
    axes = figure.subplots()
    places = range(len(summary))
    means = summary[name].fillna(0.0)
    low, high = (summary[f"{name}_ci_{end}"].fillna(means) for end in ("low", "high"))
    axes.barh(places, means, color=BAR, height=0.6)
    axes.errorbar(
        means, places, xerr=[(means - low).clip(lower=0), (high - means).clip(lower=0)], fmt="none", ecolor="black",
        capsize=3, linewidth=1.2,
    )  # fmt: skip
    for place, (_, row) in zip(places, summary.iterrows(), strict=True):
        axes.annotate(
            said_of(row, asks_engines), (max(means[row.name], high[row.name]), place), xytext=(7, 0),
            textcoords="offset points", va="center", fontsize=9,
        )  # fmt: skip
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6 * max(float(high.max()), float(means.max())) or 1.0)
    axes.set_xlabel(f"{unit}, mean over seeds" if summary["seeds"].min() > 1 else unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    lines = " Lines are 95 % intervals over seeds." if summary["seeds"].min() > 1 else ""
    figure.suptitle("\n".join(textwrap.wrap(f"{title}.{lines}", 110)), fontsize=9.5, x=0.01, ha="left")
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return Path(path)


def said_of(row: pd.Series, asks_engines: bool) -> str:
    """What stands beside a bar."""
    if row["missing"]:
        return "no number is enough" if asks_engines else f"none found: {row['found']} the rates tried"
    said = f"{row['engines']:.0f} suffice in every seed" if asks_engines else f"{row['rate_per_s']:.3g}"
    return said + (f", {row['cost_per_hour']:.4g} an hour" if row["cost_per_hour"] == row["cost_per_hour"] else "")
