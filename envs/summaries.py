"""What the last `info` of an episode says of it as a whole, beside the gain that it was rewarded by."""

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
    """Figures of `Result.summary` by name; nan where an episode has none.

    Of latencies "ttft_s_p99" and so on; of priorities the first, "slo_attainment_high_priority", and the last. Of
    engines the mean number that is in service.
    """
    of = simulation.result()
    found = {name: of.figure(name) for name in FIGURES}
    found["engines_in_service"] = of.figure("cost_engine_s") / found["span_s"] if found["span_s"] else None
    for name, some in LATENCIES.items():
        latencies = of.figure(name)
        found |= {f"{name}_{quantile}": latencies[quantile] for quantile in some}
    for name in BY_PRIORITY:
        shares = of.figure(f"{name}_by_priority")
        found[f"{name}_high_priority"] = shares[min(shares)] if shares else None
        found[f"{name}_low_priority"] = shares[max(shares)] if len(shares) > 1 else None
    return {name: math.nan if value is None else float(value) for name, value in found.items()}
