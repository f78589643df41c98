"""Computes the figures of a run, measured and simulated, and the errors between them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from servegym.evaluation.measured.runs import Run

METRICS = ("e2e", "itl", "ttft")
STATISTICS = ("mean", "p50", "p90", "p99")
COLUMNS = ("run", "stage", "metric", "measured", "simulated", "error_percent")
THROUGHPUT = "output_tokens_per_s"
HEADLINE = "headline"  # the case that changes no assumption


def figures_of(requests: pd.DataFrame, run: Run, stage: str) -> dict[str, float]:
    """Return METRIC_STATISTIC, seconds, and THROUGHPUT of the requests that did not fail when they were measured.

    requests: with ttft_s, itl_s and e2e_s, in the order of the run. stage: one of `run.stages`. Throughput counts from
    the stage's first arrival to its last token.
    """
    figures = {}
    for metric, seconds in _seconds(requests, run, stage).items():
        figures[f"{metric}_mean"] = float(seconds.mean())
        for statistic in STATISTICS[1:]:
            figures[f"{metric}_{statistic}"] = float(np.percentile(seconds, int(statistic[1:])))
    served = _served(run, stage)
    arrival_s = run.requests["arrival_s"].to_numpy()[served]
    span_s = (arrival_s + requests["e2e_s"].to_numpy()[served]).max() - arrival_s.min()
    figures[THROUGHPUT] = float(run.requests["output_tokens"].to_numpy()[served].sum() / span_s)
    return figures


def means_of(requests: pd.DataFrame, run: Run, stage: str = "all") -> dict[str, float]:
    """Return only the means of `figures_of`, seconds by metric."""
    return {metric: float(seconds.mean()) for metric, seconds in _seconds(requests, run, stage).items()}


def _seconds(requests: pd.DataFrame, run: Run, stage: str) -> dict[str, np.ndarray]:
    """Return the values of each metric, float64, of the requests that have it and did not fail."""
    served = _served(run, stage)
    found = {metric: requests[f"{metric}_s"].to_numpy()[served] for metric in METRICS}
    return {metric: seconds[np.isfinite(seconds)] for metric, seconds in found.items()}


def _served(run: Run, stage: str) -> np.ndarray:
    return run.of_stage(stage) & ~run.requests["failed"].to_numpy()


def compare(run: Run, simulated: pd.DataFrame) -> pd.DataFrame:
    """Compare by stage and figure: a row each, with COLUMNS; error_percent: simulated / measured - 1, percent."""
    rows = []
    for stage in run.stages:
        measured, found = (figures_of(requests, run, stage) for requests in (run.requests, simulated))
        for metric, value in measured.items():
            rows.append((run.name, stage, metric, value, found[metric], 100 * (found[metric] / value - 1)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def errors_of(served: Iterable[tuple[Run, str, pd.DataFrame]]) -> pd.DataFrame:
    """Compare each (run, name of the case, simulated requests); add case, gpu, model and overloaded to `compare`."""
    parts = [
        compare(run, requests).assign(case=case, gpu=run.gpu, model=run.model, overloaded=run.overloaded)
        for run, case, requests in served
    ]
    return pd.concat(parts, ignore_index=True)


def headline(errors: pd.DataFrame) -> dict[str, float]:
    """Return the median over runs (stage `all`) of the absolute error of each metric's mean, percent."""
    rows = errors[errors["stage"] == "all"].assign(size=lambda table: table["error_percent"].abs())
    return {metric: float(rows[rows["metric"] == f"{metric}_mean"]["size"].median()) for metric in METRICS}


def by_request(run: Run, requests: pd.DataFrame) -> dict[str, float]:
    """Return each metric's median absolute error over the requests that did not fail, percent."""
    served = ~run.requests["failed"].to_numpy()
    figures = {}
    for metric in METRICS:
        measured, found = (table[f"{metric}_s"].to_numpy()[served] for table in (run.requests, requests))
        percent = 100 * np.abs(found / measured - 1)
        figures[metric] = float(np.median(percent[np.isfinite(percent)]))
    return figures
