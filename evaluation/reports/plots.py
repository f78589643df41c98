"""Pictures of a run over time, as matplotlib figures; `figure.savefig(path)` writes one.

Time is divided into equal bins, as a run has far more events than a picture has columns. Curves and areas also differ
by dashes, hatching and position, so that they can be read without colour.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from servegym.evaluation.plots import COLOURS, DASHES, dress
from servegym.evaluation.reports.iterations import iterations, pieces
from servegym.evaluation.reports.memory import kv_blocks
from servegym.evaluation.reports.phases import AT_ROUTER, WAITING, phases
from servegym.evaluation.reports.timeline_events import timeline_events
from servegym.simulator.records.types import FINISH, TOKEN
from servegym.simulator.runs.results import Result


@dataclasses.dataclass(frozen=True)
class Bins:
    """`count` bins of `width_s` seconds from time 0; the last ends with the run, at `span_s`."""

    width_s: float
    count: int
    span_s: float

    @classmethod
    def over(cls, span_s: float, most: int) -> Bins:
        """Return at most `most` bins over a run, with a width of 1, 2 or 5 times a power of ten seconds."""
        least_s = span_s / most if span_s > 0 else 1.0
        power = 10.0 ** math.floor(math.log10(least_s))
        width_s = next(step * power for step in (1, 2, 5, 10) if step * power >= least_s)
        count = max(1, math.ceil(span_s / width_s - 1e-9))  # no extra bin for a rounding error
        return cls(width_s, count, span_s if span_s > 0 else width_s)

    @property
    def edges_s(self) -> np.ndarray:
        """float64[count + 1]"""
        return np.r_[self.width_s * np.arange(self.count), self.span_s]

    def rates(self, time_s: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return float64[count]: the sum of values at instants, per second.

        An instant on an edge belongs to the later bin, the end of the run to the last. The last bin counts as a whole
        one, as a rate over a sliver of time would be a spike.
        """
        place = np.minimum((time_s / self.width_s).astype("i8"), self.count - 1)
        return np.bincount(place, value, self.count) / self.width_s

    def seconds(self, start_s: np.ndarray, end_s: np.ndarray, value: np.ndarray | float = 1.0) -> np.ndarray:
        """Return float64[count]: the integral over each bin of the sum of spans. value: of a span."""
        value = np.broadcast_to(value, start_s.shape)
        return np.diff(_integral(start_s, value, self.edges_s) - _integral(end_s, value, self.edges_s))

    def means(self, start_s: np.ndarray, end_s: np.ndarray, value: np.ndarray | float = 1.0) -> np.ndarray:
        """Return float64[count]: the mean over each bin of the sum of spans."""
        return self.seconds(start_s, end_s, value) / np.diff(self.edges_s)


def _integral(since_s: np.ndarray, value: np.ndarray, until_s: np.ndarray) -> np.ndarray:
    """Return the integral up to each time of `until_s` of steps of `value` that begin at `since_s` and never end."""
    order = np.argsort(since_s)
    begun = np.searchsorted(since_s[order], until_s, "right")
    height = np.r_[0.0, np.cumsum(value[order])][begun]
    moment = np.r_[0.0, np.cumsum((value * since_s)[order])][begun]
    return height * until_s - moment


WIDTH, HEIGHT = 9.5, 2.8  # inches, of a figure with one row of panels
STATE_BINS = 240  # most bins of a state: about two to a millimetre
RATE_BINS = 60  # most bins of a rate: few enough for many arrivals in each
HATCH = "////"
BLUE, ORANGE, GREEN = COLOURS[:3]


def plot_gain(result: Result) -> Figure:
    """Draw the gain earned per second, and the ideal gain of the requests that arrived.

    The areas under the two are the gain and the ideal gain of the run.
    """
    bins, earned, ideal = gain_rates(result)
    figure, (axes,) = _figure()
    axes.stairs(earned, bins.edges_s, fill=True, color=BLUE, alpha=0.45, label="earned")
    axes.stairs(ideal, bins.edges_s, baseline=None, color=ORANGE, linewidth=1.5, label="arrived (ideal)")
    _over_time(axes, result, "gain per second")
    return figure


def gain_rates(result: Result) -> tuple[Bins, np.ndarray, np.ndarray]:
    """Return the bins, the gain earned per second (when tokens are emitted) and the ideal gain per second (when their
    requests arrive).
    """
    bins = Bins.over(float(result.arrays.status[0].now_s), RATE_BINS)
    events, requests = timeline_events(result), result.requests
    tokens = events[np.isin(events["kind"], (TOKEN, FINISH))]  # FINISH: of a session
    earned = bins.rates(tokens["time_s"], tokens["value"])
    ideal = bins.rates(requests["arrival_s"].to_numpy(), requests["ideal_gain"].to_numpy())
    return bins, earned, ideal


def plot_requests(result: Result) -> Figure:
    """Draw the numbers of waiting and running requests over time, of all engines; means over bins."""
    bins, waiting, running = requests_over_time(result)
    figure, (axes,) = _figure()
    axes.stairs(running, bins.edges_s, fill=True, color=BLUE, alpha=0.45, label="running")
    axes.stairs(waiting, bins.edges_s, baseline=None, color=ORANGE, linewidth=1.5, label="waiting")
    _over_time(axes, result, "requests")
    return figure


