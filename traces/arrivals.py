"""Arrival processes: when requests come, where a trace does not say.

To add one, register a function here that takes the number of requests, their mean rate and a generator.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from servegym.simulator.errors import WorkloadError
from servegym.traces.registry import Registry

ArrivalProcess = Callable[[int, float | None, np.random.Generator], np.ndarray]
ARRIVALS: Registry[ArrivalProcess] = Registry("arrival process")


@ARRIVALS.register("poisson")
def poisson(requests: int, rate_per_s: float | None, rng: np.random.Generator) -> np.ndarray:
    """Independent exponential gaps with mean 1 / rate; the first arrival is a gap after 0.

    Returns float64 seconds of shape (requests,), increasing. Drawn for rate 1 and divided by the rate:
    one seed at two rates gives the same arrivals, stretched. Fewer requests are the first of more.
    """
    return np.cumsum(rng.exponential(size=requests)) / checked_rate(rate_per_s, "poisson arrivals")


@ARRIVALS.register("at-once")
def at_once(requests: int, rate_per_s: float | None, rng: np.random.Generator) -> np.ndarray:
    """All at time 0, as a saturation run has them. Returns float64 zeros of shape (requests,)."""
    del rng  # nothing is left to chance
    if rate_per_s is not None:
        raise WorkloadError(f"arrivals at once have no rate: leave out the {rate_per_s:g} requests/s")
    return np.zeros(requests)


def checked_rate(rate_per_s: float | None, what: str) -> float:
    """`rate_per_s` if it is one; `what` needs it."""
    if rate_per_s is None:
        raise WorkloadError(f"{what} need a rate: requests per second, above 0")
    if not 0 < rate_per_s < np.inf:
        raise WorkloadError(f"a rate of {rate_per_s} requests/s: a rate is above 0 and finite")
    return float(rate_per_s)
