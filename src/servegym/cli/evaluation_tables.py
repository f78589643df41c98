"""What `servegym evaluate` prints: a table over all cells, one by load, and what they say in words."""

from __future__ import annotations

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
    from servegym.evaluation.intervals import Interval
    from servegym.evaluation.panels.tables import select
    from servegym.evaluation.panels.wording import percent

    rows = select(groups, score=score)
    best = rows["mean"].idxmax()
    table = [
        {
            "policy": row["policy"] + BEST * (index == best),
            "mean": Interval.of(row, "mean").in_words(".4f"),
            "IQM": Interval.of(row, "iqm").in_words(".4f"),
            "difference": Interval.of(row, "difference").in_words(),
            "better in": percent(row, "improvement"),
        }
        for index, row in rows.iterrows()
    ]
    show_tables(console, {f"All {rows['cells'].iloc[0]} cells; *: best mean": table}, ["IQM", "better in"])


def _by_load(evaluation: Evaluation, groups: pd.DataFrame, score: str, console: Console) -> None:
    from servegym.evaluation.intervals import Interval
    from servegym.evaluation.panels.tables import select

    rows = select(groups, "load", score)
    titles = list(rows["group"].unique())
    table = new_table("policy", *titles, title="Mean, and difference ± half of its interval")
    for label in evaluation.candidates:
        of_policy = rows[rows["policy"] == label].set_index("group")
        cells = []
        for title in titles:
            row = of_policy.loc[title]
            less = "" if label == evaluation.baseline_label else f"\n{Interval.of(row, 'difference').text('+.4f')}"
            cells.append(number(row["mean"], 4) + less)
        table.add_row(label, *cells)
    console.print(table)


def _accounts(cells: pd.DataFrame, console: Console) -> None:
    from servegym.evaluation.panels.tables import accounts

    show_tables(console, {"Starved, and p99 of TTFT": accounts(cells)})
