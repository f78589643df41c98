"""Parts of a recording: those by which something is chosen, and others by which it is judged."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from servegym.errors import WorkloadError
from servegym.evaluation.repeats import BLOCKS, WINDOWS
from servegym.simulator.inputs.workload import Workload
from servegym.traces.distributions import Stream, generator
from servegym.traces.resampling import resampled
from servegym.traces.trace import Trace
from servegym.traces.workloads import build_trace, workload_of_trace

MOST_WINDOWS = 10  # half of them choose
LEAST_REQUESTS, LEAST_S = 200, 60.0  # of a window, as far as the recording has room for two
LEAST_RECORDED = 20  # requests, or sessions, of a recording
RESAMPLED_REQUESTS = 1000  # of a resample, at least; and as many as come in LEAST_S


class Windows(NamedTuple):
    """to_choose, to_judge: workloads of equal length, without a request in common. over: what an interval is over."""

    to_choose: list[Workload]
    to_judge: list[Workload]
    over: str

    @property
    def requests(self) -> int:
        """Number of requests of a window."""
        return len(self.to_judge[0])

    @property
    def span_s(self) -> float:
        """Time over which requests arrive in a window that judges; the mean over them."""
        arrivals = [one.table["arrival_s"][: one.known] for one in self.to_judge]
        return float(np.mean([arrival_s[-1] - arrival_s[0] for arrival_s in arrivals]))


def windows_of(
    trace: Trace,
    slo: str,
    *,
    rate_per_s: float | None = None,
    arrivals: str | None = None,
    resample: bool = False,
    seed: int = 0,
) -> Windows:
    """The windows of a recording: every second one chooses, beginning with the first, and the others judge.

    rate_per_s: the recording is stretched to it as a whole, so that windows keep their own rates. resample: the first
    half of the recording chooses and the second judges, each drawn anew in blocks, for LEAST_S or longer. Sessions stay
    whole. Raises
    WorkloadError for a recording that is too short, or has no times where no rate is given, and as `build_trace`.
    """
    if trace.arrival_s is None and rate_per_s is None:
        raise WorkloadError(f"{trace.name} does not say when its requests came; say at which rate they do (--rate)")
    if (sessions := int(trace.begins.sum())) < LEAST_RECORDED:
        what = "request" if trace.turns is None else "session"
        raise WorkloadError(
            f"{trace.name} has {sessions} {what}{'s' * (sessions > 1)}; a recommendation takes {LEAST_RECORDED} or more"
        )
    whole = build_trace(trace, rate_per_s=rate_per_s, slo=slo, arrivals=arrivals, seed=seed)
    if whole.arrival_s[whole.begins][-1] == whole.arrival_s[0]:  # type: ignore[index]
        raise WorkloadError(f"{trace.name}: all requests come at once; a recommendation is for a rate (--rate)")
    if resample:
        both = cut(whole, 2)
        span_s = whole.arrival_s[whole.begins][-1] - whole.arrival_s[0]  # type: ignore[index]
        size = max(RESAMPLED_REQUESTS, len(whole) // MOST_WINDOWS, math.ceil(LEAST_S * len(whole) / span_s))
        first, second = ([_drawn(half, size, number) for number in range(MOST_WINDOWS // 2)] for half in both)
        return Windows(first, second, BLOCKS)
    parts = [workload_of_trace(part) for part in cut(whole, count_of(whole))]
    return Windows(parts[::2], parts[1::2], WINDOWS)


def count_of(trace: Trace) -> int:
    """Number of windows into which a trace is cut: even, at least 2."""
    begin_s = trace.arrival_s[trace.begins]  # type: ignore[index]
    room = min(len(trace) // LEAST_REQUESTS, int((begin_s[-1] - begin_s[0]) // LEAST_S), int(trace.begins.sum()))
    return max(2, min(MOST_WINDOWS, room) // 2 * 2)


def cut(trace: Trace, count: int) -> list[Trace]:
    """Cut a trace into parts of about equal numbers of requests, each from time 0 on; sessions stay whole."""
    rows = np.arange(len(trace))
    first = np.maximum.accumulate(np.where(trace.begins, rows, 0))  # the row with which a request's session begins
    starts = np.flatnonzero(trace.begins)
    even = np.linspace(0, len(trace), count + 1)[1:-1].astype(int)
    bounds = starts[np.minimum(np.searchsorted(starts, even), len(starts) - 1)]
    if len(set(bounds)) < count - 1 or 0 in bounds:  # sessions too long for equal parts: as many sessions in each
        bounds = starts[np.linspace(0, len(starts), count + 1)[1:-1].astype(int)]
    part = np.searchsorted(bounds, first, side="right")
    return [_from_zero(trace.take(np.flatnonzero(part == number))) for number in range(count)]


def _from_zero(trace: Trace) -> Trace:
    assert trace.arrival_s is not None
    return dataclasses.replace(trace, arrival_s=trace.arrival_s - trace.arrival_s[0])


def _drawn(half: Trace, size: int, number: int) -> Workload:
    return workload_of_trace(resampled(half, size, generator(number, Stream.BLOCKS)))
