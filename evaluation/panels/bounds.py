"""Every run of an evaluation as a share of what no policy can exceed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from servegym.evaluation.bounds.shares import find_bounds, why_no_bounds, with_shares
from servegym.evaluation.panels.evaluation import Evaluation, counted_on
from servegym.evaluation.running import Progress

if TYPE_CHECKING:
    import pandas as pd


def why_none(evaluation: Evaluation) -> str | None:
    """Why the runs cannot be compared with the bound; None: no reason known before solving."""
    return next(filter(None, map(why_no_bounds, evaluation.parts)), None)


def with_bounds(
    evaluation: Evaluation, runs: pd.DataFrame, directory: Path, progress: Progress = lambda done, bounds: None
) -> pd.DataFrame:
    """The runs of `run_evaluation` with a column `share_of_bound`; bounds are kept in the directory.

    Raises ExperimentError where a workload has none.
    """
    import pandas as pd

    in_all, done, tables = sum(len(part.workloads) for part in evaluation.parts), 0, []
    for part in evaluation.parts:
        bounds = find_bounds(part, directory, counted_on(progress, done, in_all))
        done += len(bounds)
        rows = runs[(runs["trace"] == part.trace_name) & (runs["device"] == part.profile.name)]
        tables.append(with_shares(part, rows, bounds))
    return pd.concat(tables, ignore_index=True)
