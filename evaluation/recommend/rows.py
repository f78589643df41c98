"""The table of a recommendation, as text."""

from __future__ import annotations

from servegym.evaluation.intervals import Interval
from servegym.evaluation.measures import P99_TPOT, P99_TTFT
from servegym.evaluation.recommend.judging import DIFFERENCE, SHARE
from servegym.evaluation.recommend.recommending import OfDevice
from servegym.evaluation.targets import Target

NAME = "setup"


def table_rows(of: OfDevice, target: Target) -> list[dict[str, str]]:
    """A row a setup: engines, the share served as the target says, what it is above the default's, and costs."""
    priced, rows = of.price_per_hour is not None, []
    for _, row in of.table.iterrows():
        shown = {
            NAME: row["label"] + (" (default)" if row["setup"] == default_of(of) else ""),
            "engines": f"{row['engines']}",
            share_title(target): Interval.of(row, SHARE).text(".3f"),
            "above the default": Interval.of(row, DIFFERENCE).text("+.3f") if row["setup"] != default_of(of) else "",
            "windows held": f"{row['held']} of {row['windows']}",
            P99_TTFT.title: P99_TTFT.text(row),
            P99_TPOT.title: P99_TPOT.text(row),
        }
        if priced:
            shown["cost an hour"] = f"{row['cost_per_hour']:.2f}"
            shown["cost of a million tokens"] = f"{row['cost_per_million_tokens']:.3f}"
        rows.append(shown)
    return rows


def default_of(of: OfDevice) -> object:
    return of.chosen.default.setup


def share_title(target: Target) -> str:
    """What the share of the requests that hold the target is called."""
    if target.quantile is None:
        return "SLO attainment" if target.measure == "attainment" else "without a late token"
    return f"{target.quantile.latency.upper()} in time"
