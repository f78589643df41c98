"""The tables of a goodput search and of a plan: means over seeds with confidence intervals, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from servegym.evaluation.goodput import ABOVE, BELOW, OF_RUN, WITHIN
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.repeats import COLUMN, over_of
from servegym.evaluation.summary import check_baseline
from servegym.simulator.inputs.costs import S_PER_HOUR, TOKENS


def summarise_goodput(rows: pd.DataFrame, saturation_rate_per_s: float, baseline: str | None = None) -> pd.DataFrame:
    """One row a scheduler, in the order of the rows.

    rows: what `search_goodput` returns. goodput_per_s: mean over seeds, with its 95 % interval (Student's t), NaN where
    a seed has none; below, above: how many seeds have none, since not even the lowest rate is served, or even the
    highest is. load: goodput over saturation. difference: to the reference, seed by seed. settled: of all seeds.
    baseline: the reference; None: the scheduler with the highest goodput. Raises ExperimentError for an unknown one.
    """
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
                **means_of_runs(some),
                "below": int((some["found"] == BELOW).sum()),
                "above": int((some["found"] == ABOVE).sum()),
                "reference": reference,
                **difference.columns("difference"),
            }
        )
    return pd.DataFrame(table)


def _height(some: pd.DataFrame) -> float:
    """Mean goodput; a seed without one counts as 0, or as more than any."""
    goodput = some["goodput_per_s"].to_numpy("f8")
    return float(np.where(some["found"] == ABOVE, math.inf, np.where(some["found"] == BELOW, 0.0, goodput)).mean())


def summarise_plan(rows: pd.DataFrame, prices: Mapping[str, float | None]) -> pd.DataFrame:
    """One row a device and scheduler, in the order of the rows.

    rows: what `make_plan` returns. prices: of an engine-hour by device; None: not known.

    engines: enough in every seed; mean_engines: of the fewest of each seed. rate_per_s: mean over seeds. Of both means
    the 95 % interval (Student's t). All are NaN where a seed has none; missing: in how many that is so.
    share, ttft_p99_s, tpot_p99_s, requests, span_s: means of the runs that the rows are about (`OF_RUN`).
    cost_per_hour, cost_per_million_tokens (of output, at that rate): NaN where no price is known.
    """
    table = []
    for (device, scheduler), some in rows.groupby(["device", "scheduler"], sort=False):
        each = some[["engines", "rate_per_s", "output_tokens"]].astype("f8")
        missing = int((some["found"] != WITHIN).sum())
        engines = math.nan if missing else float(each["engines"].max())
        mean_engines, rate = (student_interval(each[name].to_numpy()) for name in ("engines", "rate_per_s"))
        price = prices.get(str(device))
        cost_per_hour = math.nan if price is None else price * engines
        tokens_per_s = rate.mean * float(each["output_tokens"].mean())
        table.append(
            {
                "device": device,
                "scheduler": scheduler,
                "engines": engines,
                **mean_engines.columns("mean_engines"),
                **rate.columns("rate_per_s"),
                **means_of_runs(some),
                "cost_per_hour": cost_per_hour,
                "cost_per_million_tokens": cost_per_hour / S_PER_HOUR / tokens_per_s * TOKENS,
                "missing": missing,
                "found": next((found for found in some["found"] if found != WITHIN), WITHIN),
            }
        )
    return pd.DataFrame(table)


def means_of_runs(some: pd.DataFrame) -> dict[str, Any]:
    """Columns of both tables: means over the runs that the rows are about, and how many seeds and runs there are."""
    means = {name: some[name].astype("f8").mean() for name in ("share", "quantile_s", *OF_RUN) if name in some}
    settled = bool(some["settled"].dropna().all())
    return means | {"seeds": len(some), COLUMN: over_of(some), "settled": settled, "runs": int(some["runs"].sum())}
