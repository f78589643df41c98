"""The search for the best run of one scenario: over the family of rankings, then over single requests, in turns.

It is a generator: it yields points to be run and is sent their gains, so that its driver runs them where it
likes, keeps the gains, and goes on from what it has kept by sending it again. The same gains give the same points.

Over the family: CMA-ES (Hansen and Ostermeier, "Completely Derandomized Self-Adaptation in Evolution Strategies",
2001, by the library cmaes) in the unit cube, with the changes of single requests as they are. Over requests: of a
round of random moves the best is kept if it gains more, or all that do, if together they gain more still.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence

import numpy as np

from servegym.errors import ExperimentError
from servegym.evaluation.headroom.moves import Moves
from servegym.evaluation.headroom.point import DIMENSIONS, NO_CHANGE, Change, Point
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

POPULATION = 12  # points of a round, that may run side by side
ROUNDS = 40  # of a turn
FIRST_STEP, LATER_STEP = 0.2, 0.08  # of CMA-ES, at its start: of the unit cube
SEED = 0
Rounds = Generator[list[Point], Sequence[float], None]

# Near to what shipped policies do, as far as the family can say it, and what differs from them most.
STARTS = (
    Point.of(),  # expected-gain, with true lengths
    Point.of(gamma=1.0, token_s=1e-7),  # slide-batching
    Point.of(gamma=1000.0, token_s=1e-3),  # gain per work, always
    Point.of(gamma=1000.0, token_s=1e-2, share=2.0, least_share=0.5),  # what has lost much is given up
    Point.of(gamma=1000.0, cost=1.5, held=100.0),  # shortest first; what has begun stays
    Point.of(gamma=1000.0, patience_s=2.0, decoding=10.0),  # the urgent first, decodes before prompts
    Point.of(gamma=1000.0, batch=1.5, pace=0.6, token_s=1e-3, size=0.5),  # longer batches
    Point.of(gamma=0.1, held=10.0),  # by deadline, until much is late
)


@dataclasses.dataclass
class Best:
    """The best point so far, and its gain."""

    point: Point = dataclasses.field(default_factory=Point.of)
    gain: float = -np.inf

    def see(self, points: Sequence[Point], gains: Sequence[float]) -> None:
        """Keep the first of equal points."""
        for point, gain in zip(points, gains, strict=True):
            if gain > self.gain:
                self.point, self.gain = point, gain


def gain_of(scenario: Scenario, point: Point) -> float:
    """The gain of a run of the point, which ends when no token can be in time any more."""
    until_s = min(scenario.until_s, last_deadline_s(scenario))
    return float(run_of(dataclasses.replace(scenario, until_s=until_s), point).arrays.status[0].gain)


def last_deadline_s(scenario: Scenario) -> float:
    """The last deadline of all tokens; inf if arrivals are not known beforehand, or the gain has other deadlines than
    TDG's.
    """
    if scenario.arrivals_depend or scenario.gain.name != "tdg":
        return np.inf
    table = scenario.workload.table
    later_s = (table["output_tokens"] - 1) * table["tpot_slo_s"]
    ttlt = np.isfinite(table["ttlt_slo_s"])
    return float((table["arrival_s"] + np.where(ttlt, table["ttlt_slo_s"], table["ttft_slo_s"] + later_s)).max())


def run_of(scenario: Scenario, point: Point) -> Simulation:
    simulation = Simulation(point.scenario(scenario))
    simulation.run()
    return simulation


def rounds(scenario: Scenario, seed: int = SEED) -> Rounds:
    """Points to be run, round by round, without end. Raises ExperimentError where cmaes is not installed."""
    try:
        import cmaes  # noqa: F401 (said here, before anything is run)
    except ModuleNotFoundError:
        raise ExperimentError(
            "the search takes a package that is not installed (cmaes): pip install 'servegym[tune]'"
        ) from None
    best = Best()
    best.see(STARTS, (yield list(STARTS)))
    turn = 0
    while True:
        yield from over_family(best, turn, seed)
        yield from over_requests(scenario, best, turn, seed)
        turn += 1


def over_family(best: Best, turn: int, seed: int) -> Rounds:
    """A turn of CMA-ES from the best point."""
    from cmaes import CMA

    bounds = np.tile([0.0, 1.0], (DIMENSIONS, 1))
    step = LATER_STEP if turn else FIRST_STEP
    changes = best.point.changes
    optimizer = CMA(best.point.family, step, bounds=bounds, seed=seed + turn, population_size=POPULATION)
    for _ in range(ROUNDS):
        points = [Point(optimizer.ask(), changes) for _ in range(POPULATION)]
        gains = yield points
        optimizer.tell([(point.family, -gain) for point, gain in zip(points, gains, strict=True)])
        best.see(points, gains)


def over_requests(scenario: Scenario, best: Best, turn: int, seed: int) -> Rounds:
    """A turn of moves of single requests, from the best point. A run of it tells what to move."""
    rng = np.random.default_rng([seed, turn])
    moves = Moves.after(run_of(scenario, best.point))
    for _ in range(ROUNDS):
        start = best.point
        points = [moves.draw(start, rng) for _ in range(POPULATION - 1)]
        gains = yield points
        better = [point for point, gain in zip(points, gains, strict=True) if gain > best.gain]
        best.see(points, gains)
        if len(better) > 1:
            together = start
            for point in better:
                together = together.changed(difference(start, point))
            best.see([together], (yield [together]))


def difference(start: Point, moved: Point) -> dict[int, Change]:
    """The changes that a move made."""
    rows = {*start.changes, *moved.changes}
    found = {r: moved.changes.get(r, NO_CHANGE) for r in rows}
    return {r: change for r, change in found.items() if change != start.changes.get(r, NO_CHANGE)}
