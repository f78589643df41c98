"""Arrival processes: when the requests of a trace come. Named as "name" or "name:key=value,key=value".

Every process is drawn at a fixed scale and then stretched to the rate, so at two rates one seed gives the same arrivals
up to a factor. To add one, register a function here that takes the trace, a mean rate (None: not given) and a
generator, and keyword-only parameters, and returns float64 seconds of shape (requests,), not decreasing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.records.types import LATEST_S
from servegym.traces.registry import Registry
from servegym.traces.trace import Trace

ArrivalProcess = Callable[..., np.ndarray]
ARRIVALS: Registry[ArrivalProcess] = Registry("arrival process")

DAY_S = 86_400.0
LEAST_CV, MOST_CV = 0.001, 100.0  # outside, all gaps are alike, or all but a few are 0
# Processes that set their own rate: always (None), or if this parameter is given.
OWN_PACE = {
    "own": None, "at-once": None, "square-wave": None, "bursts": "gap_s", "waves": "gap_s",
    "industrial-day": "duration_s",
}  # fmt: skip
SCALABLE = ("own", "square-wave", "industrial-day")  # those of them that can be stretched to a rate


def needs_rate(text: str) -> bool:
    """Whether a process, "name" or "name:key=value,...", needs a rate. Raises WorkloadError."""
    return not _has_own_pace(text)


def takes_rate(text: str) -> bool:
    """Whether a process accepts a rate. Raises WorkloadError."""
    return not _has_own_pace(text) or text.partition(":")[0] in SCALABLE


def _has_own_pace(text: str) -> bool:
    given, name = ARRIVALS.bound(text).keywords, text.partition(":")[0]  # type: ignore[attr-defined]
    return name in OWN_PACE and (OWN_PACE[name] is None or given.get(OWN_PACE[name]) is not None)


def arrivals_of(process: str, trace: Trace, rate_per_s: float | None, rng: np.random.Generator) -> np.ndarray:
    """Draw the arrivals of a process, "name" or "name:key=value,...": float64[requests], s.

    Raises WorkloadError for an unknown process, and for parameters that give times no run can have.
    """
    drawn = ARRIVALS.bound(process)
    try:
        with np.errstate(all="ignore"):
            times_s = drawn(trace, rate_per_s, rng)
    except (OverflowError, ZeroDivisionError):
        times_s = np.array([np.nan])
    if not (times_s <= LATEST_S).all():
        raise WorkloadError(
            f"arrivals {process}: these numbers give times that are not finite or above {LATEST_S:g} s; take less "
            "extreme ones"
        )
    return times_s


@ARRIVALS.register("own")
def own(trace: Trace, rate_per_s: float | None, rng: np.random.Generator) -> np.ndarray:
    """The trace's own times; with a rate, shifted to 0 and stretched to it, as ProServe replays Azure and QwenTrace."""
    del rng  # not random
    if trace.arrival_s is None:
        raise WorkloadError("the trace has no times of its own: draw arrivals, such as poisson")
    if rate_per_s is None:
        return trace.arrival_s
    since_first_s = trace.arrival_s - trace.arrival_s[0]
    span_s = since_first_s[-1]
    if span_s == 0:
        raise WorkloadError("there is no time between arrivals to stretch; draw arrivals instead")
    return since_first_s * ((len(trace) - 1) / span_s / checked_rate(rate_per_s, "arrivals"))


@ARRIVALS.register("poisson")
def poisson(trace: Trace, rate_per_s: float | None, rng: np.random.Generator) -> np.ndarray:
    """Independent exponential gaps with mean 1 / rate; the first arrival is one gap after 0.

    n requests arrive when the first n of any larger number do.
    """
    return np.cumsum(rng.exponential(size=len(trace))) / checked_rate(rate_per_s, "poisson arrivals")


@ARRIVALS.register("gamma")
def gamma(trace: Trace, rate_per_s: float | None, rng: np.random.Generator, *, cv: float) -> np.ndarray:
    """Independent Gamma gaps with mean 1 / rate and coefficient of variation `cv`: 1 is Poisson, more is burstier."""
    if not LEAST_CV <= cv <= MOST_CV:
        raise WorkloadError(f"gamma: cv is {cv:g}; it should be {LEAST_CV:g} to {MOST_CV:g}")
    shape = cv**-2
    return np.cumsum(rng.gamma(shape, 1 / shape, len(trace))) / checked_rate(rate_per_s, "gamma arrivals")


@ARRIVALS.register("at-once")
def at_once(trace: Trace, rate_per_s: float | None, rng: np.random.Generator) -> np.ndarray:
    """All at time 0, as in a saturation run."""
    del rng
    if rate_per_s is not None:
        raise WorkloadError(f"arrivals at once have no rate: leave out the {rate_per_s:g} requests/s")
    return np.zeros(len(trace))


@ARRIVALS.register("bursts")
def bursts(
    trace: Trace, rate_per_s: float | None, rng: np.random.Generator, *, n: int, gap_s: float | None = None
) -> np.ndarray:
    """`n` requests together at 0, gap_s, 2 gap_s, ...; without gap_s, the gap is n / rate."""
    del rng
    checked_positive(n, "bursts: n")
    return np.arange(len(trace)) // n * _gap_s("bursts", n, rate_per_s, gap_s)


