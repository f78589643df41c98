"""The table of a plan: means over seeds with confidence intervals, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from servegym.evaluation.goodput import OF_RUN, WITHIN
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.repeats import COLUMN, over_of
from servegym.simulator.inputs.costs import S_PER_HOUR, TOKENS

if TYPE_CHECKING:
    import pandas as pd


def summarise_plan(rows: pd.DataFrame, prices: Mapping[str, float | None]) -> pd.DataFrame:
    """One row a device and scheduler, in the order of the rows.

    rows: what `make_plan` returns. prices: of an engine-hour by device; None: not known.

    engines: enough in every seed; mean_engines: of the fewest of each seed. rate_per_s: mean over seeds. Of both means
    the 95 % interval (Student's t). All are NaN where a seed has none; missing: in how many that is so.
    share, ttft_p99_s, tpot_p99_s, requests, span_s: means of the runs that the rows are about (`OF_RUN`).
    cost_per_hour, cost_per_million_tokens (of output, at that rate): NaN where no price is known.
    """
    import pandas as pd

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
                **{f"mean_engines{end}": value for end, value in zip(ENDS, mean_engines, strict=True)},
                **{f"rate_per_s{end}": value for end, value in zip(ENDS, rate, strict=True)},
                "share": some["share"].astype("f8").mean(),
                "quantile_s": some["quantile_s"].astype("f8").mean(),
                **{name: some[name].astype("f8").mean() for name in OF_RUN if name in some},
                "cost_per_hour": cost_per_hour,
                "cost_per_million_tokens": cost_per_hour / S_PER_HOUR / tokens_per_s * TOKENS,
                "seeds": len(some),
                COLUMN: over_of(some),
                "missing": missing,
                "found": next((found for found in some["found"] if found != WITHIN), WITHIN),
                "settled": bool(some["settled"].dropna().all()),
                "runs": int(np.sum(some["runs"])),
            }
        )
    return pd.DataFrame(table)


ENDS = ("", "_ci_low", "_ci_high")
