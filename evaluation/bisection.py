"""The search for a highest rate or a fewest number, and the question asked of each: whether too many requests fail."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from servegym.simulator.simulation import Simulation
from servegym.simulator.slos import violated
from servegym.simulator.state import SimulationState
from servegym.simulator.workload import Workload

LOOKS = 24  # times at which a run is looked at, and given up where it has failed already

Failed = Callable[
    [SimulationState, Workload, float], np.ndarray
]  # bool[requests] at a time; once failed, a request stays so


class Found(NamedTuple):
    """served: the highest rate found to be; refused: the lowest found to be too much; None where there is none."""

    served: float | None
    refused: float | None
    runs: int


def highest_rate(
    is_served: Callable[[float], bool], first: float, low: float, high: float, *, precision: float, step: float
) -> Found:
    """Bisection: from the first rate in steps to one on the other side, then between the two until refused / served is
    at most the precision. It stops at `low` if that is too much, and at `high` if that is served.
    """
    runs, served, refused, rate = 0, None, None, first
    while refused is None or served is None or refused > precision * served:
        runs += 1
        if is_served(rate):
            served = rate
        else:
            refused = rate
        if refused is None:
            if rate >= high:
                break
            rate = min(high, rate * step)
        elif served is None:
            if rate <= low:
                break
            rate = max(low, rate / step)
        else:
            rate = math.sqrt(served * refused)
    return Found(served, refused, runs)


class Fewest(NamedTuple):
    """enough: the fewest found to be; None: not even the most are. too_few: the most found not to be, or 0."""

    enough: int | None
    too_few: int
    runs: int


def fewest(is_enough: Callable[[int], bool], first: int, most: int) -> Fewest:
    """Bisection: from the first number to its half or its double, and so on, up to one on the other side, then between
    the two until they are neighbours. It looks at 1 to `most`.
    """
    runs, enough, too_few, number = 0, None, 0, min(first, most)
    while enough is None or enough - too_few > 1:
        runs += 1
        if is_enough(number):
            enough = number
        else:
            too_few = number
        if enough is None:
            if number == most:
                break
            number = min(most, 2 * number)
        else:
            number = max(1, enough // 2) if too_few == 0 else (enough + too_few) // 2
    return Fewest(enough, too_few, runs)


def failed_counts(
    run: Simulation, groups: np.ndarray, most: np.ndarray, failed: Failed = violated
) -> np.ndarray | None:
    """int64[groups]: how many of each group have failed when all are served; None, as soon as it is known, where of
    some group more than `most` have. groups: bool[groups, requests]. What never finishes has failed.
    """
    whole = run.scenario
    workload = whole.workload
    for time_s in [*np.linspace(0, float(workload.table["arrival_s"][workload.known - 1]), LOOKS + 1)[1:], math.inf]:
        run.scenario = dataclasses.replace(whole, until_s=float(time_s))
        run.run()
        counts: np.ndarray = (groups & failed(run.arrays, workload, float(time_s))).sum(axis=1)
        if (counts > most).any():
            return None
    return counts
