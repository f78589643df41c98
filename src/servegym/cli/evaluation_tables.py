"""What `servegym evaluate` prints: a table over all cells, one for each load, and conclusions in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servegym.cli.tables import BEST, show_tables

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from servegym.evaluation.panels.evaluation import Evaluation

NAME = "policy"


def show_evaluation(
    evaluation: Evaluation, runs: pd.DataFrame, cells: pd.DataFrame, groups: pd.DataFrame, console: Console
) -> None:
    """Print tables as `compare` does, one of each score over all cells, and conclusions in words."""
    from servegym.evaluation.panels.tables import conclusions, scores_in
    from servegym.evaluation.panels.wording import describe

    console.print(evaluation.title)
    _overview(evaluation, runs, groups, console)
    for score in scores_in(groups):
        console.print(describe(score))
        _over_all(groups, score, console)
    for line in notes(evaluation, cells):
        console.print(line)
    for line in conclusions(evaluation, groups):
        console.print(line)


def notes(evaluation: Evaluation, cells: pd.DataFrame) -> list[str]:
    """List the lines below the tables that explain them."""
    from servegym.evaluation.panels.wording import novelty

    interval = f"intervals are 95 % of a stratified bootstrap over {evaluation.over}"
    return [
        f"Differences are to {evaluation.baseline_label}, the reference, on the same requests; "
        f"{interval if evaluation.has_intervals else 'one run of each, so no intervals'}. Better in: share of the runs "
        "that are better than the baseline's.",
        *evaluation.notes,
        *(novelty(label, cells) for label in evaluation.learned),
    ]


def _overview(evaluation: Evaluation, runs: pd.DataFrame, groups: pd.DataFrame, console: Console) -> None:
    from servegym.evaluation.comparison_rows import NOTES, comparison_rows, leaving
    from servegym.evaluation.panels.tables import overview
    from servegym.evaluation.summary import best_of

    tables = {}
    for title, table in overview(evaluation, runs, groups).items():
        rows, best = comparison_rows(table, evaluation.panel.slo, NAME), best_of(table)
        for row in rows:
            row[NAME] += BEST * (row[NAME] == best)
        tables[title] = rows
    shown = show_tables(console, tables, leaving(rows))
    console.print(f"*: best mean {evaluation.rank.name}")
    for title, note in NOTES.items():
        if title in shown:
            console.print(note)


def _over_all(groups: pd.DataFrame, score: str, console: Console) -> None:
    from servegym.evaluation.intervals import Interval
    from servegym.evaluation.panels.tables import all_cells, select
    from servegym.evaluation.panels.wording import percent

    rows = select(groups, score=score)
    table = [
        {
            NAME: row["policy"],
            "mean": Interval.of(row, "mean").in_words(".4f"),
            "IQM": Interval.of(row, "iqm").in_words(".4f"),
            "difference": Interval.of(row, "difference").in_words(),
            "better in": percent(row, "improvement"),
        }
        for _, row in rows.iterrows()
    ]
    show_tables(console, {all_cells(rows): table}, ["IQM", "better in"])
