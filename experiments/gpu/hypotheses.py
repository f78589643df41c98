"""The hypotheses stated before the runs on a GPU, held against what was served at a load above 1."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from experiments.gpu.compare import SERVED, Compared
from experiments.gpu.workloads import STOCK
from servegym.evaluation.markdown import narrow_header, row

LATENCY, TDG, LEAD = 0.10, 0.02, 0.03  # bounds: relative error; difference; difference of leads
QUANTILES = (0.5, 0.9)
COLUMNS = {"TTFT": "ttft_s", "TPOT": "tpot_s"}
LABELS = [f"{name} p{100 * q:.0f}" for name in COLUMNS for q in QUANTILES]


def latencies(result: Any) -> np.ndarray:
    """What LABELS name, in seconds, float64[4]."""
    return np.concatenate([np.quantile(result.requests[name].dropna(), QUANTILES) for name in COLUMNS.values()])


def run_rows(runs: Sequence[Compared]) -> Iterator[str]:
    """Errors of each simulation of each run, and which bounds they miss."""
    for run in runs:
        served = run.results[SERVED]
        measured, tdg = latencies(served), served.summary["tdg_ratio"]
        title = f"{run.line['trace']}, {run.line['policy']}"
        for device, result in run.results.items():
            if device == SERVED:
                continue
            errors, difference = latencies(result) / measured - 1.0, result.summary["tdg_ratio"] - tdg
            missed = [label for label, error in zip(LABELS, errors, strict=True) if abs(error) > LATENCY]
            missed += ["TDG"] * (abs(difference) > TDG)
            percent = (f"{100 * error:+.0f} %" for error in errors)
            yield row(title, device, *percent, f"{difference:+.3f}", ", ".join(missed) or "none")
            title = ""


def lead_rows(runs: Sequence[Compared]) -> Iterator[str]:
    """TDG of each policy less that of vLLM's own order on the same requests: measured, and on each profile."""
    stock = {run.line["trace"]: run for run in runs if run.line["policy"] == STOCK}
    for run in runs:
        base = stock.get(run.line["trace"])
        if base is None or run is base:
            continue
        leads = {
            label: result.summary["tdg_ratio"] - base.results[label].summary["tdg_ratio"]
            for label, result in run.results.items()
        }
        cells = (f"{leads[SERVED]:+.3f}" if label == SERVED else marked(leads, label) for label in leads)
        yield row(run.line["trace"], run.line["policy"], *cells)


def marked(leads: dict[str, float], label: str) -> str:
    """The lead on a profile; an asterisk where it is too far from the measured one."""
    return f"{leads[label]:+.3f}" + "\\*" * (abs(leads[label] - leads[SERVED]) > LEAD)


def tables(runs: Sequence[Compared]) -> str:
    """Both tables of the runs at loads above 1; nothing where there are none."""
    shown = [run for run in runs if (run.line.get("load") or 0.0) > 1.0 and len(run.results) > 1]
    if not shown:
        return ""
    heads = narrow_header("load above 1", "simulated on", *LABELS, "TDG", "beyond its bound")
    parts = ["Simulated less measured:\n", *heads, *run_rows(shown)]
    parts += ["\nLead over vLLM's own order in TDG (\\*: more than 0.03 from the measured one):\n"]
    parts += [*narrow_header("trace", "policy", "measured", *list(shown[0].results)[1:]), *lead_rows(shown)]
    return "\n".join(parts) + "\n\n"
