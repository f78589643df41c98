"""The `summary` in the last `info` of an episode: figures of the whole episode beside its gain."""

from __future__ import annotations

import math

from servegym.simulator.runs.simulation import Simulation

FIGURES = (
    "requests", "finished", "gain_ratio", "slo_attainment", "violations", "starved", "fairness_by_client",
    "fairness_by_length", "on_time_token_share", "throughput_tokens_per_s", "evictions", "span_s",
)  # fmt: skip
LATENCIES = {"ttft_s": ("p50", "p99"), "tpot_s": ("p50", "p99"), "ttlt_s": ("p50", "p99")}
BY_PRIORITY = ("slo_attainment", "starved")


def summary_of(simulation: Simulation) -> dict[str, float]:
    """Figures of `Result.summary` by name; nan for a figure that the episode does not have.

    Latencies by quantile ("ttft_s_p99"); figures of the highest and of the lowest priority
    ("slo_attainment_high_priority"); `engines_in_service`, the mean number of engines in service.
    """
    result = simulation.result()
    found = {name: result.figure(name) for name in FIGURES}
    found["engines_in_service"] = result.figure("cost_engine_s") / found["span_s"] if found["span_s"] else None
    for name, quantiles in LATENCIES.items():
        latencies = result.figure(name)
        found |= {f"{name}_{quantile}": latencies[quantile] for quantile in quantiles}
    for name in BY_PRIORITY:
        shares = result.figure(f"{name}_by_priority")
        found[f"{name}_high_priority"] = shares[min(shares)] if shares else None
        found[f"{name}_low_priority"] = shares[max(shares)] if len(shares) > 1 else None
    return {name: math.nan if value is None else float(value) for name, value in found.items()}
