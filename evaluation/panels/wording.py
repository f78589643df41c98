"""Words for the results of an evaluation, the same in tables, reports and model cards."""

from __future__ import annotations

import math

import pandas as pd

from servegym.evaluation.intervals import Interval
from servegym.evaluation.measures import BY_COLUMN
from servegym.evaluation.panels.evaluation import Evaluation
from servegym.evaluation.panels.provenance import SEEN, UNKNOWN
from servegym.evaluation.panels.tables import ATTAINMENT, TDG
from servegym.evaluation.summary import SHARE_OF_BEST, SHARE_OF_BOUND
from servegym.scenarios.values import load_title

SCORES = {
    TDG: "TDG ratio: gain over ideal gain.",
    SHARE_OF_BOUND: "Share of the bound: gain over what no policy can exceed, even one that knows the future.",
    SHARE_OF_BEST: "Share of the best found: gain over that of the best run a search that knows the future has found.",
    ATTAINMENT: "SLO attainment: share of the requests that met their SLOs.",
}

STARVED = (
    "Starved: share of the requests never served, or over 10 times late; fairness, Jain's index of gain / ideal gain "
    "of requests by length; and the p99 of TTFT in seconds."
)


def describe(score: str) -> str:
    """A sentence that defines a score."""
    return SCORES[score] if score in SCORES else f"{BY_COLUMN[score].title}."


def mean_of(row: pd.Series, name: str, sign: str = "") -> str:
    """A figure of `groups_table`; a dash where there is none."""
    return "-" if math.isnan(row[name]) else f"{row[name]:{sign}.4f}"


def range_of(row: pd.Series, name: str, sign: str = "") -> str:
    """The bounds of its interval."""
    return Interval.of(row, name).bounds(f"{sign}.4f")


def percent(row: pd.Series, name: str) -> str:
    """A share with the bounds of its interval, in per cent of the runs."""
    share = Interval.of(row, name, 100)
    if math.isnan(share.mean):
        return "-"
    return f"{share.mean:.0f} %" + (f" ({share.bounds('.0f')})" if share.has_width else "")


def novelty(label: str, cells: pd.DataFrame) -> str:
    """In how many cells what is new to a learned policy."""
    counts = cells[cells["policy"] == label]["held_out"].value_counts(sort=False)
    counted = ", ".join(f"{what} in {count} of {counts.sum()} cells" for what, count in counts.items())
    warn = " Seen or unknown cells are not held out." if {SEEN, UNKNOWN} & set(counts.index) else ""
    return f"New to {label}: {counted}.{warn}"


def limits(evaluation: Evaluation) -> list[str]:
    """The limits that hold for every figure of an evaluation."""
    panel = evaluation.panel
    return [
        f"Every cell (trace, device, load) has {panel.seeds} seeds of its own, or one run where all have the same; "
        "in a run all policies serve the same requests, so differences are taken run by run.",
        "IQM is the mean of the middle half of the runs. 'Better in' is the share of the runs in which a policy has "
        "more than the baseline, a tie being half of one.",
        "Intervals over several cells are 95 % intervals of a bootstrap that draws seeds anew within each cell; those "
        f"of one cell are Student's t. They are over {evaluation.over}. Of other traces, devices and SLOs they say "
        "nothing.",
        *evaluation.notes,
        "They are not corrected for how many policies and cells there are: of 20 cells in which nothing differs, one "
        "is called better or worse.",
        f"Loads are {', '.join(map(load_title, panel.loads))}, relative to the requests per second of sarathi-fcfs "
        f"when all requests are there from the start; a run serves {panel.requests:,} requests.",
    ]
