"""Figures that describe a trace: `servegym trace inspect`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from servegym.traces.loading import load_trace
from servegym.traces.reading import Reading
from servegym.traces.trace import Trace

PERCENTILES = (25, 50, 75, 90, 95, 99)
MINUTE_S = 60.0
GENERATED_REQUESTS = 100_000  # drawn to describe a family


def describe(trace: Trace | str | os.PathLike[str], reading: Reading | None = None) -> dict[str, Any]:
    """Compute the figures of a trace: a Trace, a file, or a family of the embedded generator.

    Returns name, requests, span_s, rate_per_s, peak_minute_over_mean (rate of the busiest minute, counted
    from the first arrival, over the mean rate), interarrival_cv (standard deviation over mean);
    prompt_tokens and output_tokens, each {p25, p50, p75, p90, p95, p99, mean, min, max}; columns (those the
    trace sets itself); for a trace with sessions, their number, rate, turns and the pauses before turns (the other
    figures of arrivals are then those of sessions); and its provenance (format, rows, dropped_rows, sha256, ...).

    Figures of arrivals are None if the trace has no arrivals, or no time between them.
    Raises WorkloadError as `build_workload` does.
    """
    if not isinstance(trace, Trace):
        trace = load_trace(trace, default_requests=GENERATED_REQUESTS, reading=reading)
    arrivals = _arrivals(None if trace.arrival_s is None else trace.arrival_s[trace.begins])
    return {
        "name": trace.name,
        "requests": len(trace),
        **arrivals,
        "rate_per_s": trace.rate_per_s,
        **_sessions(trace, arrivals["rate_per_s"]),
        "prompt_tokens": _lengths(trace.prompt_tokens),
        "output_tokens": _lengths(trace.output_tokens),
        "columns": sorted(trace.given) + ["prefix_blocks"] * (trace.prefix_blocks is not None),
        **trace.provenance,
    }


def _arrivals(arrival_s: np.ndarray | None) -> dict[str, float | None]:
    figures: dict[str, float | None] = dict.fromkeys(
        ("span_s", "rate_per_s", "peak_minute_over_mean", "interarrival_cv")
    )
    if arrival_s is None:
        return figures
    since_first_s = arrival_s - arrival_s[0]
    span_s = float(since_first_s[-1])
    figures["span_s"] = span_s
    if span_s > 0:
        gaps_s = np.diff(arrival_s)
        minute = (since_first_s // MINUTE_S).astype("i8")
        busiest = np.unique(minute, return_counts=True)[1].max()
        figures["rate_per_s"] = len(gaps_s) / span_s
        figures["peak_minute_over_mean"] = float(busiest / MINUTE_S / (len(gaps_s) / span_s))
        figures["interarrival_cv"] = float(gaps_s.std() / gaps_s.mean())
    return figures


def _sessions(trace: Trace, begun_per_s: float | None) -> dict[str, Any]:
    """Compute the figures of the sessions of a trace."""
    if trace.turns is None:
        return {}
    turns = np.unique(trace.turns.session, return_counts=True)[1]
    figures: dict[str, Any] = {"sessions": len(turns), "turns": _lengths(turns)}
    if begun_per_s is not None:
        figures["sessions_per_s"] = begun_per_s
    if not trace.begins.all():
        figures["think_s"] = _lengths(trace.turns.think_s[~trace.begins])
    return figures


def _lengths(tokens: np.ndarray) -> dict[str, float]:
    figures = dict(zip((f"p{level}" for level in PERCENTILES), np.percentile(tokens, PERCENTILES), strict=True))
    figures |= {"mean": tokens.mean(), "min": tokens.min(), "max": tokens.max()}
    return {name: float(figure) for name, figure in figures.items()}
