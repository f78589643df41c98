"""The tables of a comparison: means over seeds with confidence intervals, and differences paired by seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from servegym.errors import ExperimentError
from servegym.evaluation.figures import CLASS_ATTAINMENT, CLASS_VIOLATIONS
from servegym.evaluation.intervals import BETTER, SAME, UNKNOWN, WORSE, student_interval, verdict
from servegym.evaluation.measures import (
    CLIENTS,
    COST,
    ENGINE_HOURS,
    THROUGHPUT,
    Measure,
    axis_of,
    point_title,
    ranked_by,
    ratio_of,
)
from servegym.evaluation.repeats import COLUMN, NOT_SAID, over_of

WITH_INTERVAL = ("slo_attainment", "violations")  # and the ratio of gains, and what is ranked by
MEANS = (
    "slo_attainment_high_priority", "slo_attainment_low_priority", "violations_high_priority",
    "violations_low_priority", "starved", "fairness_by_client", "fairness_by_length", "ttft_p99_s", "tpot_p99_s",
    "evictions",
)  # fmt: skip
MOST_NAMED = 8  # schedulers in a sentence; a table has them all
SHARE_OF_BOUND, SHARE_OF_BEST = SHARES_OF = "share_of_bound", "share_of_best"  # where there are such references
OPTIONAL = (*SHARES_OF, ENGINE_HOURS.column, COST.column)

REFERENCE = "reference"
VERDICT_WORDS = {
    BETTER: "better:",
    SAME: "statistically not distinguishable from it:",
    WORSE: "worse:",
    UNKNOWN: "with one run one cannot say how sure the order is of",
}


def summarise(cells: pd.DataFrame, baseline: str | None = None, rank_by: str = "tdg") -> pd.DataFrame:
    """One row a load (or number of clients) and scheduler, in the order of the cells.

    cells: what `run_comparison` returns. baseline: label of the scheduler to which the others are compared
    (None: at each load the best by mean). rank_by: the measure that says which is best (`RANKS`).

    The ratio is tdg_ratio, or gain_ratio where the gain is another than TDG (`ratio_of`). For each x of the ratio,
    slo_attainment, violations and the measure ranked by, the columns are x, its 95 % interval x_ci_low to x_ci_high
    (`interval_over` says over what), and the difference to the reference x_difference, x_difference_ci_low,
    x_difference_ci_high. Differences are taken seed by seed: both served the same requests, so what a seed adds to both
    does not widen the interval. `reference` names the scheduler compared to, `verdict` says whether the interval of the
    difference in what is ranked by (`ranked_by`) leaves out 0. The intervals are not corrected for how many schedulers
    there are, nor for the best being chosen from the same runs. The columns `OPTIONAL` and their intervals
    are there where the cells have them. Raises ExperimentError for a baseline that was not compared, and a measure
    there is not.
    """
    labels, rank, axis = list(cells["scheduler"].unique()), ranked_by(rank_by, cells), axis_of(cells)
    judged = dict.fromkeys([ratio_of(cells).column, *WITH_INTERVAL, *([THROUGHPUT] if axis == CLIENTS else [])])
    judged[rank.column] = None
    if baseline is not None:
        check_baseline(baseline, labels)
    rows = []
    for point in cells[axis].unique():
        at_point = cells[cells[axis] == point]
        by_seed = {
            label: at_point[at_point["scheduler"] == label].sort_values("seed").reset_index() for label in labels
        }
        reference = baseline or max(labels, key=lambda label: rank.height(by_seed[label][rank.column].mean()))
        rows += [
            {axis: point, "scheduler": label, "ranked_by": rank_by}
            | _row(by_seed[label], by_seed[reference], reference, list(judged), rank)
            for label in labels
        ]
    return pd.DataFrame(rows)


def classes_of(table: pd.DataFrame, *prefixes: str) -> list[str]:
    """The columns of a share by class, of cells or a summary; none where there is one class.

    prefixes: of what; all that there is unless said.
    """
    return [name for name in table if name.startswith(prefixes or (CLASS_ATTAINMENT, CLASS_VIOLATIONS))]


def check_baseline(baseline: str, labels: list[str]) -> None:
    """Raise ExperimentError unless the baseline is one of the compared schedulers."""
    if baseline not in labels:
        raise ExperimentError(f"baseline {baseline!r} is not compared; compared are {', '.join(labels)}")


def _row(
    runs: pd.DataFrame, reference: pd.DataFrame, reference_label: str, judged: list[str], rank: Measure
) -> dict[str, Any]:
    row: dict[str, Any] = {} if axis_of(runs) == CLIENTS else {"rate_per_s": runs["rate_per_s"].iloc[0]}
    row["seeds"] = len(runs)
    row |= {COLUMN: runs[COLUMN].iloc[0]} if COLUMN in runs else {}
    row |= {name: runs[name].astype("f8").mean() for name in (*MEANS, *classes_of(runs))}
    for name in judged:
        row |= student_interval(runs[name]).columns(name)
    for name in OPTIONAL:
        if name in runs:
            row |= student_interval(runs[name]).columns(name)
    row["reference"] = reference_label
    differences = {name: student_interval(runs[name] - reference[name]) for name in judged}
    for name, difference in differences.items():
        row |= difference.columns(f"{name}_difference")
    is_reference = runs["scheduler"].iloc[0] == reference_label
    return row | {"verdict": REFERENCE if is_reference else verdict(differences[rank.column], rank.higher)}


def rank_of(summary: pd.DataFrame) -> Measure:
    return ranked_by(summary["ranked_by"].iloc[0], summary)


def best_of(at_point: pd.DataFrame) -> str:
    """The scheduler that is best at a load (or number of clients), by what the rows are ranked by."""
    rank = rank_of(at_point)
    return str(at_point["scheduler"][at_point[rank.column].map(rank.height).idxmax()])


def conclusion(at_point: pd.DataFrame) -> str:
    """What the rows of a load (or number of clients) say of what they are ranked by, in a sentence."""
    axis, reference, by = axis_of(at_point), at_point["reference"].iloc[0], rank_of(at_point).name
    parts = [f"best by {by} is {reference}" if best_of(at_point) == reference else f"by {by} against {reference}"]
    for judged, words in VERDICT_WORDS.items():
        schedulers = at_point["scheduler"][at_point["verdict"] == judged]
        if len(schedulers):
            named = len(schedulers) <= MOST_NAMED
            parts.append(f"{words} {', '.join(schedulers) if named else f'{len(schedulers)} others'}")
    over = over_of(at_point)
    only = f" (over {over})" if over in NOT_SAID and at_point["seeds"].min() > 1 else ""
    return f"{point_title(axis, at_point[axis].iloc[0])}: {'; '.join(parts)}{only}."


def save_tables(cells: pd.DataFrame, summary: pd.DataFrame, directory: Path) -> list[Path]:
    """Write `cells.parquet` and `summary.csv`; returns the files."""
    cells_path, summary_path = directory / "cells.parquet", directory / "summary.csv"
    cells.to_parquet(cells_path, index=False)
    summary.to_csv(summary_path, index=False)
    return [cells_path, summary_path]
