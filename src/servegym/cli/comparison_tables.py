"""What `servegym compare` prints: a table for each load, and conclusions in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servegym.cli.output import number, show_notes
from servegym.cli.tables import BEST, show_tables

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from servegym.evaluation.comparison import Comparison


def show_comparison(comparison: Comparison, summary: pd.DataFrame, console: Console) -> None:
    """Print a table for each load (or number of clients), with the best in bold, and conclusions in words."""
    from servegym.evaluation.comparison_rows import NAME, NOTES, class_tables, comparison_rows, leaving
    from servegym.evaluation.measures import CLIENTS, axis_of, point_title
    from servegym.evaluation.summary import best_of, conclusion, rank_of

    axis, tables = axis_of(summary), dict[str, list[dict[str, str]]]()
    console.print(comparison.title)
    show_notes(comparison.provenance, console)
    if axis != CLIENTS:
        console.print(f"Saturation: {number(comparison.saturation_rate_per_s)} requests/s{own_rate(comparison)}")
    for point, at_point in summary.groupby(axis, sort=False):
        pace = "" if axis == CLIENTS else f": {number(at_point['rate_per_s'].iloc[0])} requests/s"
        best, rows = best_of(at_point), comparison_rows(at_point, comparison.slo)
        for row in rows:
            row[NAME] += BEST * (row[NAME] == best)
        tables[f"{point_title(axis, point)}{pace}"] = rows
    shown = show_tables(console, tables, leaving(rows))
    for title, rows in class_tables(summary, comparison.slo).items():
        show_tables(console, {title: rows})
    console.print(f"*: best mean {rank_of(summary).name}; {comparison.repeats.legend}")
    for note in comparison.repeats.notes:
        console.print(note)
    for title, note in NOTES.items():
        if title in shown:
            console.print(note)
    for _, at_point in summary.groupby(axis, sort=False):
        console.print(conclusion(at_point))


def own_rate(comparison: Comparison) -> str:
    """Write a part of a sentence: the rate and load of a file's own times."""
    rate = comparison.own_rate_per_s
    if rate is None:
        return ""
    load = number(rate / comparison.saturation_rate_per_s)
    return f"; {comparison.trace_name}'s own times are {number(rate)} requests/s, load {load}"


def show_unsettled(summary: pd.DataFrame, name: str, lasting_s: float, console: Console) -> None:
    """Print which rates were judged outside a steady state, and why. lasting_s: time over which requests should
    arrive."""
    for _, row in summary[~summary["settled"]].iterrows():
        requests, span_s = number(row["requests"], 0), number(row["span_s"], 0)
        if row["is_short"] > 0:
            console.print(
                f"{row[name]} is not settled: a run has {requests} requests, all of the file, with {span_s} s of "
                f"arrivals in place of {number(lasting_s, 0)}; --resample draws as many as that takes, --duration asks "
                "for less"
            )
        else:
            console.print(
                f"{row[name]} is not in a steady state: answers take longer (p99) than half of the {span_s} s of "
                "arrivals, the time before those that are judged; give a longer --duration"
            )
