"""Which requests met their SLOs, by the two measures there are, and classes of requests with the same SLOs.

Attainment: TTFT and mean TPOT, or TTLT, are strictly within the SLOs. Violation, as QoServe counts: a token is not out
strictly before its deadline, which is arrival + TTFT SLO for the first and a TPOT SLO more for each one after it; with
a TTLT SLO, the last is not out before arrival + TTLT SLO. An answer whose first token was early may be slow for a while
and violate nothing; one stall violates where the mean TPOT attains. Source of the second: QoServe, Eq. 1 to 3.

Starved: never served to the end, or so late that its client has given up. Gain and attainment can both be had by
starving some: a request that is late anyway is worth nothing to either.
"""

from __future__ import annotations

import numpy as np

from servegym.simulator.features.ahead import out_of
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.state import SimulationState

MOST_CLASSES = 16
SLOS = ("ttlt_slo_s", "ttft_slo_s", "tpot_slo_s")
STARVED_TIMES = 10.0  # a request that waits for more than so many times its SLO has been starved
LATENCIES = ("ttft_s", "tpot_s", "ttlt_s")


def attained(run: SimulationState, workload: Workload) -> np.ndarray:
    """bool[requests]: which have finished within their SLOs. An answer of one token has no TPOT."""
    outcomes, table, arrival_s = run.outcomes, workload.table, run.requests["arrival_s"]
    return within_slos(table, *latencies_of(table, arrival_s, outcomes["first_token_s"], outcomes["finish_s"]))


def latencies_of(
    table: np.ndarray, arrival_s: np.ndarray, first_token_s: np.ndarray, finish_s: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float64[requests] each: TTFT, TPOT (nan: an answer of one token has none) and TTLT; nan: not yet."""
    later_tokens = np.where(table["output_tokens"] > 1, table["output_tokens"] - 1, np.nan)
    return first_token_s - arrival_s, (finish_s - first_token_s) / later_tokens, finish_s - arrival_s


def within_slos(table: np.ndarray, ttft_s: np.ndarray, tpot_s: np.ndarray, ttlt_s: np.ndarray) -> np.ndarray:
    """bool[requests]: which latencies are within the SLOs of requests that have finished."""
    interactive = (ttft_s < table["ttft_slo_s"]) & ((tpot_s < table["tpot_slo_s"]) | (table["output_tokens"] == 1))
    within = np.where(np.isfinite(table["ttlt_slo_s"]), ttlt_s < table["ttlt_slo_s"], interactive)
    return np.isfinite(ttlt_s) & within


def missed(run: SimulationState, workload: Workload, now_s: float) -> np.ndarray:
    """bool[requests]: which can no longer attain their SLOs at a time. inf: what has not finished will not."""
    outcomes, table, arrival_s = run.outcomes, workload.table, run.requests["arrival_s"]
    first_s = np.where(np.isnan(outcomes["first_token_s"]), now_s, outcomes["first_token_s"])
    late = np.where(
        np.isfinite(table["ttlt_slo_s"]),
        now_s - arrival_s >= table["ttlt_slo_s"],
        first_s - arrival_s >= table["ttft_slo_s"],
    )
    finished, refused = np.isfinite(outcomes["finish_s"]), np.isfinite(outcomes["refused_s"])
    return np.where(finished, ~attained(run, workload), late | refused | (now_s == np.inf))


def violated(run: SimulationState, workload: Workload, now_s: float) -> np.ndarray:
    """bool[requests]: which have violated their SLO up to a time: a token came late, or is late and has not come.

    now_s: at which the run stands; inf: what has not finished will not.
    """
    requests, outcomes, table = run.requests, run.outcomes, workload.table
    arrival_s = requests["arrival_s"]
    finished = np.isfinite(outcomes["finish_s"])
    emitted = out_of(requests, outcomes)
    next_deadline_s = requests["first_deadline_s"] + emitted * requests["token_interval_s"]
    latency_s = np.where(finished, outcomes["finish_s"] - arrival_s, 0.0)
    refused = np.isfinite(outcomes["refused_s"])
    late_token = outcomes["on_time_tokens"] < emitted
    late = np.where(np.isfinite(table["ttlt_slo_s"]), latency_s >= table["ttlt_slo_s"], late_token)
    return late | refused | (~finished & (next_deadline_s <= now_s))


def starved(
    table: np.ndarray, ttft_s: np.ndarray, ttlt_s: np.ndarray, refused: np.ndarray | bool = False
) -> np.ndarray:
    """bool[requests]: which have not finished, or had a TTFT (with a TTLT SLO: a TTLT) of over 10 times the SLO.
    Those that were refused are not among them: their clients were told at once."""
    by_ttlt = np.isfinite(table["ttlt_slo_s"])
    latency_s, slo_s = np.where(by_ttlt, ttlt_s, ttft_s), np.where(by_ttlt, table["ttlt_slo_s"], table["ttft_slo_s"])
    return (~np.isfinite(ttlt_s) & ~np.asarray(refused)) | (latency_s > STARVED_TIMES * slo_s)


def slo_classes(table: np.ndarray) -> dict[str, np.ndarray]:
    """bool[requests] of each class, by its SLOs in words: "TTFT 6 s, TPOT 50 ms", "TTLT 600 s".

    A class is the requests of equal SLOs. Empty where there are more than `MOST_CLASSES`: then SLOs are each request's
    own.
    """
    by_ttlt = np.isfinite(table["ttlt_slo_s"])
    code = np.zeros(len(table), "i8")
    for name in SLOS:
        # With a TTLT the others say nothing; those without one come first.
        column = np.where(by_ttlt == (name == "ttlt_slo_s"), table[name], 0.0)
        if (column == column[:1]).all():  # nearly always: nothing to sort
            continue
        values, place = np.unique(column, return_inverse=True)
        if len(values) > MOST_CLASSES:
            return {}
        code = code * len(values) + place
    codes, first = np.unique(code, return_index=True)
    if len(codes) > MOST_CLASSES:
        return {}
    classes: dict[str, np.ndarray] = {}
    for one, row in zip(codes, table[first], strict=True):
        name = _in_words(row)
        classes[name] = (code == one) | classes.get(name, False)  # two that read alike are one
    return classes


def _in_words(slos: np.void) -> str:
    if slos["ttlt_slo_s"] < np.inf:
        return f"TTLT {slos['ttlt_slo_s']:g} s"
    return f"TTFT {slos['ttft_slo_s']:g} s, TPOT {1e3 * slos['tpot_slo_s']:g} ms"
