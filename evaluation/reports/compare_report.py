"""One HTML page about a comparison of schedulers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from servegym.evaluation.comparison import Comparison
from servegym.evaluation.comparison_rows import NAME, NOTES, class_tables, comparison_rows, difference_title
from servegym.evaluation.figures import FIGURES
from servegym.evaluation.measures import ATTAINMENT, CLIENTS, LOAD, SERVED, Measure, axis_of, point_title, ratio_of
from servegym.evaluation.plots import comparison_figure
from servegym.evaluation.repeats import over_of
from servegym.evaluation.reports import page
from servegym.evaluation.reports.figures_table import unit_of
from servegym.evaluation.reports.notes import CLOSED_LOOP_NOTE, COMPARISON_NOTES, LOAD_NOTE, fleet_notes
from servegym.evaluation.summary import classes_of, conclusion, rank_of

CAPTION = (
    "Higher is better: how much of the ideal gain, and how many of the requests within their SLOs, remain as {} "
    "grows to the right. Whether two schedulers differ is shown by the paired differences in the tables, not by bars."
)
GROWING = {LOAD: "load", CLIENTS: "the number of clients"}


def compare_report(comparison: Comparison, summary: pd.DataFrame, cells: pd.DataFrame, path: str | Path) -> Path:
    """Write the page and return its path. cells: of `run_comparison`; summary: of `summarise`."""
    axis = axis_of(summary)
    at_points, caption = list(summary.groupby(axis, sort=False)), CAPTION.format(GROWING[axis])
    lead, note = "A closed loop: each client sends when its last request, or session, has ended.", CLOSED_LOOP_NOTE
    if axis == LOAD:
        lead, note = f"Saturation: {page.text_of(comparison.saturation_rate_per_s)} requests/s.", LOAD_NOTE
    columns = comparison_rows(at_points[0][1], comparison.slo)[0]
    of_columns = [words for name, words in NOTES.items() if name in columns]
    notes = [*comparison.repeats.notes, *fleet_notes(comparison.profiles), *COMPARISON_NOTES, note, *of_columns]
    body = [
        page.paragraph(lead, "lead"),
        page.section(
            "In short",
            page.bullets(conclusion(at_point) for _, at_point in at_points),
            page.drawing(comparison_figure(summary, comparison.title), "comparison", caption),
        ),
        *(_section(point_title(axis, point), at_point, comparison.slo) for point, at_point in at_points),
        page.section("What these figures are not", page.bullets(notes)),
        page.section("All figures, means over runs", *_all_figures(cells)),
        page.section("What was run", page.facts(_what_was_run(comparison))),
    ]
    Path(path).write_text(page.page(comparison.title, body), encoding="utf-8")
    return Path(path)


def _section(title: str, at_point: pd.DataFrame, slo: str) -> str:
    first = at_point.iloc[0]
    differences = [
        {
            "difference to the reference": row["scheduler"],
            **{one.title: one.text(row, f"{one.column}_difference", "+") for one in _judged(at_point)},
            f"{rank_of(at_point).name} is": row["verdict"],
        }
        for _, row in at_point[at_point["scheduler"] != first["reference"]].iterrows()
    ]
    closed = axis_of(at_point) == CLIENTS
    rate = "" if closed else f"{page.text_of(first['rate_per_s'])} requests/s; "
    remark = (
        f"{rate}{'M' if closed else 'm'}eans over {first['seeds']} run{'s' * bool(first['seeds'] > 1)}; "
        f"{intervals_over(at_point)}. "
        f"The reference is {first['reference']}."
    )
    minus = difference_title(at_point)
    figures = [{name: cell for name, cell in row.items() if name != minus} for row in comparison_rows(at_point, slo)]
    return page.section(
        title,
        page.paragraph(remark),
        page.table(pd.DataFrame(figures), "whole"),
        *([page.table(pd.DataFrame(differences), "whole")] if differences else []),
        *(
            page.table(pd.DataFrame(rows).drop(columns=axis_of(at_point)).rename(columns={NAME: heading}))
            for heading, rows in class_tables(at_point, slo).items()
        ),
    )


def intervals_over(at_point: pd.DataFrame) -> str:
    if at_point["seeds"].iloc[0] == 1:
        return "there is no interval of one run"
    return f"95 % intervals are over {over_of(at_point)}"


def _judged(at_point: pd.DataFrame) -> list[Measure]:
    """Return the measures with differences."""
    served = [SERVED] * (axis_of(at_point) == CLIENTS)
    return list(dict.fromkeys([rank_of(at_point), ATTAINMENT, ratio_of(at_point), *served]))


def _all_figures(cells: pd.DataFrame) -> Iterator[str]:
    """Yield a table for each load (or number of clients): a row for each figure, a column for each scheduler."""
    axis = axis_of(cells)
    for point, at_point in cells.groupby(axis, sort=False):
        figures = at_point.groupby("scheduler", sort=False)[[*FIGURES, *classes_of(at_point)]]
        means = figures.agg(lambda runs: runs.astype("f8").mean()).T
        means.insert(0, "figure", means.index)
        means.insert(1, "unit", [unit_of(name) for name in means.index])
        yield page.details(point_title(axis, point), page.table(means, "units"))


def _what_was_run(comparison: Comparison) -> dict[str, Any]:
    identity = comparison.identity
    schedulers = {
        label: {"settings": dict(policy.settings) or "defaults", "source": policy.source}
        for label, policy in comparison.policies.items()
    }
    return {**identity, "schedulers": schedulers}
