"""All figures of a summary as a table, with units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servegym.evaluation.reports.page import flat

UNITS = {
    "requests": "requests",
    "finished": "requests",
    "tokens_emitted": "tokens",
    "gain": "gain",
    "ideal_gain": "gain",
    "throughput_tokens_per_s": "tokens/s",
    "throughput_requests_per_s": "requests/s",
    "slo_throughput_per_s": "requests/s",
    "rate_per_s": "requests/s",
    "evictions": "evictions",
    "saved_tokens": "tokens",
    "loaded_tokens": "tokens",
    "cached_tokens": "tokens",
    "reroutes": "requests",
    "lost_tokens": "tokens",
    "iterations": "iterations",
    "scheduling_rounds": "rounds",
    "cost_engine_s": "engine-seconds",
    "fairness_by_client": "Jain's index",
    "fairness_by_length": "Jain's index",
    "energy_kwh": "kWh",
    "energy_kwh_at_most": "kWh",
    "energy_kwh_per_million_tokens": "kWh",
    "energy_kwh_at_most_per_million_tokens": "kWh",
}
SHARES = (
    "gain_ratio", "tdg_ratio", "slo_attainment", "engine_slo_attainment", "violations", "starved",
    "on_time_token_share", "kv_use", "cached_share",
)  # fmt: skip


def unit_of(name: str) -> str:
    """Return the unit of a figure, by its name in a summary ("ttft_s.p50") or in a comparison ("ttft_p50_s")."""
    whole = name.partition(".")[0]
    if whole.startswith(SHARES):
        return "share"
    return UNITS.get(whole, "s" if whole.endswith("_s") else "")


def figures_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Return (name, unit, value) of every figure, in the summary's order."""
    return [(name, unit_of(name), value) for name, value in flat(summary)]
