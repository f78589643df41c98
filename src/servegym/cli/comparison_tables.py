"""What `servegym compare` prints: a table for each load, and what they say in words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from servegym.cli.output import new_table, number

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from servegym.evaluation.comparison import Comparison


def show_comparison(comparison: Comparison, summary: pd.DataFrame, baseline: str | None, console: Console) -> None:
    """A table for each load (or number of clients), the best in bold, and what it says in words."""
    from servegym.evaluation.points import CLIENTS, axis_of, point_title
    from servegym.evaluation.summary import RATIO_TITLES, SHARE_OF_BOUND, THROUGHPUT, conclusion, ratio_of

    bounded, ratio, axis = SHARE_OF_BOUND in summary, ratio_of(summary), axis_of(summary)
    closed = axis == CLIENTS

    console.print(comparison.title)
    for note in comparison.slo_notes:
        console.print(f"SLOs: {note}")
    if not closed:
        console.print(f"Saturation: {number(comparison.saturation_rate_per_s)} requests/s")
    for point, at_point in summary.groupby(axis, sort=False):
        best = at_point[ratio].idxmax()
        pace = "" if closed else f": {number(at_point['rate_per_s'].iloc[0])} requests/s"
        table = new_table(
            "scheduler",
            RATIO_TITLES[ratio],
            *(["% of bound"] if bounded else []),
            *(["requests/s"] if closed else []),
            "SLO met",
            "violated",
            "high / low priority",
            "starved",
            "fairness",
            "TTFT p99 s",
            "evicted",
            f"{RATIO_TITLES[ratio].removesuffix(' ratio')} minus {'best' if baseline is None else 'baseline'}",
            title=f"{point_title(axis, point)}{pace}",
        )
        for index, row in at_point.iterrows():
            difference = with_interval(row, f"{ratio}_difference", 4, "+")
            table.add_row(
                row["scheduler"] + " *" * (index == best),
                with_interval(row, ratio, 4),
                *([percent_with_interval(row, SHARE_OF_BOUND)] if bounded else []),
                *([with_interval(row, THROUGHPUT, 3)] if closed else []),
                with_interval(row, "slo_attainment", 3),
                with_interval(row, "violations", 3),
                " / ".join(number(row[f"slo_attainment_{of}_priority"]) for of in ("high", "low")),
                number(row["starved"]),
                number(row["fairness_by_length"]),
                number(row["ttft_p99_s"], 2),
                number(row["preemptions"], 1),
                "" if row["scheduler"] == row["reference"] else difference,
                style="bold" if index == best else None,
            )
        console.print(table)
    show_classes(summary, console)
    best = f"* best mean {RATIO_TITLES[ratio]}"
    console.print(f"{best}; ± 95 % interval over seeds (Student's t; differences paired by seed)")
    console.print("fairness: Jain's index of the TDG ratios of requests by length, 1 where all get the same share")
    if bounded:
        console.print("% of bound: gain over the clairvoyant bound, which no scheduler exceeds (docs/bounds.md)")
    for _, at_point in summary.groupby(axis, sort=False):
        console.print(conclusion(at_point))


def show_classes(summary: pd.DataFrame, console: Console) -> None:
    """Violations by class of SLOs, at all loads, where there are several classes."""
    from servegym.evaluation.figures import CLASS_VIOLATIONS
    from servegym.evaluation.points import LOAD, axis_of
    from servegym.evaluation.summary import classes_of
    from servegym.scenarios.load import load_title

    axis, classes = axis_of(summary), classes_of(summary)
    if not classes:
        return
    table = new_table(
        "scheduler", axis, *(name.removeprefix(CLASS_VIOLATIONS) for name in classes), title="Violated, by class"
    )
    for _, row in summary.iterrows():
        point = load_title(row[axis]) if axis == LOAD else number(row[axis])
        table.add_row(row["scheduler"], point, *(number(row[name]) for name in classes))
    console.print(table)


def show_unsettled(labels: Iterable[str], lasting_s: float, console: Console) -> None:
    """Whose rates were judged before the steady state. lasting_s: how long requests arrive, of which half is judged."""
    for label in labels:
        console.print(
            f"{label} is in no steady state: answers take longer (p99) than the {number(0.5 * lasting_s, 0)} s of "
            "arrivals before those that are judged; give a longer --duration"
        )


def with_interval(row: pd.Series, name: str, digits: int, sign: str = "") -> str:
    """mean ± half the width of its interval; the mean alone where one seed has none."""
    half_width = (row[f"{name}_ci_high"] - row[f"{name}_ci_low"]) / 2
    mean = f"{row[name]:{sign}.{digits}f}"
    return mean if math.isnan(half_width) else f"{mean} ± {half_width:.{digits}f}"


def percent_with_interval(row: pd.Series, name: str) -> str:
    """`with_interval` of a share, in per cent; a dash where it is unknown."""
    if math.isnan(row[name]):
        return number(None)
    keys = [name, f"{name}_ci_low", f"{name}_ci_high"]
    return with_interval(row[keys].astype("f8") * 100, name, 1)
