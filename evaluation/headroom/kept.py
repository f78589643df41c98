"""Searches with a ledger each: their scores are kept round by round, so that the same command continues from there."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from servegym.errors import ExperimentError
from servegym.evaluation.headroom.cases import Case
from servegym.evaluation.headroom.search import SEARCHES, AnyPoint, Best, rounds, run_of, score_of
from servegym.evaluation.ledger import Ledger, Row
from servegym.evaluation.running import Runner, ThreadRunner, results_of
from servegym.simulator.runs.results import Result


class Found(NamedTuple):
    """The best run of a search: its score, what fixes it, and how many were run."""

    score: float
    point: AnyPoint
    evaluations: int


class KeptSearch:
    """A search and its ledger, for one process at a time. points: to be run next.

    Raises ExperimentError as `Ledger` does, and for rows that are not of this search.
    """

    def __init__(self, case: Case, directory: Path, fresh: bool = False):
        self.case, self.best, self.evaluations = case, Best(), 0
        self.ledger = Ledger(directory / case.file, case.identity, row_problem, fresh)

    def __enter__(self) -> KeptSearch:
        self.ledger.__enter__()
        try:
            self._rounds = rounds(self.case.scenario, self.case.kind)
            self.points = next(self._rounds)
            for number, row in enumerate(self.ledger.rows, start=2):
                if len(row["scores"]) != len(self.points):
                    raise ExperimentError(
                        f"{self.ledger.path}, line {number}: {len(row['scores'])} scores, where the search has "
                        f"{len(self.points)} points; --fresh starts over"
                    )
                self._learn(row["scores"])
        except BaseException:
            self.ledger.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ledger.__exit__(kind, error, trace)

    def keep(self, scores: Sequence[float]) -> None:
        """Append the scores of `points` to the ledger, and go on to the next ones."""
        before, points = self.best.score, self.points
        improved = Best(score=before)
        improved.see(points, scores)
        row: Row = {"scores": list(scores)}
        if improved.score > before:
            row["best"] = improved.point.to_json()
        self.ledger.append(row)
        self._learn(scores)

    def _learn(self, scores: Sequence[float]) -> None:
        self.best.see(self.points, scores)
        self.evaluations += len(scores)
        self.points = self._rounds.send(scores)

    @property
    def found(self) -> Found:
        return Found(self.best.score, self.best.point, self.evaluations)


def row_problem(row: Row) -> str | None:
    """Describe what is wrong with a row of a ledger; None if nothing is."""
    scores = row.get("scores")
    if not isinstance(scores, list) or not scores or not all(isinstance(score, float) for score in scores):
        return "a round has no scores"
    return None


def search_all(
    cases: Sequence[Case],
    directory: str | Path,
    budget: int,
    progress: Callable[[int, int], None] = lambda done, runs: None,
    runner: Runner | None = None,
    fresh: bool = False,
) -> list[Found]:
    """Search each case until it has run `budget` points, or a few more: rounds are finished.

    Rounds of all cases go side by side, so after an interrupt all are equally far. The result does not depend on the
    runner, the other cases, or interrupts. progress: called with (points run, points to be run). Raises ExperimentError
    for a budget below 1, and as `KeptSearch`.
    """
    if budget < 1:
        raise ExperimentError(f"a budget of {budget} runs; it should be 1 or more")
    runner, directory = runner or ThreadRunner(1), Path(directory)
    with contextlib.ExitStack() as stack:
        searches = [stack.enter_context(KeptSearch(case, directory, fresh)) for case in cases]
        while True:
            progress(sum(min(search.evaluations, budget) for search in searches), budget * len(searches))
            unfinished = [search for search in searches if search.evaluations < budget]
            if not unfinished:
                return [search.found for search in searches]
            items = [(search.case, point) for search in unfinished for point in search.points]
            scores = results_of(runner, functools.partial(_score_at, items), range(len(items)))
            at = 0
            for search in unfinished:
                end = at + len(search.points)
                search.keep(scores[at:end])
                at = end


def _score_at(items: Sequence[tuple[Case, AnyPoint]], index: int) -> float:
    case, point = items[index]
    return score_of(case.scenario, point)


def kept_best(case: Case, directory: str | Path) -> Found | None:
    """Return the best run that the ledger of a case has; None: there is none. Nothing is run or written."""
    path = Path(directory) / case.file
    if not path.is_file():
        return None
    with Ledger(path, case.identity, row_problem) as ledger:
        bests = [row["best"] for row in ledger.rows if "best" in row]
        if not bests:
            return None
        scores = [score for row in ledger.rows for score in row["scores"]]
        return Found(max(scores), SEARCHES[case.kind].read(bests[-1]), len(scores))


def run_again(case: Case, found: Found) -> Result:
    """Return the result of the run that was found. Raises ExperimentError if its score is not that of the ledger."""
    run = run_of(case.scenario, found.point)
    score = SEARCHES[case.kind].score(run)
    if not math.isclose(score, found.score, rel_tol=1e-12):
        raise ExperimentError(
            f"{case.file} has a score of {found.score!r}, and the run has {score!r}; --fresh starts over"
        )
    return run.result()
