"""Turns of sessions: which request follows which, and after what think time (docs/sessions.md)."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.records.types import FOLLOWING, LATEST_S

NO_TURN = -1  # in place of a request: none


@dataclasses.dataclass(frozen=True)
class SessionDependencies:
    """The request that each one follows, and its think time.

    after: int64[requests], the request whose end it waits for; -1: none, and it arrives at its own time.
    think_s: float64[requests], s from that end to its arrival; ignored for requests that follow none.

    Raises WorkloadError for an unknown request, a cycle, or an invalid time.
    """

    after: np.ndarray
    think_s: np.ndarray

    def __post_init__(self) -> None:
        after, think_s = np.asarray(self.after), np.asarray(self.think_s, "f8")
        if after.ndim != 1 or after.shape != think_s.shape:
            raise WorkloadError(f"turns: after has shape {after.shape}, think_s {think_s.shape}; they should be alike")
        if after.dtype.kind not in "iu" and not np.array_equal(after, after.astype("i8")):
            raise WorkloadError("turns: after should be whole numbers")
        object.__setattr__(self, "after", np.ascontiguousarray(after, "i8"))
        object.__setattr__(self, "think_s", np.where(self.after < 0, 0.0, think_s))
        outside = (self.after < NO_TURN) | (self.after >= len(after))
        if outside.any():
            at = int(np.argmax(outside))
            raise WorkloadError(
                f"turns, request {at}: it follows request {after[at]}; there are 0 to {len(after) - 1} (-1: none)"
            )
        wrong = ~((self.think_s >= 0) & (self.think_s <= LATEST_S))
        if wrong.any():
            at = int(np.argmax(wrong))
            raise WorkloadError(
                f"turns, request {at}: think_s is {think_s[at]:g}; it should be a time from 0 to {LATEST_S:g} s"
            )
        in_circle = self.after[self.session] >= 0
        if in_circle.any():
            at = int(np.argmax(in_circle))
            raise WorkloadError(
                f"turns, request {at}: it follows itself through other requests; a session must have a first request"
            )

    def __len__(self) -> int:
        return len(self.after)

    @property
    def session(self) -> np.ndarray:
        """int64[requests]: the first request of each one's session; in a cycle, one that follows another."""
        first = np.where(self.after < 0, np.arange(len(self)), self.after)
        for _ in range(len(self).bit_length()):  # pointer doubling
            first = first[first]
        return first

    @property
    def turn(self) -> np.ndarray:
        """int64[requests]: how many turns come before each in its session."""
        found = (self.after >= 0).astype("i8")
        before = np.where(self.after < 0, np.arange(len(self)), self.after)
        for _ in range(len(self).bit_length()):  # pointer doubling
            found, before = found + found[before], before[before]
        return found

    def order(self, arrival_s: np.ndarray) -> np.ndarray:
        """Return int64[requests]: requests that follow none, by arrival, then the others in their present order."""
        return np.lexsort((np.where(self.after == NO_TURN, arrival_s, 0.0), self.after != NO_TURN))

    def take(self, rows: np.ndarray) -> SessionDependencies:
        """Return the dependencies among requests `rows`, renumbered in that order.

        Raises WorkloadError if one of them follows a request that is not among them.
        """
        place = np.full(len(self), NO_TURN)
        place[rows] = np.arange(len(rows))
        after = self.after[rows]
        moved = np.where(after < 0, NO_TURN, place[after])
        lost = (after >= 0) & (moved < 0)
        if lost.any():
            at = int(np.argmax(lost))
            raise WorkloadError(
                f"turns, request {int(np.asarray(rows)[at])}: it follows request {after[at]}, which is not among those "
                "taken; of a session its first turns are taken"
            )
        return SessionDependencies(moved, self.think_s[rows])

    def whole(self, keep: np.ndarray) -> np.ndarray:
        """Return bool[requests]: requests in `keep` whose earlier turns are all in it too."""
        kept, before = np.asarray(keep, bool).copy(), None
        while before is None or (kept != before).any():
            before = kept.copy()
            kept &= (self.after < 0) | kept[self.after]
        return kept


def following_of(turns: SessionDependencies | None) -> np.ndarray:
    """Return FOLLOWING[requests], the dependencies as the loop reads them; empty if there are none."""
    if turns is None:
        return np.zeros(0, FOLLOWING)
    rows = np.zeros(len(turns), FOLLOWING)
    rows["first"] = rows["next"] = NO_TURN
    rows["session"], rows["think_s"] = turns.session, turns.think_s
    rows["unfinished"] = rows["in_engines"] = np.bincount(rows["session"], minlength=len(turns))
    order = np.argsort(turns.after, kind="stable")  # those that follow the same request are adjacent
    order = order[turns.after[order] >= 0]
    after = turns.after[order]
    is_first = np.r_[True, after[1:] != after[:-1]][: len(order)]
    rows["first"][after[is_first]] = order[is_first]
    rows["next"][order[:-1][~is_first[1:]]] = order[1:][~is_first[1:]]
    return rows
