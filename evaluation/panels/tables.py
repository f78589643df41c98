"""The tables of an evaluation: every cell by itself, and cells together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from servegym.errors import ExperimentError
from servegym.evaluation.intervals import BETTER, SAME, UNKNOWN, WORSE, Interval, verdict
from servegym.evaluation.measures import BY_COLUMN, LATE_TOKEN, RATIOS, TDG, Measure
from servegym.evaluation.panels import statistics
from servegym.evaluation.panels.evaluation import Evaluation
from servegym.evaluation.repeats import COLUMN, over_of
from servegym.evaluation.summary import MEANS, REFERENCE, SHARES_OF, summarise
from servegym.scenarios.values import load_title

ATTAINMENT = "slo_attainment"
ALL = "all"
GROUPS = (ALL, "load", "trace", "device")
RUNS_FILE, CELLS_FILE, GROUPS_FILE = "runs.parquet", "cells.csv", "groups.csv"


def scores_of(runs: pd.DataFrame, rank: Measure = RATIOS[TDG]) -> list[str]:
    """The columns policies are judged by: the measure they are ranked by, the TDG ratio, shares of references if every
    run has one, attainment. Raises ExperimentError for a run without the measure they are ranked by.
    """
    if runs[rank.column].isna().any():
        raise ExperimentError(f"{rank.name} is not known of every run; rank by another measure")
    shares = [share for share in SHARES_OF if share in runs and not runs[share].isna().any()]
    return list(dict.fromkeys([rank.column, TDG, *shares, ATTAINMENT]))


def cells_table(evaluation: Evaluation, runs: pd.DataFrame) -> pd.DataFrame:
    """One row a trace, device, load and policy, in that order; columns as of `summarise`.

    The interval of a cell is Student's t over its seeds, also that of the paired difference to the baseline: with five
    seeds the percentiles of a bootstrap cover the mean in 85 % of all cases, t in 95 %. `held_out` says of a learned
    policy what is new to it in the cell.
    """
    tables = []
    for part in evaluation.parts:
        of_part = (runs["trace"] == part.trace_name) & (runs["device"] == part.profile.name)
        rows = runs[of_part].rename(columns={"policy": "scheduler"})
        table = summarise(rows, evaluation.baseline_label).rename(columns={"scheduler": "policy"})
        table.insert(0, "trace", part.trace_name)
        table.insert(1, "device", part.profile.name)
        table["held_out"] = [
            evaluation.novelty(label, part, load) for label, load in zip(table["policy"], table["load"], strict=True)
        ]
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def score_array(runs: pd.DataFrame, policy: str, score: str = TDG) -> np.ndarray:
    """float64[cells, seeds] of a policy; cells and seeds in the order of the runs, the same for every policy."""
    return by_cell(runs[runs["policy"] == policy], score)


def by_cell(rows: pd.DataFrame, score: str) -> np.ndarray:
    """float64[cells, seeds] of one policy's rows: a cell is a trace, device and load; in the order of the rows.

    A cell with one run, the same for every seed, has it for each.
    """
    cells = [of_cell.to_numpy("f8") for _, of_cell in rows.groupby(["trace", "device", "load"], sort=False)[score]]
    most = max(map(len, cells))
    return np.array([np.repeat(one, most) if len(one) == 1 else one for one in cells])


def groups_table(evaluation: Evaluation, runs: pd.DataFrame) -> pd.DataFrame:
    """One row a score, group of cells and policy: over all cells, and those of each load, trace and device.

    mean, iqm; difference (mean of what the policy scored more than the baseline on the same requests) and improvement
    (probability that it scored more), NaN for the baseline itself; each with the bounds x_ci_low and x_ci_high of the
    stratified bootstrap. verdict: whether the interval of the difference leaves out 0.
    """
    rows: list[dict[str, Any]] = []
    for score in scores_of(runs, evaluation.rank):
        for by in GROUPS:
            groups = [(ALL, runs)] if by == ALL else runs.groupby(by, sort=False)
            for group, of_group in groups:
                rows += [
                    {"score": score, "by": by, "group": group_title(by, group), "policy": label} | row
                    for label, row in _policies(evaluation, of_group, score).items()
                ]
    return pd.DataFrame(rows)


def group_title(by: str, group: Any) -> str:
    return "all cells" if by == ALL else f"load {load_title(group)}" if by == "load" else str(group)


def _policies(evaluation: Evaluation, runs: pd.DataFrame, score: str) -> dict[str, dict[str, Any]]:
    """The row of each policy over some runs."""
    baseline = score_array(runs, evaluation.baseline_label, score)
    sign = 1 if score not in BY_COLUMN or BY_COLUMN[score].higher else -1  # the more the better
    rows = {}
    for label in evaluation.candidates:
        own = score_array(runs, label, score)
        is_baseline = label == evaluation.baseline_label
        difference = statistics.bootstrap(statistics.difference, own, baseline)
        none = Interval(np.nan, np.nan, np.nan)
        improvement = none if is_baseline else statistics.bootstrap(statistics.improvement, sign * own, sign * baseline)
        rows[label] = {
            "cells": own.shape[0],
            "seeds": own.shape[1],
            COLUMN: over_of(runs),
            **statistics.bootstrap(statistics.mean, own).columns("mean"),
            **statistics.bootstrap(statistics.iqm, own).columns("iqm"),
            **(none if is_baseline else difference).columns("difference"),
            **improvement.columns("improvement"),
            "verdict": REFERENCE if is_baseline else verdict(difference, sign > 0),
        }
    return rows


def select(groups: pd.DataFrame, by: str = ALL, score: str = TDG) -> pd.DataFrame:
    """The rows of `groups_table` of one kind of group and one score."""
    return groups[(groups["by"] == by) & (groups["score"] == score)]


def scores_in(groups: pd.DataFrame) -> list[str]:
    return list(groups["score"].unique())


def conclusions(evaluation: Evaluation, groups: pd.DataFrame) -> list[str]:
    """The conclusions for each group of cells by the measure ranked by, in a sentence each."""
    return [
        _conclusion(evaluation, rows)
        for by in (ALL, "load")
        for _, rows in select(groups, by, evaluation.rank.column).groupby("group", sort=False)
    ]


def _conclusion(evaluation: Evaluation, rows: pd.DataFrame) -> str:
    rank = evaluation.rank
    words = {BETTER: "better", SAME: "not distinguishable", WORSE: "worse", UNKNOWN: "one run, which leaves it open"}
    parts = []
    for found, word in words.items():
        policies = rows[rows["verdict"] == found].sort_values("difference", ascending=not rank.higher)
        if len(policies):
            differences = (f"{rank.scale * value:+.{rank.digits}f}" for value in policies["difference"])
            named = ", ".join(map("{} ({})".format, policies["policy"], differences))
            parts.append(f"{word}: {named}")
    title = rows["group"].iloc[0]
    return f"{title[0].upper()}{title[1:]}, by {rank.name} against {evaluation.baseline_label}: {'; '.join(parts)}."


def all_cells(groups: pd.DataFrame) -> str:
    """Title of a table over all cells: "All 4 cells"."""
    count = groups["cells"].iloc[0]
    return f"All {count} cells" if count > 1 else "The one cell"


def overview(evaluation: Evaluation, runs: pd.DataFrame, groups: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By title, all cells and those of each load: a row a policy with columns as of `summarise`, means over the cells.

    groups: of `groups_table`, whose intervals and verdicts these are.
    """
    tables = {}
    for by in (ALL, "load") if len(runs["load"].unique()) > 1 else (ALL,):
        of_runs = {ALL: runs} if by == ALL else dict(list(runs.groupby(by, sort=False)))
        for group, some in of_runs.items():
            scored = groups[(groups["by"] == by) & (groups["group"] == group_title(by, group))]
            title = all_cells(scored) if by == ALL else group_title(by, group).capitalize()
            rows = [_overview_row(evaluation, label, some, scored) for label in evaluation.candidates]
            tables[title] = pd.DataFrame(rows)
    return tables


