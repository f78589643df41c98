"""What a recorded timeline tells of each request: its lines, and what it had emitted and computed before each."""

from __future__ import annotations

import numpy as np

from servegym.experiments.errors import ExperimentError
from servegym.simulator.results import Result
from servegym.simulator.types import (
    ARRIVAL,
    EVICTED,
    FAILED,
    FINISH,
    LOADED,
    RECALLED,
    RESUMED,
    SCHEDULED,
    SUSPENDED,
    TOKEN,
)


def timeline_lines(result: Result) -> np.ndarray:
    """The lines of the timeline (dtype TIMELINE). Raises ExperimentError where none was recorded."""
    clock = result.arrays.clock[0]
    if not clock.recording:
        raise ExperimentError("the run has no timeline; simulate it with record_timeline=True")
    return result.arrays.timeline[: clock.timeline_used]


def told(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """(lines, place): the lines about a request, by request and then in order, and which line of the timeline each is.

    Where the only engine fails its requests stay and the timeline has no line for each of them: here they have one
    of kind RECALLED, of place -1.
    """
    lines = timeline_lines(result)
    about = (lines["request"] >= 0) & ~np.isin(lines["kind"], (SUSPENDED, RESUMED))  # these are about a batch
    place = np.flatnonzero(about)
    parts, places, order = [lines[about]], [place], [place.astype("f8")]
    if result.scenario.deployment.engines == 1:
        arrived = {int(lines[i]["request"]): i for i in np.flatnonzero(lines["kind"] == ARRIVAL)}
        finished = {int(lines[i]["request"]): i for i in np.flatnonzero(lines["kind"] == FINISH)}
        for at in np.flatnonzero(lines["kind"] == FAILED):
            here = [r for r, since in arrived.items() if since < at < finished.get(r, len(lines))]
            lost = np.repeat(lines[at : at + 1], len(here))
            lost["request"], lost["kind"], lost["tokens"] = here, RECALLED, 0
            parts.append(lost)
            places.append(np.full(len(here), -1))
            order.append(np.full(len(here), at + 0.5))
    every, which = np.concatenate(parts), np.concatenate(places)
    in_order = np.lexsort((np.concatenate(order), every["request"]))
    return every[in_order], which[in_order]


def emitted_tokens(lines: np.ndarray) -> np.ndarray:
    """int64[lines]: tokens out before each line of `told`."""
    return _sum_before((lines["kind"] == TOKEN).astype("i8"), _first(lines))


def computed_tokens(lines: np.ndarray) -> np.ndarray:
    """int64[lines]: tokens computed (of the batch that runs: those it will) before each line of `told`."""
    tokens = np.where(np.isin(lines["kind"], (SCHEDULED, LOADED)), lines["tokens"], 0).astype("i8")
    return _sum_before(tokens, _first(lines) | np.isin(lines["kind"], (EVICTED, RECALLED)))


def _first(lines: np.ndarray) -> np.ndarray:
    """bool[lines]: the first line of a request."""
    return np.r_[True, lines["request"][1:] != lines["request"][:-1]][: len(lines)]


def _sum_before(values: np.ndarray, anew: np.ndarray) -> np.ndarray:
    """The running sum before each place, which starts anew after some of them (for which it is 0)."""
    before = np.cumsum(values) - values
    return before - np.maximum.accumulate(np.where(anew, before, 0))
