"""SLOs: which requests attained, violated or were starved, and classes of requests with equal SLOs.

Attainment: TTFT and mean TPOT, or TTLT, are strictly below the SLOs. Violation, as QoServe counts it (Eq. 1 to 3): a
token is not emitted strictly before its deadline, arrival + TTFT SLO for the first and a TPOT SLO more for each later
one; with a TTLT SLO, the last is not emitted before arrival + TTLT SLO. So an answer with an early first token may be
slow for a while without violation, and one stall may violate although the mean TPOT attains.

Starvation: never finished, or very late. It is counted apart, as a request that is late anyway adds nothing to gain or
attainment, so that a policy may starve it for others.
"""

from __future__ import annotations

import numpy as np

from servegym.simulator.features.ahead import emitted_of
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.state import SimulationState

MOST_CLASSES = 16
SLOS = ("ttlt_slo_s", "ttft_slo_s", "tpot_slo_s")
STARVED_TIMES = 10.0  # a latency of over so many times the SLO is starvation
LATENCIES = ("ttft_s", "tpot_s", "ttlt_s")


def attained(run: SimulationState, workload: Workload) -> np.ndarray:
    """Return bool[requests]: which have finished within their SLOs. An answer of one token has no TPOT."""
    outcomes, table, arrival_s = run.outcomes, workload.table, run.requests["arrival_s"]
    return within_slos(table, *latencies_of(table, arrival_s, outcomes["first_token_s"], outcomes["finish_s"]))


def latencies_of(
    table: np.ndarray, arrival_s: np.ndarray, first_token_s: np.ndarray, finish_s: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return float64[requests] three times: TTFT, TPOT (nan for answers of one token), TTLT, in s; nan: not yet."""
    later_tokens = np.where(table["output_tokens"] > 1, table["output_tokens"] - 1, np.nan)
    return first_token_s - arrival_s, (finish_s - first_token_s) / later_tokens, finish_s - arrival_s


def within_slos(table: np.ndarray, ttft_s: np.ndarray, tpot_s: np.ndarray, ttlt_s: np.ndarray) -> np.ndarray:
    """Return bool[requests]: which requests have finished with latencies within their SLOs."""
    interactive = (ttft_s < table["ttft_slo_s"]) & ((tpot_s < table["tpot_slo_s"]) | (table["output_tokens"] == 1))
    within = np.where(np.isfinite(table["ttlt_slo_s"]), ttlt_s < table["ttlt_slo_s"], interactive)
    return np.isfinite(ttlt_s) & within


def missed(run: SimulationState, workload: Workload, now_s: float) -> np.ndarray:
    """Return bool[requests]: which can no longer attain their SLOs at now_s; inf: the unfinished ones cannot."""
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
    """Return bool[requests]: which have violated their SLOs by now_s: a token was late, or is late now.

    now_s: the time of the run; inf: unfinished requests have violated theirs.
    """
    requests, outcomes, table = run.requests, run.outcomes, workload.table
    arrival_s = requests["arrival_s"]
    finished = np.isfinite(outcomes["finish_s"])
    emitted = emitted_of(requests, outcomes)
    next_deadline_s = requests["first_deadline_s"] + emitted * requests["token_interval_s"]
    latency_s = np.where(finished, outcomes["finish_s"] - arrival_s, 0.0)
    refused = np.isfinite(outcomes["refused_s"])
    late_token = outcomes["on_time_tokens"] < emitted
    late = np.where(np.isfinite(table["ttlt_slo_s"]), latency_s >= table["ttlt_slo_s"], late_token)
    return late | refused | (~finished & (next_deadline_s <= now_s))


def starved(
    table: np.ndarray, ttft_s: np.ndarray, ttlt_s: np.ndarray, refused: np.ndarray | bool = False
) -> np.ndarray:
    """Return bool[requests]: which have not finished, or had a TTFT (with a TTLT SLO: a TTLT) of over 10 times the SLO.

    Refused requests do not count, as their clients hear at once.
    """
    by_ttlt = np.isfinite(table["ttlt_slo_s"])
    latency_s, slo_s = np.where(by_ttlt, ttlt_s, ttft_s), np.where(by_ttlt, table["ttlt_slo_s"], table["ttft_slo_s"])
    return (~np.isfinite(ttlt_s) & ~np.asarray(refused)) | (latency_s > STARVED_TIMES * slo_s)


def slo_classes(table: np.ndarray) -> dict[str, np.ndarray]:
    """Return bool[requests] by class, named "TTFT 6 s, TPOT 50 ms" or "TTLT 600 s".

    A class is the requests with equal SLOs. With more than `MOST_CLASSES`, requests have SLOs of their own, and the
    result is empty.
    """
    by_ttlt = np.isfinite(table["ttlt_slo_s"])
    code = np.zeros(len(table), "i8")
    for name in SLOS:
        # With a TTLT SLO the other SLOs are ignored.
        column = np.where(by_ttlt == (name == "ttlt_slo_s"), table[name], 0.0)
        if (column == column[:1]).all():  # the common case
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
        classes[name] = (code == one) | classes.get(name, False)  # classes with equal names are one
    return classes


def _in_words(slos: np.void) -> str:
    if slos["ttlt_slo_s"] < np.inf:
        return f"TTLT {slos['ttlt_slo_s']:g} s"
    return f"TTFT {slos['ttft_slo_s']:g} s, TPOT {1e3 * slos['tpot_slo_s']:g} ms"
