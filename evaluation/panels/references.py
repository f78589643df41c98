"""Every run of an evaluation as a share of what no policy can exceed, and of the best run that a search found."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from servegym.errors import ExperimentError
from servegym.evaluation.bounds.shares import find_bounds, why_no_bounds, with_shares
from servegym.evaluation.headroom.cases import case_of
from servegym.evaluation.headroom.kept import kept_best
from servegym.evaluation.panels.evaluation import Evaluation, of_parts
from servegym.evaluation.running import Progress
from servegym.evaluation.summary import SHARE_OF_BEST


def why_none(evaluation: Evaluation) -> str | None:
    """Why the runs cannot be compared with the bound; None: no reason known before solving."""
    return next(filter(None, map(why_no_bounds, evaluation.parts)), None)


def with_bounds(
    evaluation: Evaluation, runs: pd.DataFrame, directory: Path, progress: Progress = lambda done, bounds: None
) -> pd.DataFrame:
    """The runs of `run_evaluation` with a column `share_of_bound`; bounds are kept in the directory.

    Raises ExperimentError where a workload has none.
    """
    in_all, tables = sum(len(part.workloads) for part in evaluation.parts), []
    found = of_parts(evaluation.parts, lambda part, on: find_bounds(part, directory, on), progress, in_all)
    for part, bounds in zip(evaluation.parts, found, strict=True):
        rows = runs[(runs["trace"] == part.trace_name) & (runs["device"] == part.profile.name)]
        tables.append(with_shares(part, rows, bounds))
    return pd.concat(tables, ignore_index=True)


def check_kind(evaluation: Evaluation) -> None:
    """Raise ExperimentError unless schedulers are judged: a search is of schedulers, under one router."""
    if evaluation.kind != "scheduler":
        raise ExperimentError(f"headroom is of schedulers; judged are policies of kind {evaluation.kind}")


def with_headroom(evaluation: Evaluation, runs: pd.DataFrame, directory: Path) -> tuple[pd.DataFrame, int]:
    """The runs of `run_evaluation` with a column `share_of_best`, and how many scenarios no search has been through.

    The best of a scenario is what the ledger in the directory has, or a run of the evaluation that gains more. NaN
    where there is no ledger. Raises ExperimentError as `check_kind`, and for a ledger that is damaged or in use.
    """
    check_kind(evaluation)
    unsearched, tables = 0, []
    for part in evaluation.parts:
        of_part = runs[(runs["trace"] == part.trace_name) & (runs["device"] == part.profile.name)]
        for (load, seed), rows in of_part.groupby(["load", "seed"], sort=False):
            found = kept_best(case_of(part, load, seed), directory)
            unsearched += found is None
            best = math.nan if found is None else max(found.score, rows["gain"].max())
            tables.append(rows.assign(**{SHARE_OF_BEST: rows["gain"] / best}))
    return pd.concat(tables).reindex(runs.index), unsearched
