"""The table of a goodput search: means over seeds with confidence intervals, and differences paired by seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from servegym.evaluation.goodput import ABOVE, BELOW, OF_RUN
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.repeats import COLUMN, over_of
from servegym.evaluation.summary import check_baseline

if TYPE_CHECKING:
    import pandas as pd


def summarise_goodput(rows: pd.DataFrame, saturation_rate_per_s: float, baseline: str | None = None) -> pd.DataFrame:
    """One row a scheduler, in the order of the rows.

    rows: what `search_goodput` returns. goodput_per_s: mean over seeds, with its 95 % interval (Student's t), NaN where
    a seed has none; below, above: how many seeds have none, since not even the lowest rate is served, or even the
    highest is. load: goodput over saturation. difference: to the reference, seed by seed. settled: of all seeds.
    baseline: the reference; None: the scheduler with the highest goodput. Raises ExperimentError for an unknown one.
    """
    import pandas as pd

    by_label = {label: some.sort_values("seed") for label, some in rows.groupby("scheduler", sort=False)}
    if baseline is not None:
        check_baseline(baseline, list(by_label))
    reference = baseline or max(by_label, key=lambda label: _height(by_label[label]))
    of_reference = by_label[reference]["goodput_per_s"].to_numpy("f8")
    table = []
    for label, some in by_label.items():
        goodput = some["goodput_per_s"].to_numpy("f8")
        mean = student_interval(goodput)
        difference = student_interval(goodput - of_reference)
        table.append(
            {
                "scheduler": label,
                **mean.columns("goodput_per_s"),
                "load": mean.mean / saturation_rate_per_s,
                "share": some["share"].astype("f8").mean(),
                "quantile_s": some["quantile_s"].astype("f8").mean(),
                **{name: some[name].astype("f8").mean() for name in OF_RUN if name in some},
                "seeds": len(some),
                COLUMN: over_of(some),
                "below": int((some["found"] == BELOW).sum()),
                "above": int((some["found"] == ABOVE).sum()),
                "settled": bool(some["settled"].dropna().all()),
                "reference": reference,
                **difference.columns("difference"),
                "runs": int(some["runs"].sum()),
            }
        )
    return pd.DataFrame(table)


def _height(some: pd.DataFrame) -> float:
    """Mean goodput; a seed without one counts as 0, or as more than any."""
    goodput = some["goodput_per_s"].to_numpy("f8")
    return float(np.where(some["found"] == ABOVE, math.inf, np.where(some["found"] == BELOW, 0.0, goodput)).mean())
