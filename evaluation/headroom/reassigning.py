"""Moves of requests to other engines, for the local part of a search of routers."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.evaluation.headroom.assignment import AS_BASE, Assignment
from servegym.simulator.runs.simulation import Simulation
from servegym.simulator.runs.slos import attained

AIMED = 0.85  # of the moves begin at a request that missed an SLO
KINDS = ("itself", "neighbours", "session", "restore")
CHANCES = (0.35, 0.4, 0.15, 0.1)
WINDOWS_S = (3.0, 10.0, 30.0)  # before a request's arrival: requests that came then are its neighbours


@dataclasses.dataclass(frozen=True)
class Reassignments:
    """Draws moves from a point's run. Arrays by request: engine, arrival_s, session, missed. engines: their number."""

    engine: np.ndarray
    arrival_s: np.ndarray
    session: np.ndarray
    missed: np.ndarray
    engines: int

    @classmethod
    def after(cls, simulation: Simulation) -> Reassignments:
        """Read engines, arrivals, sessions and misses from a run that has ended."""
        run = simulation.arrays
        requests = run.requests[["engine", "arrival_s", "session"]].copy()
        missed = ~attained(run, simulation.scenario.workload)
        return cls(requests["engine"], requests["arrival_s"], requests["session"], missed, len(run.engines))

    def draw(self, point: Assignment, rng: np.random.Generator) -> Assignment:
        """Return the point with other engines for one request, some that came before it, or the rest of its session."""
        aimed = self.missed.any() and rng.random() < AIMED
        r = int(rng.choice(np.flatnonzero(self.missed))) if aimed else int(rng.integers(len(self.engine)))
        kind = KINDS[rng.choice(len(KINDS), p=CHANCES)]
        if kind == "session" and self.session[r] >= 0:
            since_s = self.arrival_s[r] - rng.choice([0.0, *WINDOWS_S])
            rows = np.flatnonzero((self.session == self.session[r]) & (self.arrival_s >= since_s))
            return point.changed(dict.fromkeys(rows.tolist(), self._any(rng)))
        if kind == "neighbours":
            return point.changed(self._neighbours(r, rng))
        if kind == "restore" and point.changes:
            rows = np.array(sorted(point.changes))
            return point.changed(dict.fromkeys(some(rows, rng), AS_BASE))
        return point.changed({r: self._any(rng)})

    def _neighbours(self, r: int, rng: np.random.Generator) -> dict[int, int]:
        """Move some requests that came shortly before r off its engine; or off another one, which r goes to instead."""
        here = int(self.engine[r])
        engine = here if rng.random() < 0.6 else self._any(rng)
        before_s = self.arrival_s[r] - self.arrival_s
        near = (self.engine == engine) & (before_s >= 0) & (before_s < rng.choice(WINDOWS_S))
        changes = {row: self._any(rng) for row in some(np.flatnonzero(near), rng)}
        return changes if engine == here else changes | {r: engine}

    def _any(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.engines))


def some(rows: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Draw a few of the rows, one most often."""
    count = min(len(rows), int(rng.geometric(0.5)))
    return sorted(int(row) for row in rng.choice(rows, count, replace=False))
