"""One HTML page about an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from servegym.evaluation.intervals import Interval
from servegym.evaluation.panels.evaluation import Evaluation
from servegym.evaluation.panels.tables import GROUPS, TDG, accounts, conclusions, select
from servegym.evaluation.panels.wording import STARVED, describe, limits, mean_of, novelty, percent, range_of
from servegym.evaluation.reports import page
from servegym.evaluation.reports.notes import fleet_notes
from servegym.evaluation.summary import REFERENCE
from servegym.scenarios.values import load_title

DIFFERENCES_CAPTION = (
    "Black: mean over the cells of a load, with its interval; grey: each cell, by trace. To the right of the line a "
    "policy is better than the baseline; an interval that does not touch the line is clear of chance over runs."
)
PROFILE_CAPTION = (
    "How many of all runs have a TDG ratio above x. A curve above another everywhere has fewer bad runs, whatever one "
    "calls bad; where curves cross, one policy is better in bad cases and the other in good ones."
)


def evaluation_report(
    evaluation: Evaluation, cells: pd.DataFrame, groups: pd.DataFrame, differences: Path, profile: Path, path: Path
) -> Path:
    """Write the page and return its path.

    cells, groups: of `cells_table`, `groups_table`; differences, profile: the PNGs of the functions of `plots`.
    """
    body = [
        page.paragraph(
            f"{evaluation.panel.description} Differences are to {evaluation.baseline_label}.".strip(), "lead"
        ),
        page.section(
            "In short",
            page.bullets([*conclusions(evaluation, groups), *(novelty(label, cells) for label in evaluation.learned)]),
            page.image(differences, DIFFERENCES_CAPTION),
            page.image(profile, PROFILE_CAPTION),
        ),
        page.section("Cells together", *_groups(groups)),
        page.section("At whose cost", page.paragraph(STARVED), page.table(pd.DataFrame(accounts(cells)), "whole")),
        page.section("Every cell", *_cells(cells)),
        page.section(
            "What these figures are not", page.bullets([*limits(evaluation), *fleet_notes(evaluation.profiles)])
        ),
        page.section("What was run", page.facts(evaluation.identity)),
    ]
    path.write_text(page.page(evaluation.title, body), encoding="utf-8")
    return path


def _groups(groups: pd.DataFrame) -> Iterator[str]:
    """A table over all cells for each score; those of loads, traces and devices below it, folded."""
    for score in groups["score"].unique():
        yield page.paragraph(describe(score))
        for by in GROUPS:
            tables = []
            for group, rows in select(groups, by, score).groupby("group", sort=False):
                lines = [
                    {
                        "policy": row["policy"],
                        "mean": mean_of(row, "mean"),
                        "IQM": mean_of(row, "iqm"),
                        "difference": "" if row["verdict"] == REFERENCE else mean_of(row, "difference", "+"),
                        "95 % interval": "" if row["verdict"] == REFERENCE else range_of(row, "difference", "+"),
                        "better in": "" if row["verdict"] == REFERENCE else percent(row, "improvement"),
                        "verdict": row["verdict"],
                    }
                    for _, row in rows.iterrows()
                ]
                title = f"{group}: {rows['cells'].iloc[0]} cells of {rows['seeds'].iloc[0]} seeds"
                tables += [page.paragraph(title), page.table(pd.DataFrame(lines), "whole")]
            yield from tables if by == GROUPS[0] else [page.details(f"By {by}", *tables)]


def _cells(cells: pd.DataFrame) -> Iterator[str]:
    """A folded table for each trace and device: a row a policy, a column a load; and the differences."""
    for (trace, device), of_part in cells.groupby(["trace", "device"], sort=False):
        policies = list(of_part["policy"].unique())
        tables: list[str] = []
        for what, name, sign in (("TDG ratio", TDG, ""), ("difference", f"{TDG}_difference", "+")):
            lines: list[dict[str, Any]] = []
            for policy in policies:
                rows = of_part[of_part["policy"] == policy]
                if sign and rows["verdict"].iloc[0] == REFERENCE:
                    continue
                line, new = {}, rows["held_out"].iloc[0]
                line[f"{what}, load"] = policy + (f" ({new})" if new else "")
                for _, row in rows.iterrows():
                    line[load_title(row["load"])] = Interval.of(row, name).text(f"{sign}.4f")
                lines.append(line)
            tables.append(page.table(pd.DataFrame(lines), "whole"))
        yield page.details(f"{trace} on {device}", *tables)
