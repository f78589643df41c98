"""How pictures of claims look: told apart without colour, units on the axes, one legend."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from experiments.claims.harness.rows import over_loads
from servegym.evaluation.intervals import student_interval

DOTS_PER_INCH = 130
LINE_INCHES, LETTER_INCHES = 0.75, 0.07  # of a legend's entry at 9 points: its line, and each letter of its label
# Okabe and Ito, from dark to light: told apart in grey too, and by markers and dashes besides.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#000000", "marker": "o", "linestyle": "-"},
    {"color": "#0072B2", "marker": "s", "linestyle": (0, (5, 2))},
    {"color": "#D55E00", "marker": "^", "linestyle": (0, (1, 1.4))},
    {"color": "#009E73", "marker": "D", "linestyle": (0, (5, 2, 1, 2))},
    {"color": "#E69F00", "marker": "v", "linestyle": (0, (3, 1, 1, 1, 1, 1))},
    {"color": "#56B4E9", "marker": "P", "linestyle": "-"},
    {"color": "#999999", "marker": "X", "linestyle": (0, (8, 2))},
    {"color": "#CC79A7", "marker": "<", "linestyle": (0, (2, 2))},
)


def panels(
    titles: list[str], x: str, y: str, size: tuple[float, float] = (2.9, 2.7), share_y: bool = True
) -> tuple[Figure, list[Axes]]:
    """A row of panels; y is named once."""
    figure, rows = panel_rows(titles, x, [y], size, share_y)
    return figure, rows[0]


def panel_rows(
    titles: list[str], x: str, ys: list[str], size: tuple[float, float] = (2.9, 2.7), share_y: bool = True
) -> tuple[Figure, list[list[Axes]]]:
    """A row of panels for each y: titles above the first row, x named below the last, each y once."""
    figure = Figure(figsize=(size[0] * len(titles) + 0.4, size[1] * len(ys) + 0.7), layout="constrained")
    grid = figure.subplots(len(ys), len(titles), sharey="row" if share_y else False, squeeze=False)
    for axes in np.ravel(grid):
        axes.tick_params(labelsize=8)
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for title, axes in zip(titles, grid[0], strict=True):
        axes.set_title(title, fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel(x, fontsize=9)
    for y, row in zip(ys, grid, strict=True):
        row[0].set_ylabel(y, fontsize=9)
    return figure, [list(row) for row in grid]


def curve(axes: Axes, x: Any, by_seed: Iterable[np.ndarray], label: str, style: int) -> None:
    """Means with 95 % intervals. by_seed: for each point float64[seeds]."""
    intervals = [student_interval(values) for values in by_seed]
    half = [0.0 if np.isnan(interval.low) else interval.half_width for interval in intervals]
    means = [interval.mean for interval in intervals]
    look = STYLES[style % len(STYLES)]
    axes.errorbar(x, means, yerr=half, label=label, linewidth=1.5, markersize=4.5, capsize=2, elinewidth=0.9, **look)


def load_curve(
    axes: Axes, rows: pd.DataFrame, column: str, loads: tuple[float, ...], label: str, style: int, **where: Any
) -> None:
    """A column against load."""
    curve(axes, loads, over_loads(rows, column, loads, **where), label, style)


def bars(
    axes: Axes, by_seed: Iterable[np.ndarray], label: str = "", style: int = 1, at: float = 0.0, width: float = 0.6,
    **look: Any,
) -> BarContainer:  # fmt: skip
    """A bar for each, at 0, 1, ... and so far beside it: means with 95 % intervals. by_seed: float64[seeds] each."""
    intervals = [student_interval(values) for values in by_seed]
    return axes.bar(
        np.arange(len(intervals)) + at, [interval.mean for interval in intervals], width, label=label,
        yerr=[0.0 if np.isnan(interval.low) else interval.half_width for interval in intervals],
        capsize=3 if width > 0.5 else 2, **{"color": STYLES[style]["color"], **look},
    )  # fmt: skip


def by_load(
    columns: Mapping[str, str],
    schedulers: Mapping[str, str],
    loads: Sequence[float] | Callable[[str], Sequence[float]],
    y: str = "",
    size: tuple[float, float] = (2.9, 2.7),
    limits: tuple[float, float | None] | None = None,
    **where: Any,
) -> Callable[[pd.DataFrame, Path], None]:
    """A picture with a panel for each column, of a curve for each scheduler over the loads.

    columns: by the name of the column the panel's title. loads: the same for all, or by a scheduler's name. y: of all
    panels, which then share it; without, each has its own. limits: of y. where: which rows.
    """

    def picture(rows: pd.DataFrame, path: Path) -> None:
        figure, row = panels(list(columns.values()), "load", y, size, share_y=bool(y))
        for axes, column in zip(row, columns, strict=True):
            for style, (name, scheduler) in enumerate(schedulers.items()):
                over = tuple(loads(name) if callable(loads) else loads)
                load_curve(axes, rows, column, over, name, style, scheduler=scheduler, **where)
            if limits is not None:
                axes.set_ylim(*limits)
        save(figure, row, path)

    return picture


def by_family(
    columns: Mapping[str, str],
    schedulers: Mapping[str, str],
    loads: tuple[float, ...],
    size: tuple[float, float] = (2.9, 2.7),
    **where: Any,
) -> Callable[[pd.DataFrame, Path], None]:
    """A picture of shares on the first device: a row for each column, a panel for each family, curves as in `by_load`.

    columns: by the name of the column what y is called. where: which rows.
    """

    def picture(rows: pd.DataFrame, path: Path) -> None:
        rows = rows[rows["device"] == rows["device"].iloc[0]]
        families = list(rows["family"].unique())
        figure, grid = panel_rows(families, "load (rate / saturation)", list(columns.values()), size)
        for column, row in zip(columns, grid, strict=True):
            for axes, family in zip(row, families, strict=True):
                here = rows[rows["family"] == family]
                for style, (name, scheduler) in enumerate(schedulers.items()):
                    load_curve(axes, here, column, loads, name, style, scheduler=scheduler, **where)
                axes.set_ylim(0, 1.02)
        save(figure, grid[0], path)

    return picture


def save(figure: Figure, row: list[Axes], path: Path) -> None:
    """One legend above the panels, of what `row` shows, then the file."""
    pairs = [axes.get_legend_handles_labels() for axes in row]
    named = {label: handle for handles, labels in pairs for handle, label in zip(handles, labels, strict=True)}
    labels, handles = list(named), list(named.values())
    figure.legend(
        handles, labels, loc="outside upper center", ncols=legend_columns(labels, figure.get_figwidth()), frameon=False,
        fontsize=9, handlelength=3.4,
    )  # fmt: skip
    figure.savefig(path, dpi=DOTS_PER_INCH)


def legend_columns(labels: list[str], width: float) -> int:
    """How many entries fit beside each other into so many inches; 5 at most."""
    entry = LINE_INCHES + LETTER_INCHES * max(map(len, labels))
    return max(1, min(len(labels), 5, int(width / entry)))