def requests_over_time(result: Result) -> tuple[Bins, np.ndarray, np.ndarray]:
    """Return the bins, and the mean numbers of requests waiting (at engines or the router) and running in each."""
    table, bins = phases(result), _state_bins(result)
    waits = table["phase"].isin((WAITING, AT_ROUTER))
    waiting, running = (_means(bins, table[chosen]) for chosen in (waits, ~waits))
    return bins, waiting, running


def plot_urgency(result: Result, counts: pd.DataFrame) -> Figure:
    """Draw the urgent and normal requests at decisions over time, stacked. counts: `urgency(result)`."""
    bins = _state_bins(result)
    figure, (axes,) = _figure()
    _stacked(axes, bins, {name: _means(bins, counts, name) for name in ("urgent", "normal")})
    _over_time(axes, result, "requests")
    return figure


def plot_kv_memory(result: Result) -> Figure:
    """Draw the KV blocks in use over time: mean, minimum and maximum over engines, and how many there are.

    If engines differ in their number of blocks: shares.
    """
    bins, in_use = kv_blocks_over_time(result)
    totals = result.arrays.engines["total_blocks"]
    total, unit = int(totals[0]), "KV blocks of an engine"
    if (totals != total).any():
        in_use, total, unit = in_use / totals[:, None], 1, "share of the KV blocks"
    figure, (axes,) = _figure()
    several = len(in_use) > 1
    name = "in use, mean of the engines" if several else "in use"
    axes.stairs(in_use.mean(0), bins.edges_s, baseline=None, color=BLUE, linewidth=1.5, label=name)
    if several:
        axes.stairs(in_use.max(0), bins.edges_s, baseline=in_use.min(0), fill=True, color=BLUE, alpha=0.25,
                    label="from the emptiest to the fullest")  # fmt: skip
    axes.axhline(total, color="black", linewidth=1.2, linestyle=DASHES[2], label=f"all {total:,}")
    _over_time(axes, result, unit)
    axes.set_ylim(0, 1.05 * total)
    return figure


def kv_blocks_over_time(result: Result) -> tuple[Bins, np.ndarray]:
    """Return the bins, and float64[engines, bins]: mean KV blocks in use."""
    bins, span_s = _state_bins(result), float(result.arrays.status[0].now_s)
    rows = []
    for time_s, blocks in kv_blocks(result):
        start_s = np.minimum(time_s, span_s)
        rows.append(bins.means(start_s, np.r_[start_s[1:], span_s][: len(start_s)], blocks.astype("f8")))
    return bins, np.array(rows)


def plot_batches(result: Result) -> Figure:
    """Draw the tokens and requests of prefills and decodes in a batch over time, stacked; means over running
    iterations.
    """
    bins, batch = batches_over_time(result)
    figure, panels = _figure(2)
    for axes, unit in zip(panels, ("tokens", "requests"), strict=True):
        _stacked(axes, bins, {phase: batch[f"{phase}_{unit}"] for phase in ("prefill", "decode")})
        _over_time(axes, result, f"{unit} in a batch")
    return figure


def batches_over_time(result: Result) -> tuple[Bins, dict[str, np.ndarray]]:
    """Return the bins, and prefill_requests, decode_requests, prefill_tokens, decode_tokens of a batch in each.

    They are means over the time in which an iteration runs; 0 if none does.
    """
    ran, bins = pieces(result), _state_bins(result)
    table = (
        iterations(result)
        .drop(columns=["engine", "start_s", "end_s"])
        .merge(ran, "right", left_index=True, right_on="iteration")
    )
    running = _means(bins, table)
    some = running > 1e-9  # a difference of sums, which may have a rounding error if nothing runs
    columns = [f"{phase}_{unit}" for phase in ("prefill", "decode") for unit in ("requests", "tokens")]
    return bins, {
        column: np.divide(_means(bins, table, column), running, out=np.zeros(bins.count), where=some)
        for column in columns
    }


def _state_bins(result: Result) -> Bins:
    return Bins.over(float(result.arrays.status[0].now_s), STATE_BINS)


def _means(bins: Bins, spans: pd.DataFrame, column: str | None = None) -> np.ndarray:
    """Return the mean over time of a column of spans; None: of their number."""
    value = 1.0 if column is None else spans[column].to_numpy().astype("f8")
    return bins.means(spans["start_s"].to_numpy(), spans["end_s"].to_numpy(), value)


def _figure(rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Make panels one above the other, with fixed margins, so that the time axes of all figures align."""
    height = rows * HEIGHT
    figure = Figure(figsize=(WIDTH, height))
    figure.subplots_adjust(left=0.085, right=0.985, bottom=0.5 / height, top=1 - 0.35 / height, hspace=0.4)
    return figure, list(figure.subplots(rows, 1, squeeze=False)[:, 0])


def _stacked(axes: Axes, bins: Bins, parts: dict[str, np.ndarray]) -> None:
    """Draw two parts, the first below and plain, the second above and hatched."""
    below = np.zeros(bins.count)
    for (name, part), colour, hatch in zip(parts.items(), (BLUE, ORANGE), ("", HATCH), strict=True):
        axes.stairs(
            below + part, bins.edges_s, baseline=below, fill=not hatch, color=colour, hatch=hatch, label=name
        )  # fmt: skip
        below = below + part


def _over_time(axes: Axes, result: Result, unit: str) -> None:
    axes.set_xlim(0, _state_bins(result).span_s)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time (s)")
    axes.set_ylabel(unit)
    dress(axes)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, borderaxespad=0.2)
