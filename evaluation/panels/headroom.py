"""Every run of an evaluation as a share of the best that was found of its scenario (`servegym headroom`)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from servegym.errors import ExperimentError
from servegym.evaluation.headroom.cases import case_of
from servegym.evaluation.headroom.kept import kept_best
from servegym.evaluation.panels.evaluation import Evaluation
from servegym.evaluation.summary import SHARE_OF_BEST

if TYPE_CHECKING:
    import pandas as pd


def check_kind(evaluation: Evaluation) -> None:
    """Raise ExperimentError unless schedulers are judged: a search is of schedulers, under one router."""
    if evaluation.kind != "scheduler":
        raise ExperimentError(f"headroom is of schedulers; judged are policies of kind {evaluation.kind}")


def with_headroom(evaluation: Evaluation, runs: pd.DataFrame, directory: Path) -> tuple[pd.DataFrame, int]:
    """The runs of `run_evaluation` with a column `share_of_best`, and how many scenarios no search has been through.

    The best of a scenario is what the ledger in the directory has, or a run of the evaluation that gains more. NaN
    where there is no ledger. Raises ExperimentError as `check_kind`, and for a ledger that is damaged or in use.
    """
    import pandas as pd

    check_kind(evaluation)
    unsearched, tables = 0, []
    for part in evaluation.parts:
        of_part = runs[(runs["trace"] == part.trace_name) & (runs["device"] == part.profile.name)]
        for (load, seed), rows in of_part.groupby(["load", "seed"], sort=False):
            found = kept_best(case_of(part, load, seed), directory)
            unsearched += found is None
            best = math.nan if found is None else max(found.gain, rows["gain"].max())
            tables.append(rows.assign(**{SHARE_OF_BEST: rows["gain"] / best}))
    return pd.concat(tables).reindex(runs.index), unsearched
