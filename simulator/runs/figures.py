"""Figures of a whole run by name. Each is a function of the result, computed on demand.

A summary has all of them. At the end of an episode only a few are read; computing all would take as long as a reset.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.simulator.records.types import TBT_BINS_PER_OCTAVE, TBT_SMALLEST_EXPONENT
from servegym.simulator.runs.fairness import fairness, in_words
from servegym.simulator.runs.slos import LATENCIES, slo_classes

if TYPE_CHECKING:
    from servegym.simulator.runs.results import Result

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def total(result: Result, name: str) -> int:
    """Return the sum of a count over all engines."""
    return int(result.arrays.engines["totals"][name].sum())


def gain_ratio(result: Result) -> float | None:
    ideal = summed(result, "ideal_gain")
    return summed(result, "gain") / ideal if ideal else None


def summed(result: Result, column: str) -> float:
    return float(result.columns[column].sum())


def share(result: Result, column: str) -> float | None:
    """Return the share of arrived requests for which a column is true; None: none has arrived."""
    those = result.columns[column]
    return float(those.mean()) if len(those) else None


def by_priority(result: Result, column: str) -> dict[int, float]:
    return {one: float(result.columns[column][those].mean()) for one, those in result.priorities.items()}


def by_length(result: Result, column: str) -> dict[str, float]:
    group = result.length_groups
    names = in_words(result.scenario.workload.table[result.arrived], group)
    return {name: float(result.columns[column][group == one].mean()) for one, name in enumerate(names)}


def by_class(result: Result, column: str) -> dict[str, float]:
    classes = slo_classes(result.scenario.workload.table[result.arrived])
    return {name: float(result.columns[column][those].mean()) for name, those in classes.items()}


def evenness(result: Result, group: np.ndarray) -> float | None:
    return fairness(result.columns["gain"], result.columns["ideal_gain"], group)


def on_time_token_share(result: Result) -> float | None:
    on_time, tokens = result.columns["on_time_tokens"], result.columns["output_tokens"]
    return float(on_time.sum() / tokens.sum()) if len(tokens) else None


def span_s(result: Result) -> float:
    return float(result.arrays.status[0].now_s)


def per_s(result: Result, count: float) -> float:
    return float(count / span_s(result)) if span_s(result) else 0.0


def ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def blocking_mean_s(result: Result) -> float | None:
    times = total(result, "suspensions")
    return float(result.arrays.engines["totals"]["blocking_s"].sum() / times) if times else None


def blocking_longest_s(result: Result) -> float | None:
    longest = result.arrays.engines["totals"]["longest_blocking_s"]
    return float(longest.max()) if total(result, "suspensions") else None


def kv_use_peak(result: Result) -> float:
    engines = result.arrays.engines
    return float((engines["totals"]["peak_blocks"] / engines["total_blocks"]).max())


def quantiles(values: np.ndarray) -> dict[str, float | None]:
    """Return p50, p90 and p99 of the finite values, interpolated linearly; None if there are none.

    The results equal those of `np.quantile` to the bit, in a quarter of the time.
    """
    ordered = np.sort(values[np.isfinite(values)])
    if not len(ordered):
        return dict.fromkeys(QUANTILES)
    return {name: quantile(ordered, q) for name, q in QUANTILES.items()}


def quantile(ordered: np.ndarray, q: float) -> float:
    at = (len(ordered) - 1) * q
    below = int(at)
    low, high, part = ordered.item(below), ordered.item(min(below + 1, len(ordered) - 1)), at - below
    # As NumPy: from the nearer value, so that equal neighbours give their value exactly.
    return float(low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part))


def histogram_quantiles(counts: np.ndarray) -> dict[str, float | None]:
    """Return p50, p90 and p99 of the token intervals, each within 1.6 %, as middles of bins."""
    total = counts.sum()
    if not total:
        return dict.fromkeys(QUANTILES)
    reached = np.cumsum(counts)
    return {name: bin_middle(int(np.searchsorted(reached, q * total))) for name, q in QUANTILES.items()}


def bin_middle(index: int) -> float:
    """Return the middle of a bin of the token-interval histogram, in s."""
    octave, part = divmod(index, TBT_BINS_PER_OCTAVE)
    return float(2.0 ** (octave + TBT_SMALLEST_EXPONENT) * (1 + (part + 0.5) / TBT_BINS_PER_OCTAVE))


def latency(column: str) -> Callable[[Result], dict[str, float | None]]:
    return lambda of: quantiles(of.columns[column])


# In the order of a summary.
FIGURES: dict[str, Callable[[Result], Any]] = {
    "requests": lambda of: len(of.columns["gain"]),
    "finished": lambda of: int(of.arrays.status[0].finished),
    "refused": lambda of: int(of.arrays.status[0].refused),
    "tokens_emitted": lambda of: int(of.columns["num_output_tokens"].sum()),
    "gain": lambda of: summed(of, "gain"),
    "ideal_gain": lambda of: summed(of, "ideal_gain"),
    "gain_ratio": gain_ratio,
    "tdg_ratio": lambda of: gain_ratio(of) if of.scenario.gain.name == "tdg" else None,
    "slo_attainment": lambda of: share(of, "attained"),
    "slo_attainment_by_priority": lambda of: by_priority(of, "attained"),
    "slo_attainment_by_length": lambda of: by_length(of, "attained"),
    "slo_attainment_by_class": lambda of: by_class(of, "attained"),
    "violations": lambda of: share(of, "violated"),
    "violations_by_priority": lambda of: by_priority(of, "violated"),
    "violations_by_class": lambda of: by_class(of, "violated"),
    "starved": lambda of: share(of, "starved"),
    "starved_by_priority": lambda of: by_priority(of, "starved"),
    "fairness_by_client": lambda of: evenness(of, of.columns["client"]),
    "fairness_by_length": lambda of: evenness(of, of.length_groups),
    "on_time_token_share": on_time_token_share,
    "ttft_s": latency("ttft_s"),
    "tpot_s": latency("tpot_s"),
    "tbt_s": lambda of: histogram_quantiles(of.arrays.tbt_histogram),
    "ttlt_s": latency("ttlt_s"),
    **{f"engine_{name}": latency(f"engine_{name}") for name in LATENCIES},
    "engine_slo_attainment": lambda of: share(of, "engine_attained"),
    "span_s": span_s,
    "throughput_tokens_per_s": lambda of: per_s(of, int(of.columns["num_output_tokens"].sum())),
    "throughput_requests_per_s": lambda of: per_s(of, of.arrays.status[0].finished),
    "slo_throughput_per_s": lambda of: per_s(of, of.columns["attained"].sum()),
    "evictions": lambda of: int(of.arrays.status[0].evictions),
    "saved_tokens": lambda of: total(of, "saved_tokens"),
    "loaded_tokens": lambda of: total(of, "loaded_tokens"),
    "cached_tokens": lambda of: int(of.columns["cached_tokens"].sum()),
    "cached_share": lambda of: ratio(total(of, "cached_tokens"), total(of, "admitted_tokens")),
    "drafted_tokens": lambda of: total(of, "drafted_tokens"),
    "accepted_share": lambda of: ratio(total(of, "accepted_tokens"), total(of, "drafted_tokens")),
    "reroutes": lambda of: int(of.columns["reroutes"].sum()),
    "lost_tokens": lambda of: total(of, "lost_tokens"),
    "iterations": lambda of: int(of.arrays.engines["iterations"].sum()),
    "scheduling_rounds": lambda of: int(of.arrays.engines["rounds"].sum()),
    "blocking_mean_s": blocking_mean_s,
    "blocking_longest_s": blocking_longest_s,
    "kv_use_mean": lambda of: float(of.kv_use_mean().mean()),
    "kv_use_peak": kv_use_peak,
    "sessions": lambda of: len(of.session_columns["session"]),
    "session_slo_attainment": lambda of: float(of.session_columns["attained"].mean()),
    "session_s": lambda of: quantiles(of.session_columns["session_s"]),
    "cost_engine_s": lambda of: math.fsum(of.service_s()),  # fsum: exactly engines x span if all are always in service
}
OF_SESSIONS = ("sessions", "session_slo_attainment", "session_s")
OF_REFUSALS = ("refused",)
OF_DRAFTS = ("drafted_tokens", "accepted_share")
# Figures that a summary has only if the result has a column.
OF_ENGINES = {name: name for name in (f"engine_{latency}" for latency in LATENCIES)} | {
    "engine_slo_attainment": "engine_attained"
}
