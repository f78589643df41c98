"""Each request's events in a recorded timeline, with its tokens emitted and computed before each."""

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
    """Return TIMELINE[events]: the recorded events. Raises ExperimentError if the run has none."""
    status = result.arrays.status[0]
    if not status.recording:
        raise ExperimentError("the run has no timeline; simulate it with record_timeline=True")
    return result.arrays.timeline[: status.timeline_used]


def request_events(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return (events, positions): events about a request, by request and then in order, and their places in the
    timeline.

    If the only engine fails its requests stay there, and the timeline has no event for them; an event of kind RECALLED
    is added for each, at position -1.
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
    """Return int64[events]: output tokens before each event of `request_events`."""
    return _sum_before((events["kind"] == TOKEN).astype("i8"), _first(events))


def computed_tokens(events: np.ndarray) -> np.ndarray:
    """Return int64[events]: tokens computed before each event, including those of the running batch."""
    tokens = np.where(np.isin(events["kind"], (SCHEDULED, LOADED, FOUND)), events["tokens"], 0).astype("i8")
    tokens = np.where(_is_decode(events), np.minimum(tokens, _tokens_after(events)), tokens)
    return _sum_before(tokens, _first(events) | np.isin(events["kind"], (EVICTED, RECALLED)))


def _is_decode(events: np.ndarray) -> np.ndarray:
    """Return bool[events]: whether a request is scheduled with nothing computed or lost since its last token."""
    changes = _first(events) | np.isin(events["kind"], (TOKEN, SCHEDULED, EVICTED, RECALLED, LOADED, FOUND))
    last = np.maximum.accumulate(np.where(changes, np.arange(len(events)), 0))
    before = np.r_[0, last[:-1]][: len(events)]
    return (events["kind"] == SCHEDULED) & ~_first(events) & (events["kind"][before] == TOKEN)


def _tokens_after(events: np.ndarray) -> np.ndarray:
    """Return int64[events]: tokens emitted from the request's last scheduling up to its next one, at least 1.

    Of a decode's chunk with drafts these are the tokens that count as computed: rejected drafts do not.
    """
    turn = np.cumsum(_first(events) | (events["kind"] == SCHEDULED)) - 1
    return np.maximum(1, np.bincount(turn[events["kind"] == TOKEN], minlength=turn[-1] + 1 if len(turn) else 0)[turn])


def _first(events: np.ndarray) -> np.ndarray:
    """Return bool[events]: whether an event is the first of its request."""
    return np.r_[True, events["request"][1:] != events["request"][:-1]][: len(events)]


def _sum_before(values: np.ndarray, anew: np.ndarray) -> np.ndarray:
    """Return the running sum before each place; it restarts from 0 at the places `anew`."""
    before = np.cumsum(values) - values
    return before - np.maximum.accumulate(np.where(anew, before, 0))
