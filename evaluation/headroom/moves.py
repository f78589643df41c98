"""Moves of single requests, for the local part of the search: earlier, later, held back, dropped, or as it was."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.evaluation.headroom.point import NO_CHANGE, Change, Point
from servegym.evaluation.headroom.ranking import NEVER_S
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation

AIMED = 0.7  # of the moves begin at a request that loses gain
MOST = 6  # requests that a move changes
NEAR = 8.0  # standard deviation of their distance, in arrivals
STEP = 1.5  # mean step of `earlier`, in the logarithm of worth
KINDS = ("earlier", "later", "hold", "drop", "restore")
CHANCES = {True: (0.5, 0.05, 0.05, 0.3, 0.1), False: (0.2, 0.3, 0.2, 0.2, 0.1)}  # of a request that loses gain, or not


@dataclasses.dataclass(frozen=True)
class Moves:
    """Draws moves from the losses of a point's run. lost: float64[requests], ideal gain minus gain of each request."""

    workload: Workload
    lost: np.ndarray

    @classmethod
    def after(cls, simulation: Simulation) -> Moves:
        """The losses of a run that has ended."""
        scenario = simulation.scenario
        lost = scenario.gain.ideal(scenario.workload) - simulation.arrays.outcomes["gain"]
        return cls(scenario.workload, np.maximum(lost, 0.0))

    def draw(self, point: Point, rng: np.random.Generator) -> Point:
        """The point with one to `MOST` requests moved that arrive near one another."""
        n = len(self.workload)
        total = self.lost.sum()
        aimed = total > 0 and rng.random() < AIMED
        first = int(rng.choice(n, p=self.lost / total)) if aimed else int(rng.integers(n))
        count = min(int(rng.geometric(0.5)), MOST)
        others = first + np.rint(rng.normal(0.0, NEAR, count - 1)).astype(int)
        chosen = {first, *np.clip(others, 0, n - 1).tolist()}
        return point.changed({r: self._change(r, point.changes.get(r, NO_CHANGE), rng) for r in sorted(chosen)})

    def _change(self, r: int, was: Change, rng: np.random.Generator) -> Change:
        kind = KINDS[rng.choice(len(KINDS), p=CHANCES[bool(self.lost[r] > 0)])]
        step, wait_s = float(rng.exponential(STEP)), self._wait_s(r) * float(rng.exponential())
        arrival_s = float(self.workload.table["arrival_s"][r])
        if kind == "drop" or (kind == "hold" and not np.isfinite(arrival_s + wait_s)):
            return Change(was.earlier, NEVER_S)
        if kind == "restore":
            return NO_CHANGE
        if kind == "hold":
            return Change(was.earlier, arrival_s + wait_s)
        return Change(was.earlier + (step if kind == "earlier" else -step), 0.0)

    def _wait_s(self, r: int) -> float:
        """The longest time that a request may wait and still get most of its gain."""
        row = self.workload.table[r]
        slo_s = row["ttlt_slo_s"] if np.isfinite(row["ttlt_slo_s"]) else row["ttft_slo_s"]
        return float(slo_s)
