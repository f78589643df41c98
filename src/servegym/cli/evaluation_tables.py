"""What `servegym evaluate` prints: a table over all cells, one by load, and what they say in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from servegym.cli.output import new_table, number
from servegym.cli.tables import BEST, show_tables

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from servegym.evaluation.panels.evaluation import Evaluation


def show_evaluation(evaluation: Evaluation, cells: pd.DataFrame, groups: pd.DataFrame, console: Console) -> None:
    """Tables of each score, and what the TDG ratios say in words."""
    from servegym.evaluation.panels.tables import conclusions, scores_in
    from servegym.evaluation.panels.wording import SCORES, STARVED

    console.print(evaluation.title)
    for score in scores_in(groups):
        console.print(SCORES[score])
        _over_all(evaluation, groups, score, console)
        _by_load(evaluation, groups, score, console)
    console.print(STARVED)
    _accounts(cells, console)
    console.print(
        f"Differences are to {evaluation.baseline_label}, on the same requests; intervals are 95 % of a stratified "
        f"bootstrap over {evaluation.over}. Better in: share of the runs above the baseline's."
    )
    for note in evaluation.notes:
        console.print(note)
    for label in evaluation.learned:
        counts = cells[cells["policy"] == label]["held_out"].value_counts(sort=False)
        console.print(f"New to {label}: {', '.join(f'{what} in {count} cells' for what, count in counts.items())}.")
    for line in conclusions(evaluation, groups):
        console.print(line)


def _over_all(evaluation: Evaluation, groups: pd.DataFrame, score: str, console: Console) -> None:
    from servegym.evaluation.panels.tables import select
    from servegym.evaluation.panels.wording import percent

    rows = select(groups, score=score)
    best = rows["mean"].idxmax()
    table = [
        {
            "policy": row["policy"] + BEST * (index == best),
            "mean": interval(row, "mean"),
            "IQM": interval(row, "iqm"),
            "difference": interval(row, "difference", "+"),
            "better in": percent(row, "improvement"),
        }
        for index, row in rows.iterrows()
    ]
    show_tables(console, {f"All {rows['cells'].iloc[0]} cells; *: best mean": table}, ["IQM", "better in"])


def _by_load(evaluation: Evaluation, groups: pd.DataFrame, score: str, console: Console) -> None:
    from servegym.evaluation.panels.tables import select

    rows = select(groups, "load", score)
    titles = list(rows["group"].unique())
    table = new_table("policy", *titles, title="Mean, and difference ± half of its interval")
    for label in evaluation.candidates:
        of_policy = rows[rows["policy"] == label].set_index("group")
        cells = [
            number(of_policy.loc[title, "mean"], 4)
            + ("" if label == evaluation.baseline_label else f"\n{half_width(of_policy.loc[title], 'difference')}")
            for title in titles
        ]
        table.add_row(label, *cells)
    console.print(table)


def _accounts(cells: pd.DataFrame, console: Console) -> None:
    from servegym.evaluation.panels.tables import accounts

    show_tables(console, {"Starved, and p99 of TTFT": accounts(cells)})


def half_width(row: pd.Series, name: str) -> str:
    """A difference ± half the width of its interval, which need not lie evenly about it."""
    half = (row[f"{name}_ci_high"] - row[f"{name}_ci_low"]) / 2
    return f"{row[name]:+.4f}" + ("" if math.isnan(half) else f" ± {half:.4f}")


def interval(row: pd.Series, name: str, sign: str = "") -> str:
    """A figure and the bounds of its interval; a dash where there is none."""
    if math.isnan(row[name]):
        return number(None)
    low, high = row[f"{name}_ci_low"], row[f"{name}_ci_high"]
    bounds = "" if math.isnan(low) else f" ({low:{sign}.4f} to {high:{sign}.4f})"
    return f"{row[name]:{sign}.4f}{bounds}"
