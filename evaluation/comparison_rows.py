"""The rows of a comparison's tables as text, in a terminal and in a report alike."""

from __future__ import annotations

import pandas as pd

from servegym.evaluation.figures import CLASS_ATTAINMENT, CLASS_VIOLATIONS
from servegym.evaluation.measures import (
    ATTAINMENT,
    CLIENTS,
    COST,
    ENGINE_HOURS,
    EVICTIONS,
    FAIRNESS,
    LATE_TOKEN,
    LOAD,
    P99_TPOT,
    P99_TTFT,
    SERVED,
    STARVED,
    Measure,
    axis_of,
    ratio_of,
    shows_late_tokens,
)
from servegym.evaluation.summary import REFERENCE, SHARE_OF_BEST, SHARE_OF_BOUND, classes_of, rank_of
from servegym.scenarios.values import load_title

NAME, BY_PRIORITY = "scheduler", "attainment, high / low priority"
BOUND = Measure(SHARE_OF_BOUND, "% of bound", 1, 100)
BEST_FOUND = Measure(SHARE_OF_BEST, "% of best found", 1, 100)
NOTES = {
    LATE_TOKEN.title: "Late-token share: of the requests, those of which any token missed its deadline (QoServe's "
    "violations). A request may attain its SLOs all the same: they judge mean TPOT.",
    FAIRNESS.title: "Fairness by length: Jain's index of gain / ideal gain of requests by length, 1 where all get the "
    "same part.",
    BOUND.title: "% of bound: gain over the clairvoyant bound, which no scheduler exceeds (docs/bounds.md).",
    BEST_FOUND.title: "% of best found: gain over that of the best run that a search has found (docs/headroom.md).",
}  # notes below a table, by the column they explain


def comparison_rows(at_point: pd.DataFrame, slo: str, name: str = NAME) -> list[dict[str, str]]:
    """Of a load (or number of clients): a row a scheduler, cells by the titles of their columns.

    What it is ranked by, SLO attainment, TDG ratio, p99 of TTFT and of TPOT come first. slo: the recipe. name: what the
    column of names is called.
    """
    rank = rank_of(at_point)
    shown = [rank, ATTAINMENT, ratio_of(at_point), P99_TTFT, P99_TPOT]
    shown += [SERVED] * (axis_of(at_point) == CLIENTS) + [BOUND] * (SHARE_OF_BOUND in at_point)
    shown += [BEST_FOUND] * (SHARE_OF_BEST in at_point)
    shown += [one for one in (ENGINE_HOURS, COST) if one.column in at_point]
    shown += [LATE_TOKEN] * shows_late_tokens(slo)
    rest = [one for one in (STARVED, FAIRNESS, EVICTIONS) if one not in shown]
    minus = difference_title(at_point)
    return [
        {
            name: row["scheduler"],
            **{one.title: one.text(row) for one in dict.fromkeys(shown)},
            minus: "" if row["verdict"] == REFERENCE else rank.text(row, f"{rank.column}_difference", "+"),
            BY_PRIORITY: " / ".join(ATTAINMENT.text(row, f"slo_attainment_{of}_priority") for of in ("high", "low")),
            **{one.title: one.text(row) for one in rest},
        }
        for _, row in at_point.iterrows()
    ]


def difference_title(at_point: pd.DataFrame) -> str:
    return f"{rank_of(at_point).name} minus reference"


def leaving(rows: list[dict[str, str]]) -> list[str]:
    """The columns that a table may drop, the first to drop first."""
    minus = next(name for name in rows[0] if name.endswith(" minus reference"))
    order = [EVICTIONS.title, FAIRNESS.title, STARVED.title, BY_PRIORITY, LATE_TOKEN.title, minus]
    order += [BOUND.title, BEST_FOUND.title]
    return order


def class_tables(summary: pd.DataFrame, slo: str) -> dict[str, list[dict[str, str]]]:
    """By title: a row a load and scheduler, of what a class of SLOs attained; none where there is one class."""
    axis, shown = axis_of(summary), {CLASS_ATTAINMENT: f"{ATTAINMENT.title} by class"}
    if shows_late_tokens(slo):
        shown[CLASS_VIOLATIONS] = f"{LATE_TOKEN.title.capitalize()} by class"
    return {
        title: [
            {
                NAME: row["scheduler"],
                axis: load_title(row[axis]) if axis == LOAD else str(row[axis]),
                **{name.removeprefix(prefix): ATTAINMENT.text(row, name) for name in classes_of(summary, prefix)},
            }
            for _, row in summary.iterrows()
        ]
        for prefix, title in shown.items()
        if classes_of(summary, prefix)
    }
