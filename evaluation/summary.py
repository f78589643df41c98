"""The tables of a comparison: means over seeds with confidence intervals, and differences paired by seed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.errors import ExperimentError
from servegym.evaluation.figures import CLASS_VIOLATIONS
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.points import CLIENTS, axis_of, point_title

if TYPE_CHECKING:
    import pandas as pd

TDG, GAIN_RATIO = "tdg_ratio", "gain_ratio"
RATIO_TITLES = {TDG: "TDG ratio", GAIN_RATIO: "gain ratio"}
WITH_INTERVAL = ("slo_attainment", "violations")  # and the ratio of gains
THROUGHPUT = "throughput_requests_per_s"  # with an interval in closed loops, where no rate is given
MEANS = (
    "slo_attainment_high_priority", "slo_attainment_low_priority", "violations_high_priority",
    "violations_low_priority", "starved", "fairness_by_client", "fairness_by_length", "ttft_p99_s", "preemptions",
)  # fmt: skip
SHARE_OF_BOUND, SHARE_OF_BEST = SHARES = "share_of_bound", "share_of_best"  # columns where there are such references

REFERENCE, BETTER, SAME, WORSE, UNKNOWN = "reference", "better", "not distinguishable", "worse", "one seed"
VERDICT_WORDS = {
    BETTER: "better:",
    SAME: "statistically not distinguishable from it:",
    WORSE: "worse:",
    UNKNOWN: "with one seed one cannot say how sure the order is of",
}


def summarise(cells: pd.DataFrame, baseline: str | None = None) -> pd.DataFrame:
    """One row a load (or number of clients) and scheduler, in the order of the cells.

    cells: what `run_comparison` returns. baseline: label of the scheduler to which the others are compared
    (None: at each load the one with the best mean ratio).

    The ratio is tdg_ratio, or gain_ratio where the gain is another than TDG (`ratio_of`). For x of it, slo_attainment
    and violations there are x, its 95 % interval over seeds x_ci_low to x_ci_high, and the
    difference to the reference x_difference, x_difference_ci_low, x_difference_ci_high. Differences are taken
    seed by seed: both served the same requests, so what a seed adds to both does not widen the interval.
    `reference` names the scheduler compared to, `verdict` says whether the interval of the ratio's difference
    leaves out 0. The intervals are not corrected for how many schedulers there are, nor for the best being chosen from
    the same runs. `share_of_bound`, `share_of_best` and their intervals are there where the cells have them.
    Raises ExperimentError for a baseline that was not compared.
    """
    import pandas as pd

    labels, ratio, axis = list(cells["scheduler"].unique()), ratio_of(cells), axis_of(cells)
    if baseline is not None:
        check_baseline(baseline, labels)
    rows = []
    for point in cells[axis].unique():
        at_point = cells[cells[axis] == point]
        by_seed = {
            label: at_point[at_point["scheduler"] == label].sort_values("seed").reset_index() for label in labels
        }
        reference = baseline or max(labels, key=lambda label: by_seed[label][ratio].mean())
        rows += [
            {axis: point, "scheduler": label} | _row(by_seed[label], by_seed[reference], reference, ratio)
            for label in labels
        ]
    return pd.DataFrame(rows)


def ratio_of(table: pd.DataFrame) -> str:
    """By which column cells or a summary are judged: the TDG ratio, or for another gain its share of the ideal."""
    return TDG if GAIN_RATIO not in table or (TDG in table and table[TDG].notna().any()) else GAIN_RATIO


def classes_of(table: pd.DataFrame) -> list[str]:
    """The columns of violations by class, of cells or a summary; none where there is one class."""
    return [name for name in table if name.startswith(CLASS_VIOLATIONS)]


def check_baseline(baseline: str, labels: list[str]) -> None:
    """Raise ExperimentError unless the baseline is one of the compared schedulers."""
    if baseline not in labels:
        raise ExperimentError(f"baseline {baseline!r} is not compared; compared are {', '.join(labels)}")


def _row(runs: pd.DataFrame, reference: pd.DataFrame, reference_label: str, ratio: str) -> dict[str, Any]:
    closed = axis_of(runs) == CLIENTS
    row: dict[str, Any] = {} if closed else {"rate_per_s": runs["rate_per_s"].iloc[0]}
    row["seeds"] = len(runs)
    judged = (ratio, *WITH_INTERVAL, *([THROUGHPUT] if closed else []))
    for name in judged:
        row |= _columns(name, student_interval(runs[name]))
    row |= {name: runs[name].astype("f8").mean() for name in (*MEANS, *classes_of(runs))}
    for share in SHARES:
        if share in runs:
            row |= _columns(share, student_interval(runs[share]))
    row["reference"] = reference_label
    for name in judged:
        row |= _columns(f"{name}_difference", student_interval(runs[name] - reference[name]))
    is_reference = runs["scheduler"].iloc[0] == reference_label
    return row | {"verdict": REFERENCE if is_reference else _verdict(row, ratio)}


def _columns(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.mean, f"{name}_ci_low": interval.low, f"{name}_ci_high": interval.high}


def _verdict(row: dict[str, Any], ratio: str) -> str:
    low, high = row[f"{ratio}_difference_ci_low"], row[f"{ratio}_difference_ci_high"]
    if math.isnan(low):
        return UNKNOWN
    return BETTER if low > 0 else WORSE if high < 0 else SAME


def conclusion(at_point: pd.DataFrame) -> str:
    """What the rows of a load (or number of clients) say of their ratios, in a sentence."""
    axis, reference = axis_of(at_point), at_point["reference"].iloc[0]
    best = at_point["scheduler"][at_point[ratio_of(at_point)].idxmax()]
    parts = [f"{'best is' if best == reference else 'against'} {reference}"]
    for verdict, words in VERDICT_WORDS.items():
        schedulers = at_point["scheduler"][at_point["verdict"] == verdict]
        if len(schedulers):
            parts.append(f"{words} {', '.join(schedulers)}")
    return f"{point_title(axis, at_point[axis].iloc[0])}: {'; '.join(parts)}."


def save_tables(cells: pd.DataFrame, summary: pd.DataFrame, directory: Path) -> list[Path]:
    """Write `cells.parquet` and `summary.csv`; returns the files."""
    cells_path, summary_path = directory / "cells.parquet", directory / "summary.csv"
    cells.to_parquet(cells_path, index=False)
    summary.to_csv(summary_path, index=False)
    return [cells_path, summary_path]
