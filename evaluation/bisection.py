"""Bisects for the highest rate, or the smallest number, at which not too many requests fail."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.state import SimulationState
from servegym.simulator.runs.simulation import Simulation
from servegym.simulator.runs.slos import violated

LOOKS = 24  # checks of a run, to stop it early once it has failed

# bool[requests] at a time, s: which have failed; once failed, a request stays so.
Failed = Callable[[SimulationState, Workload, float], np.ndarray]


class Found(NamedTuple):
    """served: the highest rate found to be served; refused: the lowest rate found not to be; None if there is none."""

    served: float | None
    refused: float | None
    runs: int


def highest_rate(
    is_served: Callable[[float], bool], first: float, low: float, high: float, *, precision: float, step: float
) -> Found:
    """Bisect: move from the first rate in steps until the answer changes, then bisect the interval until refused /
    served is at most the precision. Stop at `low` if that is not served, and at `high` if that is.
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
    """enough: the smallest number found to be enough; None: not even `most` is. too_few: the largest found not to be,
    or 0.
    """

    enough: int | None
    too_few: int
    runs: int


def fewest(is_enough: Callable[[int], bool], first: int, most: int) -> Fewest:
    """Bisect the integers 1 to `most`: halve or double the first number until the answer changes, then narrow the
    interval until its ends are neighbours.
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
    """Run to the end and count the failed requests of each group, int64[groups]; stop early and return None once some
    group has more than `most`. groups: bool[groups, requests]. A request that never finishes has failed.
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
