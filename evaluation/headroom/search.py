"""The search for the best run of one scenario: over a family of policies, then over single requests, in turns.

It is a generator: it yields points to be run and is sent their scores, so that its driver runs them where it
likes, keeps the scores, and goes on from what it has kept by sending it again. The same scores give the same points.

Over the family: CMA-ES (Hansen and Ostermeier, "Completely Derandomized Self-Adaptation in Evolution Strategies",
2001, by the library cmaes) in the unit cube, with the changes of single requests as they are. Over requests: of a
round of random moves the best is kept if it scores higher; or all that do, if together they score higher still.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from servegym.errors import ExperimentError
from servegym.evaluation.headroom.assignment import Assignment
from servegym.evaluation.headroom.moves import Moves
from servegym.evaluation.headroom.point import Point
from servegym.evaluation.headroom.reassigning import Reassignments
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation
from servegym.simulator.runs.slos import attained

POPULATION = 12  # points of a round, that may run side by side
FIRST_STEP, LATER_STEP = 0.2, 0.08  # of CMA-ES, at its start: of the unit cube
SEED = 0
AnyPoint = Point | Assignment
Rounds = Generator[list[Any], Sequence[float], None]

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


# The first points of a search of routers: heuristics with their defaults. It goes on from the best.
BASES = ("lost-gain", "predicted-cost", "prefix-affinity", "min-load", "gorouting", "polyserve")


def gain_of_run(run: Simulation) -> float:
    """Return the gain of a run."""
    return float(run.arrays.status[0].gain)


def gain_and_attainment(run: Simulation) -> float:
    """Return TDG ratio + SLO attainment of a run."""
    workload = run.scenario.workload
    ratio = gain_of_run(run) / float(run.scenario.gain.ideal(workload).sum())
    return ratio + float(attained(run.arrays, workload).mean())


class Search(NamedTuple):
    """A search of a kind of policies. starts: makes the first points. score: returns what is sought of a run. moves:
    makes what draws moves, from a run. read: makes a point from its JSON. rounds: of a turn, over the family and over
    requests."""

    rounds: tuple[int, int]
    starts: Callable[[], tuple[Any, ...]]
    score: Callable[[Simulation], float]
    moves: Callable[[Simulation], Any]
    read: Callable[[Mapping[str, Any]], Any]


SEARCHES = {
    "scheduler": Search((40, 40), lambda: STARTS, gain_of_run, Moves.after, Point.from_json),
    "router": Search(
        (10, 20), lambda: tuple(map(Assignment.of, BASES)), gain_and_attainment, Reassignments.after,
        Assignment.from_json,
    ),
}  # fmt: skip


@dataclasses.dataclass
class Best:
    """The best point so far, and its score."""

    point: Any = None
    score: float = -np.inf

    def see(self, points: Sequence[Any], scores: Sequence[float]) -> None:
        """Keep the first of equal points."""
        for point, score in zip(points, scores, strict=True):
            if score > self.score:
                self.point, self.score = point, score


def score_of(scenario: Scenario, point: AnyPoint) -> float:
    """Return the score of a run of the point, which ends when no token can be in time any more."""
    until_s = min(scenario.until_s, last_deadline_s(scenario))
    return SEARCHES[point.kind].score(run_of(dataclasses.replace(scenario, until_s=until_s), point))


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


def run_of(scenario: Scenario, point: AnyPoint) -> Simulation:
    """Run a scenario under the policy of a point."""
    simulation = Simulation(point.scenario(scenario))
    simulation.run()
    return simulation


def rounds(scenario: Scenario, kind: str = "scheduler", seed: int = SEED) -> Rounds:
    """Points to be run, round by round, without end. Raises ExperimentError where cmaes is not installed."""
    try:
        import cmaes  # noqa: F401 (said here, before anything is run)
    except ModuleNotFoundError:
        raise ExperimentError(
            "the search takes a package that is not installed (cmaes): pip install 'servegym[tune]'"
        ) from None
    search, best, turn = SEARCHES[kind], Best(), 0
    starts = search.starts()
    best.see(starts, (yield list(starts)))
    while True:
        if len(best.point.family) > 1:  # fewer are not worth a turn
            yield from over_family(best, search.rounds[0], turn, seed)
        yield from over_requests(scenario, best, search, turn, seed)
        turn += 1


def over_family(best: Best, count: int, turn: int, seed: int) -> Rounds:
    """A turn of CMA-ES from the best point, of so many rounds."""
    from cmaes import CMA

    start = best.point
    bounds = np.tile([0.0, 1.0], (len(start.family), 1))
    step = LATER_STEP if turn else FIRST_STEP
    optimizer = CMA(start.family, step, bounds=bounds, seed=seed + turn, population_size=POPULATION)
    for _ in range(count):
        points = [dataclasses.replace(start, family=optimizer.ask()) for _ in range(POPULATION)]
        scores = yield points
        optimizer.tell([(point.family, -score) for point, score in zip(points, scores, strict=True)])
        best.see(points, scores)


def over_requests(scenario: Scenario, best: Best, search: Search, turn: int, seed: int) -> Rounds:
    """A turn of moves of single requests, from the best point. A run of it tells what to move."""
    rng = np.random.default_rng([seed, turn])
    moves = search.moves(run_of(scenario, best.point))
    for _ in range(search.rounds[1]):
        start = best.point
        points = [moves.draw(start, rng) for _ in range(POPULATION - 1)]
        scores = yield points
        better = [point for point, score in zip(points, scores, strict=True) if score > best.score]
        best.see(points, scores)
        if len(better) > 1:
            together = start
            for point in better:
                together = together.changed(difference(start, point))
            best.see([together], (yield [together]))


def difference(start: AnyPoint, moved: AnyPoint) -> dict[int, Any]:
    """The changes that a move made."""
    none = start.no_change
    found = {r: moved.changes.get(r, none) for r in {*start.changes, *moved.changes}}
    return {r: change for r, change in found.items() if change != start.changes.get(r, none)}
