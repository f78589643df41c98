"""The figures of a run as one flat row of numbers."""

from __future__ import annotations

from typing import Any

from servegym.simulator.results import QUANTILES, Result

SCALARS = (
    "requests", "finished", "tokens_emitted", "gain", "ideal_gain", "tdg_ratio", "slo_attainment",
    "on_time_token_share", "span_s", "throughput_tokens_per_s", "throughput_requests_per_s", "slo_throughput_per_s",
    "preemptions", "iterations", "kv_use_mean", "kv_use_peak", "cost_engine_s",
)  # fmt: skip
LATENCIES = ("ttft", "tpot", "tbt", "ttlt")
FIGURES = (
    *SCALARS,
    "slo_attainment_high_priority",
    "slo_attainment_low_priority",
    *(f"{latency}_{quantile}_s" for latency in LATENCIES for quantile in QUANTILES),
)


def figures(result: Result) -> dict[str, float | int | None]:
    """Every figure of `FIGURES`; None where a run has none (TPOT of one-token answers, low of a single priority).

    high priority: the smallest number in the workload, low: the largest. What the run took in wall-clock time is
    left out: it is the one figure that would not be the same again.
    """
    summary: dict[str, Any] = result.summary
    by_priority = summary["slo_attainment_by_priority"]
    return {
        **{name: summary[name] for name in SCALARS},
        "slo_attainment_high_priority": by_priority[min(by_priority)],
        "slo_attainment_low_priority": by_priority[max(by_priority)] if len(by_priority) > 1 else None,
        **{
            f"{latency}_{quantile}_s": value
            for latency in LATENCIES
            for quantile, value in summary[f"{latency}_s"].items()
        },
    }