@ARRIVALS.register("waves")
def waves(
    trace: Trace, rate_per_s: float | None, rng: np.random.Generator, *, n: int = 5, gap_s: float | None = None
) -> np.ndarray:
    """0 to `n` requests together, each number equally likely, at 0, gap_s, 2 gap_s, ...; without gap_s, the gap is
    n / 2 / rate.

    Source: semantic scheduling, section 4: n = 5 outside spikes and up to 100 in them, gaps 0.1 and 1 s; the
    paper names the largest number, its public code draws it from 0 to n.
    """
    checked_positive(n, "waves: n")
    gap_s = _gap_s("waves", n / 2, rate_per_s, gap_s)
    sizes = np.empty(0, "i8")
    while sizes.sum() < len(trace):
        sizes = np.r_[sizes, rng.integers(0, n, 2 + 2 * len(trace) // n, endpoint=True)]
    return np.repeat(np.arange(len(sizes)), sizes)[: len(trace)] * gap_s


@ARRIVALS.register("square-wave")
def square_wave(
    trace: Trace,
    rate_per_s: float | None,
    rng: np.random.Generator,
    *,
    low_per_s: float = 2.0,
    high_per_s: float = 5.0,
    phase_s: float = 900.0,
) -> np.ndarray:
    """Poisson arrivals at a low rate for a phase, at a high rate for the next phase, and so on.

    rate_per_s: the whole pattern, phases included, is stretched so that the mean of both rates is this one.
    Source: QoServe, section 4.3 (2 and 5 requests/s, 15 minutes each, for 4 hours).
    """
    low_per_s = checked_positive(low_per_s, "square-wave: low_per_s")
    high_per_s = checked_positive(high_per_s, "square-wave: high_per_s")
    phase_s = checked_positive(phase_s, "square-wave: phase_s")
    arrival_s = _modulated(len(trace), rng, np.array([low_per_s, high_per_s]) * phase_s, phase_s)
    if rate_per_s is None:
        return arrival_s
    return arrival_s * ((low_per_s + high_per_s) / 2 / checked_rate(rate_per_s, "square-wave arrivals"))


@ARRIVALS.register("industrial-day")
def industrial_day(
    trace: Trace, rate_per_s: float | None, rng: np.random.Generator, *, duration_s: float | None = None
) -> np.ndarray:
    """Poisson arrivals with the rate of a working day: a trough at night, peaks in the morning and the afternoon.

    duration_s: length of the day; 86400 is a real day, less is compressed. One of duration and rate is enough: the
    requests then fill one day. With both, days of this duration follow each other at this mean rate.
    Source: ProServe, Fig. 1. It prints no numbers: peaks at 10:30 and 16:00 and a trough of a fifth of the
    higher one are ours.
    """
    if duration_s is not None:
        day_s = checked_positive(duration_s, "industrial-day: duration_s")
    elif rate_per_s is not None:
        day_s = len(trace) / checked_rate(rate_per_s, "arrivals")
    else:
        raise WorkloadError("industrial-day arrivals need a rate, or a duration: industrial-day:duration_s=86400")
    a_day = len(trace) if rate_per_s is None else checked_rate(rate_per_s, "arrivals") * day_s
    hours = (np.arange(1440) + 0.5) / 60
    shape = 0.25 + np.exp(-(((hours - 10.5) / 2) ** 2)) + 0.9 * np.exp(-(((hours - 16) / 2.4) ** 2))
    return _modulated(len(trace), rng, shape / shape.sum() * a_day, day_s / len(hours))


def _modulated(requests: int, rng: np.random.Generator, expected: np.ndarray, step_s: float) -> np.ndarray:
    """Poisson arrivals whose rate is constant over steps of `step_s` and repeats after the last.

    expected: mean number of arrivals in each step. Arrivals at rate 1 are mapped by the inverse of the expected number
    of arrivals up to a time (time-change theorem).
    """
    reached = np.r_[0, np.cumsum(expected)]
    if not np.isfinite(reached[-1]):
        raise OverflowError("more arrivals than a number holds")
    repeats, within = np.divmod(np.cumsum(rng.exponential(size=requests)), reached[-1])
    return (repeats * len(expected) + np.interp(within, reached, np.arange(len(reached)))) * step_s


def _gap_s(process: str, mean_size: float, rate_per_s: float | None, gap_s: float | None) -> float:
    """Return the gap between groups, from exactly one of gap_s and the rate."""
    if (gap_s is None) == (rate_per_s is None):
        raise WorkloadError(f"{process} arrivals need either a rate or a gap: {process}:gap_s=0.1")
    if gap_s is not None:
        return checked_positive(gap_s, f"{process}: gap_s")
    return mean_size / checked_rate(rate_per_s, f"{process} arrivals")


def checked_rate(rate_per_s: float | None, what: str) -> float:
    """Return a rate if it is above 0 and finite; else raise WorkloadError, which names `what`."""
    if rate_per_s is None:
        raise WorkloadError(f"{what} need a rate: requests per second, above 0")
    if not 0 < rate_per_s < np.inf:
        raise WorkloadError(f"a rate of {rate_per_s} requests/s: a rate is above 0 and finite")
    return float(rate_per_s)


def checked_positive(value: Any, what: str) -> Any:
    """Return `value` if it is above 0 and finite; else raise WorkloadError, which names `what`."""
    if not 0 < value < np.inf:
        raise WorkloadError(f"{what} is {value}; it should be above 0 and finite")
    return value
