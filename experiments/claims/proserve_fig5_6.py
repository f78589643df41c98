"""ProServe, Figures 5 and 6: which requests SJF delays at low load, and what piles up in EDF's queue at high load."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, Cell, Check, Range, claim, drawing, series, values
from experiments.claims.harness.grids import grid, longer
from experiments.claims.harness.measures import serve_long_prompts
from experiments.claims.harness.timelines import serve_sampled

TOKEN_BUDGET = 512
SCHEDULERS = {name: f"{name}:max_num_batched_tokens={TOKEN_BUDGET}" for name in ("edf", "sjf")}
LOW_LOAD, MEDIUM_LOAD, HIGH_LOAD, OVERLOAD = 0.3, 0.7, 1.0, 1.4
NONE_LATE = Range(high=0.01)
SURGE = Range(low=2.0)  # the last quarter of the arrivals has at least twice the count of the first
LEVEL = Range(high=2.0)
TOGETHER = Range(low=0.7)  # correlation of the two counts over time
COUNTS = {"urgent": "urgent", "timed-out": "timed_out"}
LATE_TOO = {"urgent or late": "urgent_in_all", "timed-out": "timed_out"}


def measure(cell: Cell) -> dict[str, Any]:
    """Lateness of long prompts up to medium load, counts of the queue over time above."""
    if cell.load <= MEDIUM_LOAD:
        return serve_long_prompts(cell, TOKEN_BUDGET)
    return serve_sampled(cell)


def growth(counts: np.ndarray) -> float:
    """Mean of the last quarter over mean of the first, each plus one request: none to none is level."""
    quarter = len(counts) // 4
    return float((counts[-quarter:].mean() + 1) / (counts[:quarter].mean() + 1))


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's; 0 where one of them never changes."""
    return float(np.corrcoef(one, other)[0, 1]) if one.std() > 0 and other.std() > 0 else 0.0


def late_checks(rows: pd.DataFrame, load: float, examines: str = "") -> list[Check]:
    at_load = functools.partial(values, rows, load=load)
    late = {name: at_load("long_late_share", scheduler=scheduler) for name, scheduler in SCHEDULERS.items()}
    return [
        Check("share of long prompts late, SJF - EDF", late["sjf"] - late["edf"], ABOVE_0, examines),
        Check("share of long prompts late, EDF", late["edf"], NONE_LATE, examines),
    ]


def queue_checks(
    rows: pd.DataFrame, load: float, examines: str = "", of_counts: dict[str, str] = COUNTS
) -> list[Check]:
    """How counts grow, and whether EDF's two counts, which `of_counts` names with their columns, go together."""
    counts = {
        (name, what): series(rows, column, load=load, scheduler=scheduler)
        for name, scheduler in SCHEDULERS.items()
        for what, column in of_counts.items()
    }
    checks = [
        Check(
            f"{what} requests, last over first quarter, {name.upper()}",
            np.array([growth(of_seed) for of_seed in counts[name, what]]),
            SURGE if name == "edf" else LEVEL,
            examines,
        )
        for name in SCHEDULERS
        for what in of_counts
    ]
    together = np.array([correlation(*pair) for pair in zip(*(counts["edf", what] for what in of_counts), strict=True)])
    return [*checks, Check(f"correlation of {' and '.join(of_counts)}, EDF", together, TOGETHER, examines)]


def picture(rows: pd.DataFrame, path: Path) -> None:
    first = rows.iloc[0]
    here = rows[(rows["family"] == first["family"]) & (rows["device"] == first["device"])]
    loads = {f"{name.upper()}, load {load:g}": (name, load) for load in (HIGH_LOAD, OVERLOAD) for name in SCHEDULERS}
    figure, row = drawing.panels(list(loads), "time, s", "requests in the queue", share_y=False)
    for axes, (name, load) in zip(row, loads.values(), strict=True):
        cell = here[(here["scheduler"] == SCHEDULERS[name]) & (here["load"] == load)].sort_values("seed").iloc[0]
        for style, (what, column) in enumerate(COUNTS.items()):
            look = {**drawing.STYLES[style], "marker": None}
            axes.plot(cell["time_s"], cell[column], label=what, linewidth=1.4, **look)
        axes.set_ylim(bottom=0)
    drawing.save(figure, row, path)


@claim(
    "proserve-fig5-6",
    cells=grid(SCHEDULERS.values(), (LOW_LOAD, MEDIUM_LOAD, HIGH_LOAD, OVERLOAD), longer),
    measure=measure,
    picture=picture,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    overload = "sustained overload, load 1.4"
    return [
        *late_checks(rows, LOW_LOAD),
        *queue_checks(rows, HIGH_LOAD),
        *late_checks(rows, MEDIUM_LOAD, "medium load, 0.7"),
        *queue_checks(rows, OVERLOAD, overload),
        *queue_checks(rows, OVERLOAD, f"{overload}, those already late count as urgent", LATE_TOO),
        Check(
            "timed-out requests of SJF over those of EDF, last quarter",
            np.array([last_quarter_ratio(sjf, edf) for sjf, edf in zip(*timed_out(rows, OVERLOAD), strict=True)]),
            Range(high=0.5),
            overload,
        ),
    ]


def timed_out(rows: pd.DataFrame, load: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Counts by seed, of SJF and of EDF."""
    sjf, edf = (series(rows, "timed_out", load=load, scheduler=SCHEDULERS[name]) for name in ("sjf", "edf"))
    return sjf, edf


def last_quarter_ratio(one: np.ndarray, other: np.ndarray) -> float:
    """Mean count of one over that of the other, each plus one request."""
    quarter = len(one) // 4
    return float((one[-quarter:].mean() + 1) / (other[-quarter:].mean() + 1))
