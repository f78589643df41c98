"""Distributions of TTFT, TPOT and TTLT over the requests of a run, by priority, with their SLOs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from servegym.evaluation.plots import COLOURS, DASHES, dress
from servegym.evaluation.reports.plots import HEIGHT, WIDTH
from servegym.simulator.runs.results import Result

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "ttlt": "TTLT"}
CURVE_POINTS = 400  # most points of a curve


class Latencies(NamedTuple):
    """A latency (TTFT, TPOT or TTLT) of the requests that have an SLO on it.

    of_priority: float64[requests] by priority, ascending; inf: the token has not been emitted. slo_s: the SLO that all
    share; None: SLOs differ, and latencies are in multiples of them.
    """

    of_priority: dict[int, np.ndarray]
    slo_s: float | None


def latencies(result: Result, name: str) -> Latencies:
    """Return a latency of the requests that have an SLO on it: TTLT, or else TTFT and TPOT."""
    table = result.requests
    judged = np.isfinite(table["ttlt_slo_s"]) == (name == "ttlt")
    if name == "tpot":
        judged &= table["output_tokens"] > 1
    table = table[judged]
    slos_s = table[f"{name}_slo_s"].unique()
    values = table[f"{name}_s"].fillna(np.inf)
    if len(slos_s) > 1:
        values = values / table[f"{name}_slo_s"]
    return Latencies(
        {int(priority): np.sort(of.to_numpy()) for priority, of in values.groupby(table["priority"])},
        float(slos_s[0]) if len(slos_s) == 1 else None,
    )


def plot_latencies(result: Result) -> Figure:
    """Draw the cumulative distribution of each latency with an SLO, over all requests that arrived."""
    found = {name: latencies(result, name) for name in LATENCIES}
    drawn = {name: each for name, each in found.items() if each.of_priority}
    figure = Figure(figsize=(WIDTH, 1.15 * HEIGHT), layout="constrained")
    for axes, (name, each) in zip(
        figure.subplots(1, len(drawn), sharey=True, squeeze=False)[0], drawn.items(), strict=True
    ):
        _panel(axes, LATENCIES[name], each)
    figure.axes[0].set_ylabel("share of requests")
    return figure


def _panel(axes: Axes, name: str, latencies: Latencies) -> None:
    finite = np.concatenate([values[np.isfinite(values)] for values in latencies.of_priority.values()])
    bound = latencies.slo_s or 1.0
    least, most = min([bound, *finite]) / 1.2, max([bound, *finite]) * 1.2
    for index, (priority, values) in enumerate(latencies.of_priority.items()):
        style: dict[str, Any] = {
            "color": COLOURS[index % len(COLOURS)],
            "linestyle": DASHES[index % len(DASHES)],
            "linewidth": 1.6,
        }
        x, y = distribution(values)
        axes.step(
            [least, *x, most], [0, *y, y[-1] if len(y) else 0], where="post", label=f"priority {priority}", **style
        )
    slo = f"SLO {latencies.slo_s:g} s" if latencies.slo_s else "SLO"
    axes.axvline(bound, color="black", linewidth=1.2, linestyle=DASHES[2], label=slo)
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(f"{name} (s)" if latencies.slo_s else f"{name} / its SLO")
    _plain_ticks(axes, most / least)
    dress(axes, "both")
    axes.legend(loc="best", frameon=False)


def distribution(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points (value, share of all values at or below it) of a curve. values: sorted, inf included."""
    finite = int(np.count_nonzero(np.isfinite(values)))
    places = (
        np.unique(np.linspace(0, finite - 1, min(finite, CURVE_POINTS)).astype("i8")) if finite else np.empty(0, "i8")
    )
    return values[places], (places + 1) / len(values)


def _plain_ticks(axes: Axes, ratio: float) -> None:
    """Set ticks such as 0.05, 0.1, 0.2 or, on a long axis, 0.01, 0.1, 1. ratio: of the axis's ends."""
    subs = (1, 1.5, 2, 3, 5, 7) if ratio < 10 else (1, 2, 5) if ratio < 200 else (1,)
    axes.xaxis.set_major_locator(LogLocator(10, subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
