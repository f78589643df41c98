"""The figures of a run as one flat row of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servegym.simulator.runs.figures import QUANTILES
from servegym.simulator.runs.results import Result

SCALARS = (
    "requests", "finished", "tokens_emitted", "gain", "ideal_gain", "tdg_ratio", "gain_ratio", "slo_attainment",
    "violations", "starved", "fairness_by_client", "fairness_by_length", "on_time_token_share", "span_s",
    "throughput_tokens_per_s", "throughput_requests_per_s", "slo_throughput_per_s", "evictions", "iterations",
    "kv_use_mean", "kv_use_peak", "cost_engine_s",
)  # fmt: skip
CLASS_ATTAINMENT, CLASS_VIOLATIONS = "slo_attainment of ", "violations "  # and the class
LATENCIES = ("ttft", "tpot", "tbt", "ttlt")
FIGURES = (
    *SCALARS,
    "slo_attainment_high_priority",
    "slo_attainment_low_priority",
    "violations_high_priority",
    "violations_low_priority",
    *(f"{latency}_{quantile}_s" for latency in LATENCIES for quantile in QUANTILES),
)


def figures(result: Result) -> dict[str, float | int | None]:
    """Every figure of `FIGURES`; None where a run has none (TPOT of one-token answers, low of a single priority).

    high priority: the smallest number in the workload, low: the largest. What the run took in wall-clock time is
    left out: it is the one figure that would not be the same again.
    """
    summary: dict[str, Any] = result.summary
    return {
        **{name: summary[name] for name in SCALARS},
        **_by_priority("slo_attainment", summary["slo_attainment_by_priority"]),
        **_by_priority("violations", summary["violations_by_priority"]),
        **{
            f"{latency}_{quantile}_s": value
            for latency in LATENCIES
            for quantile, value in summary[f"{latency}_s"].items()
        },
    }


def _by_priority(name: str, shares: Mapping[int, float]) -> dict[str, float | None]:
    return {
        f"{name}_high_priority": shares[min(shares)],
        f"{name}_low_priority": shares[max(shares)] if len(shares) > 1 else None,
    }


def class_figures(result: Result) -> dict[str, float]:
    """Attainment and violations of each class of SLOs, if there are several; named as in "violations TTLT 600 s"."""
    by_class = {
        CLASS_ATTAINMENT: result.summary["slo_attainment_by_class"],
        CLASS_VIOLATIONS: result.summary["violations_by_class"],
    }
    return {
        f"{what}{name}": share for what, shares in by_class.items() if len(shares) > 1 for name, share in shares.items()
    }