def _overview_row(evaluation: Evaluation, label: str, runs: pd.DataFrame, groups: pd.DataFrame) -> dict[str, Any]:
    own, scored = runs[runs["policy"] == label], groups[groups["policy"] == label].set_index("score")
    row = {
        "scheduler": label,
        "ranked_by": evaluation.rank_by,
        "verdict": scored.loc[evaluation.rank.column, "verdict"],
    }
    for name in (*MEANS, LATE_TOKEN.column):
        cells = own.assign(mean=own[name].astype("f8")).groupby(["trace", "device", "load"], sort=False)["mean"].mean()
        row[name] = cells.mean()
    for score, of_score in scored.iterrows():
        for name, column in (("mean", score), ("difference", f"{score}_difference")):
            row |= {f"{column}{part}": of_score[f"{name}{part}"] for part in ("", "_ci_low", "_ci_high")}
    return row


def accounts(cells: pd.DataFrame) -> list[dict[str, str]]:
    """Figures that gain and attainment do not show: a row a policy, by load in words; means over the cells of a
    load.
    """
    means = cells.groupby(["policy", "load"], sort=False)[["starved", "fairness_by_length", "ttft_p99_s"]].mean()
    rows: dict[str, dict[str, str]] = {}
    for (policy, load), of in means.iterrows():
        words = f"{of['starved']:.4f}, {of['fairness_by_length']:.3f}, {of['ttft_p99_s']:.2f} s"
        rows.setdefault(policy, {"policy": policy})[f"load {load_title(load)}"] = words
    return list(rows.values())


def save_tables(runs: pd.DataFrame, cells: pd.DataFrame, groups: pd.DataFrame, directory: Path) -> list[Path]:
    """Write `runs.parquet`, `cells.csv` and `groups.csv`; returns the files."""
    paths = [directory / name for name in (RUNS_FILE, CELLS_FILE, GROUPS_FILE)]
    runs.to_parquet(paths[0], index=False)
    cells.to_csv(paths[1], index=False)
    groups.to_csv(paths[2], index=False)
    return paths
