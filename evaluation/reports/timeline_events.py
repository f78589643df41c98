"""Each request's events in a recorded timeline, with the tokens that it had emitted and computed before each."""

from __future__ import annotations

import numpy as np

from servegym.errors import ExperimentError
from servegym.simulator.records.types import (
    ARRIVAL,
    EVICTED,
    FAILED,
    FINISH,
    FOUND,
    LOADED,
    RECALLED,
    RESUMED,
    SCHEDULED,
    SUSPENDED,
    TOKEN,
)
from servegym.simulator.runs.results import Result


def timeline_events(result: Result) -> np.ndarray:
    """The events of the timeline (dtype TIMELINE). Raises ExperimentError where none was recorded."""
    status = result.arrays.status[0]
    if not status.recording:
        raise ExperimentError("the run has no timeline; simulate it with record_timeline=True")
    return result.arrays.timeline[: status.timeline_used]


def request_events(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """(events, positions): those about a request, by request and then in order, and where in the timeline each is.

    Where the only engine fails its requests stay and the timeline has no event for each of them: here they have one
    of kind RECALLED, at position -1.
    """
    events = timeline_events(result)
    about = (events["request"] >= 0) & ~np.isin(events["kind"], (SUSPENDED, RESUMED))  # these are about a batch
    position = np.flatnonzero(about)
    parts, positions, order = [events[about]], [position], [position.astype("f8")]
    if result.scenario.deployment.engines == 1:
        arrived = {int(events[i]["request"]): i for i in np.flatnonzero(events["kind"] == ARRIVAL)}
        finished = {int(events[i]["request"]): i for i in np.flatnonzero(events["kind"] == FINISH)}
        for at in np.flatnonzero(events["kind"] == FAILED):
            here = [r for r, since in arrived.items() if since < at < finished.get(r, len(events))]
            lost = np.repeat(events[at : at + 1], len(here))
            lost["request"], lost["kind"], lost["tokens"] = here, RECALLED, 0
            parts.append(lost)
            positions.append(np.full(len(here), -1))
            order.append(np.full(len(here), at + 0.5))
    every, which = np.concatenate(parts), np.concatenate(positions)
    in_order = np.lexsort((np.concatenate(order), every["request"]))
    return every[in_order], which[in_order]


def num_output_tokens(events: np.ndarray) -> np.ndarray:
    """int64[events]: tokens out before each event of `request_events`."""
    return _sum_before((events["kind"] == TOKEN).astype("i8"), _first(events))


def computed_tokens(events: np.ndarray) -> np.ndarray:
    """int64[events]: tokens computed (of the batch that runs: those it will) before each event."""
    tokens = np.where(np.isin(events["kind"], (SCHEDULED, LOADED, FOUND)), events["tokens"], 0).astype("i8")
    tokens = np.where(_is_decode(events), np.minimum(tokens, _tokens_after(events)), tokens)
    return _sum_before(tokens, _first(events) | np.isin(events["kind"], (EVICTED, RECALLED)))


def _is_decode(events: np.ndarray) -> np.ndarray:
    """bool[events]: a request is scheduled that has had nothing computed or taken since its last token."""
    changes = _first(events) | np.isin(events["kind"], (TOKEN, SCHEDULED, EVICTED, RECALLED, LOADED, FOUND))
    last = np.maximum.accumulate(np.where(changes, np.arange(len(events)), 0))
    before = np.r_[0, last[:-1]][: len(events)]
    return (events["kind"] == SCHEDULED) & ~_first(events) & (events["kind"][before] == TOKEN)


def _tokens_after(events: np.ndarray) -> np.ndarray:
    """int64[events]: at least 1, and tokens out from an event up to the request's being scheduled again: of a decode's
    chunk that is what was no draft, or accepted."""
    turn = np.cumsum(_first(events) | (events["kind"] == SCHEDULED)) - 1
    return np.maximum(1, np.bincount(turn[events["kind"] == TOKEN], minlength=turn[-1] + 1 if len(turn) else 0)[turn])


def _first(events: np.ndarray) -> np.ndarray:
    """bool[events]: whether an event is the first of its request."""
    return np.r_[True, events["request"][1:] != events["request"][:-1]][: len(events)]


def _sum_before(values: np.ndarray, anew: np.ndarray) -> np.ndarray:
    """The running sum before each place, which starts anew after some of them (for which it is 0)."""
    before = np.cumsum(values) - values
    return before - np.maximum.accumulate(np.where(anew, before, 0))
